"""A reward function runs where it can be killed; what it prints, logs and raises looks as in this process."""

import asyncio
import importlib
import logging
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.schema.reward import Reward, RewardManager
from agentrl.core.resources import load_module
from agentrl.rewards.function import load_reward_function, reward_function
from agentrl.rewards.scorer import Scorer
from agentrl.trajectory.trajectory import Outcome, Trajectory
from tests.rewards.test_scorer import decode, trajectory
from tests.waiting import until, wait_for

pytestmark = pytest.mark.integration

MODULE = """
import atexit, logging, os, re, signal, subprocess, sys, time
from pathlib import Path

seen = []
print("loaded")
atexit.register(lambda: seen and Path(__file__).with_name("ended").write_text(str(len(seen))))

def judge(data_source, solution_str, ground_truth, extra_info=None):
    what = (extra_info or {}).get("what", "")
    if what == "alarm":
        def late(*_):
            raise TimeoutError
        signal.signal(signal.SIGALRM, late)
        signal.alarm(5)
        try:
            return 1.0
        finally:
            signal.alarm(0)
    if what == "forgotten alarm":
        signal.alarm(1)
    if what == "spins":
        Path(ground_truth).write_text(str(os.getpid()))
        while True:
            time.time()
    if what == "holds the lock of Python":
        Path(ground_truth).write_text(str(os.getpid()))
        re.match("(a+)+$", "a" * 64 + "b")
    if what == "has children":
        Path(ground_truth).write_text(str(subprocess.Popen(["sleep", "600"]).pid))
        time.sleep(600)
    if what == "dies":
        os._exit(3)
    if what == "leaves":
        sys.exit("no more")
    if what == "breaks":
        raise KeyError("nothing here")
    if what == "writes":
        sys.stdout.buffer.write("bytes \u00e9\\n".encode())
        subprocess.run(["echo", "a program"], stdout=sys.stdout, check=True)
    if what == "odd":
        return {"score": 1.0, "odd": Odd(1, 2), "many": [{"here": lambda: 1}]}
    if what == "environment":
        code = "import os, sys; print(os.environ.get('PYTHONPATH'), 'agentrl' in sys.modules)"
        return {"score": 1.0, "path": sys.path, "theirs": subprocess.check_output([sys.executable, "-c", code])}
    if what == "says":
        print("an answer")
        print("a doubt", file=sys.stderr)
        logging.getLogger("mine").warning("a %s", "note")
    seen.append(what)
    return {"score": 1.0, "calls": len(seen), "pid": os.getpid()}

class Odd(Exception):
    def __init__(self, one, other):
        super().__init__("odd")

def looks(data_source, solution_str, ground_truth, trajectory):
    return {"score": float(len(trajectory.ledgers)), "pid": os.getpid()}

async def waits(data_source, solution_str, ground_truth):
    return {"score": 1.0, "pid": os.getpid()}

def lists(data_sources, solution_strs, ground_truths, extra_infos):
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    return [{"score": 1.0, "pid": os.getpid()} for _ in data_sources]
"""


def scorer(
    folder: Path, name: str = "judge", *, timeout: float = 60.0, manager: str = "naive", workers: int = 8
) -> Scorer:
    (folder / "judges.py").write_text(MODULE)
    fn = load_reward_function(str(folder / "judges.py"), name, {}, batch=manager == "batch")
    reward = Reward(timeout=timeout, num_workers=workers, reward_manager=RewardManager(name=manager))
    return Scorer(fn, reward, decode)


def asked(what: str, truth: str = "") -> Trajectory:
    subject = trajectory()
    subject.row.extra_info["what"] = what
    subject.row.reward_model["ground_truth"] = truth
    return subject


async def scored(scoring: Scorer, *subjects: Trajectory) -> list[Trajectory]:
    scoring.expect([subject.key for subject in subjects])
    try:
        for subject in subjects:
            await scoring.score(subject)
    finally:
        await scoring.close()
    return list(subjects)


@pytest.mark.parametrize("manager", ["naive", "dapo", "prime"])
async def test_a_function_may_use_alarms_and_keeps_its_state(manager: str, tmp_path: Path) -> None:
    made = await scored(scorer(tmp_path, manager=manager), *map(asked, ["alarm", "forgotten alarm", "", ""]))
    assert [(subject.error, subject.reward) for subject in made] == [(None, 1.0)] * 4
    assert [subject.reward_extra["calls"] for subject in made[1:]] == [1, 2, 3]
    assert made[3].reward_extra["pid"] != os.getpid()
    assert (tmp_path / "ended").read_text() == "3", "it ends as a program does"


def _gone(file: Path) -> bool:
    return _ended(int(file.read_text()))


def _ended(pid: int) -> bool:
    """Whether nothing of a process runs; its parent may still have to ask for its exit code."""
    with suppress(ProcessLookupError, FileNotFoundError):
        os.kill(pid, 0)
        return "Z (zombie)" in Path(f"/proc/{pid}/status").read_text()
    return True


@pytest.mark.prevents("a reward function hangs, or spins on after its time limit")
@pytest.mark.parametrize("what", ["spins", "holds the lock of Python", "has children"])
async def test_a_call_that_hangs_is_ended_with_all_that_it_started(what: str, tmp_path: Path) -> None:
    threads = threading.active_count()
    scoring = scorer(tmp_path, timeout=3.0)
    hung, sound = await scored(scoring, asked(what, str(tmp_path / "pid")), asked(""))
    assert (hung.outcome, hung.reward) == (Outcome.INFRA_ERROR, None)
    assert "no answer within 3 s" in str(hung.error)
    assert sound.reward_extra["calls"] == 1
    assert _gone(tmp_path / "pid")
    assert threading.active_count() <= threads + 4  # idle ones of the pools for calls


@pytest.mark.parametrize("module", [False, True])
async def test_a_function_of_a_module_that_a_program_passes_shares_its_state(module: bool, tmp_path: Path) -> None:
    scorer(tmp_path)
    sys.path.append(str(tmp_path))
    try:
        judges = importlib.import_module("judges")
        function = judges.judge if module else load_module(tmp_path / "judges.py").judge
        (made,) = await scored(Scorer(reward_function(function, {}), Reward(), decode), asked(""))
        assert (made.error, made.reward_extra["pid"]) == (None, os.getpid())
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("judges", None)


async def test_parts_of_a_result_that_cannot_be_sent_are_texts_and_cost_no_process(tmp_path: Path) -> None:
    scoring = scorer(tmp_path)
    isolated = scoring.terms[0].manager.calls.isolated  # type: ignore[attr-defined]
    odd = {"data_source": "", "solution_str": "", "ground_truth": "", "extra_info": {"what": "odd"}}
    for _ in range(2):
        assert isolated(**odd)["odd"] == "Odd('odd')"
        assert "lambda" in isolated(**odd)["many"][0]["here"]
    assert len(isolated._all) == 1
    await scoring.close()


async def test_it_imports_what_the_run_imports_and_its_programs_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(sys, "path", ["", ".", *sys.path])
    (tmp_path / "signal.py").write_text("raise RuntimeError('a file of the current folder')")
    scoring = scorer(tmp_path)
    given = {"data_source": "", "solution_str": "", "ground_truth": "", "extra_info": {"what": "environment"}}
    isolated = scoring.terms[0].manager.calls.isolated  # type: ignore[attr-defined]
    found = isolated(**given)
    assert (found["path"], found["theirs"]) == (sys.path, b"None False\n")
    await scoring.close()


async def test_an_edit_during_a_run_does_not_change_rewards(tmp_path: Path, caplog: Any) -> None:
    file, code = tmp_path / "edited.py", "import time\ndef slow(data_source, solution_str, ground_truth):\n"
    code += "    time.sleep(0.6)\n    return 1.0\n"
    file.write_text(code)
    scoring = Scorer(load_reward_function(str(file), "slow", {}), Reward(), decode)
    first, *others = (asked("") for _ in range(5))
    await scoring.score(first)
    file.write_text(code.replace("1.0", "0.5"))
    await asyncio.gather(*(scoring.score(subject) for subject in others))
    await scoring.close()
    assert [subject.reward for subject in (first, *others)] == [1.0] * 5
    assert "its code has changed since the run began" in caplog.text


PARENT = """
import pickle, sys
from agentrl.core.isolated import IsolatedFunction

given = {"data_source": "", "solution_str": "", "ground_truth": sys.argv[2], "extra_info": {"what": sys.argv[3]}}
IsolatedFunction(sys.argv[1], "judge", timeout=600).call(pickle.dumps(given))
"""


@pytest.mark.parametrize("what", ["spins", "holds the lock of Python"])
def test_a_call_that_hangs_ends_with_a_run_that_is_killed(what: str, tmp_path: Path) -> None:
    (tmp_path / "judges.py").write_text(MODULE)
    run = subprocess.Popen([sys.executable, "-c", PARENT, tmp_path / "judges.py", tmp_path / "pid", what])
    assert wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "")
    run.kill()
    run.wait()
    assert wait_for(lambda: _gone(tmp_path / "pid"))


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("dies", "reward function judge: its process died (exit code 3)"),
        ("leaves", "reward function judge failed: SystemExit: no more (*judges.py:"),
        ("breaks", "reward function judge failed: KeyError: 'nothing here' (*judges.py:"),
    ],
)
async def test_a_failure_is_told_with_its_line(what: str, why: str, tmp_path: Path, caplog: Any) -> None:
    failed, after = await scored(scorer(tmp_path), asked(what), asked(""))
    begin, _, end = why.partition("*")
    assert str(failed.error).startswith(begin)
    assert end in str(failed.error)
    assert (after.reward, failed.reward) == (1.0, None)
    assert str(failed.error) in caplog.text


async def test_output_appears_here(tmp_path: Path, capsys: Any, caplog: Any) -> None:
    with caplog.at_level(logging.WARNING):
        await scored(scorer(tmp_path), asked("says"))
    said = capsys.readouterr()
    assert (said.out, said.err) == ("loaded\nan answer\n", "a doubt\n")
    assert [(record.name, record.getMessage()) for record in caplog.records] == [("mine", "a note")]


async def test_bytes_and_the_output_of_programs_appear_too(tmp_path: Path, capfd: Any) -> None:
    (made,) = await scored(scorer(tmp_path), asked("writes"))
    assert made.error is None
    out = capfd.readouterr().out
    assert "bytes \u00e9\n" in out
    assert "a program\n" in out


async def test_slow_calls_run_beside_each_other_and_quick_ones_share_a_process(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import os, time\ndef slow(data_source, solution_str, ground_truth):\n"
        "    time.sleep(2)\n    return {'score': 1.0, 'pid': os.getpid()}\n"
    )
    fn = load_reward_function(str(tmp_path / "slow.py"), "slow", {})
    for scoring, expected in ((Scorer(fn, Reward(num_workers=2), decode), 2), (scorer(tmp_path), 1)):
        many = [asked("") for _ in range(4)]
        await asyncio.gather(*(scoring.score(subject) for subject in many))
        await scoring.close()
        assert len({subject.reward_extra["pid"] for subject in many}) == expected


async def test_a_whole_trajectory_and_lists_go_there_too(tmp_path: Path) -> None:
    (seen,) = await scored(scorer(tmp_path, "looks"), trajectory())
    assert (seen.reward, seen.reward_extra["pid"] == os.getpid()) == (1.0, False)
    (listed,) = await scored(scorer(tmp_path, "lists", manager="batch"), asked(""))
    assert (listed.error, listed.reward_extra["pid"] == os.getpid()) == (None, False)


async def test_what_cannot_be_sent_runs_here(tmp_path: Path) -> None:
    subject = trajectory()
    subject.container = threading.Lock()
    (seen,) = await scored(scorer(tmp_path, "looks"), subject)
    assert (seen.error, seen.reward_extra["pid"]) == (None, os.getpid())
    (waited,) = await scored(scorer(tmp_path, "waits"), trajectory())
    assert waited.reward_extra["pid"] == os.getpid()


async def test_a_function_of_the_program_shares_its_state_and_says_why_it_has_no_alarms() -> None:
    import signal

    calls = []

    def mine(data_source: str, solution_str: str, ground_truth: Any) -> float:
        calls.append(solution_str)
        if len(calls) == 2:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
        return 1.0

    scoring = Scorer(reward_function(mine, {}), Reward(), decode)
    first, second = await scored(scoring, trajectory(), trajectory())
    assert (first.reward, len(calls)) == (1.0, 2)
    assert "signal only works in main thread" in str(second.error)
    assert "set reward.custom_reward_function.path, which gives it a process" in str(second.error)


async def test_a_function_of_the_program_that_hangs_leaves_no_thread_at_work() -> None:
    turns = [0]

    def spins(data_source: str, solution_str: str, ground_truth: Any) -> float:
        while solution_str:
            turns[0] += 1
        return 1.0

    (hung,) = await scored(Scorer(reward_function(spins, {}), Reward(timeout=0.5), decode), trajectory())
    assert "no answer within 0.5 s" in str(hung.error)
    await asyncio.sleep(0.05)
    before = turns[0]
    await asyncio.sleep(0.1)
    assert turns[0] == before


async def test_a_module_that_does_not_load_twice_stays_here(tmp_path: Path, caplog: Any) -> None:
    code = "import os\nos.mkdir(os.path.join(os.path.dirname(__file__), 'once'))\n"
    code += "def mine(data_source, solution_str, ground_truth):\n    return {'score': 1.0, 'pid': os.getpid()}\n"
    (tmp_path / "once.py").write_text(code)
    scoring = Scorer(load_reward_function(str(tmp_path / "once.py"), "mine", {}), Reward(), decode)
    made = await scored(scoring, trajectory(), trajectory())
    assert [subject.reward_extra["pid"] for subject in made] == [os.getpid()] * 2
    assert caplog.text.count("the reward function runs in a thread, which cannot be killed") == 1


async def test_a_network_is_not_loaded_twice(tmp_path: Path) -> None:
    code = "import os, torch\nnetwork = torch.nn.Linear(1, 1)\n"
    code += "def mine(data_source, solution_str, ground_truth):\n"
    code += "    return {'score': network.weight.sum() * 0, 'pid': os.getpid()}\n"
    (tmp_path / "net.py").write_text(code)
    fn = load_reward_function(str(tmp_path / "net.py"), "mine", {})
    (made,) = await scored(Scorer(fn, Reward(), decode), trajectory())
    assert (made.reward, made.reward_extra["pid"]) == (0.0, os.getpid())


async def test_a_process_that_dies_between_calls_costs_nothing(tmp_path: Path) -> None:
    scoring = scorer(tmp_path)
    first, second = asked(""), asked("")
    await scoring.score(first)
    os.kill(int(first.reward_extra["pid"]), 9)
    assert await until(lambda: _ended(int(first.reward_extra["pid"])))
    await scored(scoring, second)
    assert (second.error, second.reward) == (None, 1.0)
