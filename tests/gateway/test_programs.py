"""Agent programs: started, recorded, ended with all that they started."""

import asyncio
import os
import socket
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from agentrl.core import shares
from agentrl.core.errors import InfraError, UserError
from agentrl.engines.engine import Sampling
from agentrl.gateway.loop import _warn_that_it_runs_here
from agentrl.rollout.loops import loop_class
from agentrl.rollout.scheduler import Scheduler
from agentrl.trajectory.trajectory import Outcome, Trajectory
from tests.rollout.scripted import Script, environment, row, says

pytestmark = pytest.mark.integration

ASK = """
import json, os, sys, urllib.request

def ask(text, history=[]):
    history.append({"role": "user", "content": text})
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"messages": history}).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
    )
    answer = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    history.append(answer)
    return answer["content"]

"""
PLAIN = 'print(ask(sys.argv[1]))\nprint(ask("Sure?"))\nopen(os.environ["PWD"] + "/result.txt", "w").write("done")\n'


def written(folder: Path, code: str, /, **entry: object) -> str:
    (folder / "agent.py").write_text(ASK + code)
    words = {"command": "python3 agent.py {prompt}", **entry}
    lines = [f"  {key}: {value}" for key, value in words.items() if value is not None]
    (folder / "agents.yaml").write_text("\n".join(["- name: mine", *lines]))
    return str(folder / "agents.yaml")


async def play(path: str, script: Script, *, name: str = "mine", turn: int = 64, **limits: int) -> Trajectory:
    env, _ = environment(script, **{"model_length": 2048} | limits)
    trajectory = Trajectory(row(), "k", 0)
    await loop_class(name, path)(env).run(trajectory, Sampling(turn, seed=1))
    return trajectory


async def test_a_command_is_recorded(tmp_path: Path) -> None:
    trajectory = await play(written(tmp_path, PLAIN), says("The answer is 5 .", "Yes"))
    (ledger,) = trajectory.ledgers
    ledger.check()
    assert [message["content"] for message in trajectory.messages][::2] == ["What is 2 + 3 ?", "Sure?"]
    assert (trajectory.turns, trajectory.outcome) == (2, Outcome.OK)
    about = trajectory.extra["program"]
    assert (about["exit_code"], about["output"]) == (0, "The answer is 5 .\nYes\n")
    assert (Path(about["folder"]) / "result.txt").read_text() == "done"
    assert trajectory.extra["gateway"] == {"requests": 2, "ledgers": 1}
    del trajectory
    assert not os.path.exists(about["folder"])  # noqa: ASYNC240


async def test_each_rollout_worker_has_a_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv(shares.VARIABLE, "1/2")
    code = 'ask(sys.argv[1]); print(os.environ["OPENAI_BASE_URL"], sys.argv[2])\n'
    path = written(tmp_path, code, command="python3 agent.py {prompt} {port}", port=port - 1)
    output = (await play(path, says("5"))).extra["program"]["output"]
    assert (f"127.0.0.1:{port}/s/" in output, output.split()[-1]) == (True, str(port))


async def test_the_scheduler_runs_many_at_once(tmp_path: Path) -> None:
    path = written(tmp_path, PLAIN, max_concurrent=2)
    env, engine = environment(says("Yes", "No"), model_length=2048)
    kind = loop_class("mine", path)
    scheduler = Scheduler(env=env, loop_for=lambda _: kind, scorer=Scored(), max_concurrent=4, timeout=60, retries=0)
    made = await scheduler.run([row("r:0"), row("r:1")], n=2, sampling=Sampling(64, seed=1), tag="1")
    assert [t.turns for t in made] == [2, 2, 2, 2]
    assert sorted(engine.prompts) == sorted(t.key for t in made)


class Scored:
    async def score(self, trajectory: Trajectory) -> None:
        trajectory.reward = 1.0

    def expect(self, keys: list[str]) -> None:
        pass

    async def close(self) -> None:
        pass


async def test_exit_codes_and_timeouts_are_outcomes(tmp_path: Path) -> None:
    code = 'ask("x")\nprint("no luck")\nsys.exit(3)\n'
    with pytest.raises(InfraError, match="agent mine ended with code 3: no luck"):
        await play(written(tmp_path, code), says("Yes"))
    trajectory = await play(written(tmp_path, code, exit_codes='{"3": model_error}'), says("Yes"))
    assert (trajectory.outcome, trajectory.error) == (Outcome.MODEL_ERROR, "agent mine ended with code 3: no luck")
    with pytest.raises(InfraError, match="ended with code 0 and made no request to the gateway .*: gone elsewhere"):
        await play(written(tmp_path, 'print("gone elsewhere")'), says("Yes"))
    with pytest.raises(InfraError, match="code 1 and got no turn of the model: all its requests were refused"):
        await play(written(tmp_path, PLAIN), says("Yes"), model_length=8)
    late = written(tmp_path, 'ask("x")\nimport time\ntime.sleep(60)', timeout=3, exit_codes="{timeout: model_error}")
    trajectory = await play(late, says("Yes"))
    assert (trajectory.outcome, trajectory.finish) == (Outcome.MODEL_ERROR, "timeout")
    with pytest.raises(InfraError, match="the engine is down"):
        await play(written(tmp_path, PLAIN), says(InfraError("the engine is down")))


async def test_the_turn_limit_ends_the_program(tmp_path: Path) -> None:
    path = written(tmp_path, 'while True:\n    try:\n        ask("x")\n    except OSError:\n        pass\n')
    trajectory = await play(path, says("Yes", "Yes", "Yes"), assistant_turns=2)
    assert (trajectory.turns, trajectory.finish, trajectory.outcome) == (2, "max_turns", Outcome.OK)


LITTER = """
ask("x")
import subprocess
inner = "import os,time; open(os.environ['PIDS'],'a').write(f'{os.getpid()} '); time.sleep(600)"
outer = f"import subprocess,sys; subprocess.Popen([sys.executable,'-c',{inner!r}],start_new_session=True); " + inner
subprocess.Popen([sys.executable, "-c", outer], start_new_session=True)
subprocess.Popen([sys.executable, "-c", inner])
import time
time.sleep(600)
"""
"""Starts three processes that do not end, two of them in sessions of their own."""


@pytest.mark.prevents("an agent program leaves processes behind")
async def test_nothing_that_it_started_is_left(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pids.touch()
    task = asyncio.create_task(play(written(tmp_path, LITTER, env=f'{{PIDS: "{pids}"}}'), says("Yes")))
    while len(pids.read_text().split()) < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not [pid for pid in pids.read_text().split() if _alive(int(pid))]


def test_nothing_outlives_a_killed_trainer(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pids.touch()
    path = written(tmp_path, LITTER, env=f'{{PIDS: "{pids}"}}')
    trainer = get_context("fork").Process(target=lambda: asyncio.run(play(path, says("Yes"))))
    trainer.start()
    while len(pids.read_text().split()) < 3:
        time.sleep(0.05)
    trainer.kill()
    trainer.join()
    assert not [pid for pid in pids.read_text().split() if _alive(int(pid))]


async def test_programs_start_in_turns(tmp_path: Path) -> None:
    """One at a time, each until its first request; the engine answers neither before both have asked."""
    log = tmp_path / "log"
    code = f"""
import time
log = open({str(log)!r}, "a", buffering=1)
log.write("start\\n")
time.sleep(0.3)
log.write("asks\\n")
ask("x")
"""
    path = written(tmp_path, code, max_starting=1)
    env, engine = environment(says("Yes"), model_length=2048)
    engine.generate = _after(lambda: log.read_text().count("asks") == 2, engine.generate)  # type: ignore[method-assign]
    kind = loop_class("mine", path)
    await asyncio.gather(*(kind(env).run(Trajectory(row(), f"k{i}", i), Sampling(64)) for i in range(2)))
    assert log.read_text().split() == ["start", "asks"] * 2


def _after(condition: Callable[[], bool], call: Callable[..., Any]) -> Callable[..., Any]:
    async def called(*args: Any, **kwargs: Any) -> Any:
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return await call(*args, **kwargs)

    return called


def _alive(pid: int) -> bool:
    for _ in range(500):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize("define", ["def", "async def"])
async def test_a_python_function_is_an_agent(tmp_path: Path, define: str) -> None:
    wait = "await client.chat" if define == "async def" else "client.chat"
    kind = "AsyncOpenAI" if define == "async def" else "OpenAI"
    (tmp_path / f"agent_{kind}.py").write_text(
        f"import openai\n{define} run(prompt, openai_url, key):\n"
        f"    client = openai.{kind}(base_url=openai_url, api_key=key)\n"
        "    said = [{'role': 'user', 'content': prompt}]\n"
        f"    return ({wait}.completions.create(model='m', messages=said)).choices[0].message.content\n"
    )
    trajectory = await play(written(tmp_path, "", command=None, python=f"agent_{kind}.run"), says("The answer is 5 ."))
    assert trajectory.extra["program"]["result"] == "The answer is 5 ."
    (ledger,) = trajectory.ledgers
    ledger.check()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"command": "nosuchprogram"}, "command: nosuchprogram is not there; install it"),
        ({"image": "debian", "network": 1, "memory": "much"}, "memory is 'much': write a size such as"),
        ({"image": "debian", "folder": "work"}, "folder='work': write the path of a folder in the container"),
        ({"memory": "4g"}, "memory is for containers: leave it out, or add image"),
        ({"python": "agent.run"}, "write either command or python"),
        ({"timeoutt": 5}, "unknown key 'timeoutt'; did you mean timeout"),
        ({"timeout": "soon"}, "timeout is 'soon': write a number"),
        ({"exit_codes": "{1: fine}"}, "exit_codes: write numbers, or timeout, with ok"),
        ({"port": 70000}, "port=70000: write a number up to 65535"),
        ({"sampling": "mine"}, "sampling='mine': write run"),
        ({"env": "[1]"}, "env is .*: write a table"),
    ],
)
def test_mistakes_are_named_in_a_line(tmp_path: Path, entry: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=f"agents.yaml: mine: {message}"):
        loop_class("mine", written(tmp_path, "", **entry))


def test_two_entries_do_not_share_a_name(tmp_path: Path) -> None:
    file = Path(written(tmp_path, ""))
    file.write_text(f"{file.read_text()}\n- name: other\n  command: 'true'\n- name: mine\n  command: 'true'\n")
    with pytest.raises(UserError, match="two of its entries have the same name: rename one; it has mine, other"):
        loop_class("mine", str(file))


def test_the_loop_alone_has_nothing_to_run(tmp_path: Path) -> None:
    env, _ = environment(says())
    with pytest.raises(UserError, match="name its entry in rollout.agent.agent_loop_config_path"):
        asyncio.run(loop_class("program")(env).run(Trajectory(row(), "k", 0), Sampling(8)))


SPY = """
ask("Hi")
watchdog = os.getppid()
trainer = int(open(f"/proc/{watchdog}/stat").read().split(") ")[1].split()[1])
for what in ("environ", "cwd/pyproject.toml", "maps", "mem"):
    try:
        print("read", what, open(f"/proc/{trainer}/{what}", "rb").read(9))
    except PermissionError:
        print("closed", what)
try:
    os.kill(trainer, 0)
    print("may signal")
except PermissionError:
    print("may not signal")
print(sorted(name for name in os.environ if "SECRET" in name), os.environ["GIVEN"], bool(os.environ["HOME"]))
"""


@pytest.mark.prevents("an agent program reads the trainer's tokens, or fills the disk")
async def test_a_program_sees_nothing_of_the_trainer_but_what_its_entry_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "s")
    monkeypatch.setenv("SECRET_GIVEN", "given")
    path = written(tmp_path, SPY, env="{GIVEN: '<${SECRET_GIVEN}>'}")
    _warn_that_it_runs_here.cache_clear()
    seen = (await play(path, says("Hi"))).extra["program"]["output"].splitlines()
    assert seen[:-1] == ["closed environ", "closed cwd/pyproject.toml", "closed maps", "closed mem", "may not signal"]
    assert seen[-1] == "[] <given> True"
    await play(path, says("Hi"))
    assert [r.getMessage().partition(":")[0] for r in caplog.records if r.name != "asyncio"] == [
        "agent mine runs on this host, as you"
    ]
    monkeypatch.delenv("SECRET_GIVEN")
    with pytest.raises(UserError, match="mine: env: the environment variable SECRET_GIVEN is not set"):
        await play(path, says("Hi"))


async def test_of_a_flood_of_output_both_ends_are_written(tmp_path: Path) -> None:
    flood = 'ask("Hi")\nprint("begin")\nfor _ in range(200): sys.stdout.write("x" * 10**6)\nprint("end")\n'
    trajectory = await play(written(tmp_path, flood), says("Hi"))
    about = trajectory.extra["program"]
    log = Path(about["folder"]).parent / "output.log"
    text = log.read_text()
    assert len(text) < 200_000
    assert (text[:6], text[-5:], about["output"][-5:]) == ("begin\n", "xend\n", "xend\n")
    assert f"[... {200_000_000 + 6 + 4 - 2 * (1 << 16)} bytes left out ...]" in text
