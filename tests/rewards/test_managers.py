"""How a reward function is called: in threads, in processes that can be killed, or once with lists."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.config.choices import REWARD_MANAGERS
from agentrl.config.schema.reward import OverlongBuffer, Reward, RewardManager
from agentrl.core import isolated
from agentrl.core.errors import InfraError, UserError
from agentrl.rewards.function import RewardFn, load_reward_function
from agentrl.rewards.managers import Calls, manager_for
from agentrl.rewards.scorer import Scorer, length_penalty
from agentrl.trajectory.trajectory import Outcome
from tests.rewards.test_scorer import decode, reward_fn, trajectory

pytestmark = pytest.mark.integration

MODULE = """
import os, time

def compute_score(data_source, solution_str, ground_truth, extra_info=None, trajectory=None, *, bonus):
    print("what a function prints does not disturb its answers")
    if solution_str.startswith("call"):
        return {"score": float(len(solution_str)) + bonus, "pid": os.getpid(), "key": len(trajectory.key)}
    return 0.0

async def later(data_source, solution_str, ground_truth):
    return 2.0

def hangs(data_source, solution_str, ground_truth):
    time.sleep(600)
    return 1.0

def dies(data_source, solution_str, ground_truth):
    os._exit(3)
    return 1.0

def breaks(data_source, solution_str, ground_truth):
    raise KeyError("nothing here")

def picky(data_source, solution_str, ground_truth):
    from agentrl.core.errors import UserError
    raise UserError("install it")

def together(data_sources, solution_strs, ground_truths, extra_infos=None, *, bonus=0.0):
    assert all(info["index"] == 3 for info in extra_infos)
    return [{"score": len(solution_strs) + bonus + i, "truth": float(t)} for i, t in enumerate(ground_truths)]

def too_few(data_sources, solution_strs, ground_truths, extra_infos=None):
    return [1.0]
"""


@pytest.fixture
def module(tmp_path: Path) -> str:
    path = tmp_path / "manager_judges.py"
    path.write_text(MODULE)
    return str(path)


def scorer(module: str, name: str, manager: str, *, timeout: float = 30.0, **kwargs: float) -> Scorer:
    fn = load_reward_function(module, name, kwargs, batch=manager == "batch")
    named = RewardManager(name=manager)
    reward = Reward(tool_weight=0.0, interaction_weight=0.0, num_workers=2, timeout=timeout, reward_manager=named)
    return Scorer(fn, reward, decode)


async def outcomes(scoring: Scorer, count: int) -> list:
    subjects = [trajectory() for _ in range(count)]
    scoring.expect([subject.key for subject in subjects])
    try:
        await asyncio.gather(*(scoring.score(subject) for subject in subjects))
    finally:
        await scoring.close()
    return subjects


async def test_prime_scores_in_processes_of_its_own(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated, "IDLE_WAIT_SECONDS", 60.0)  # on a busy machine a quick call may take long
    subjects = await outcomes(scorer(module, "compute_score", "prime", bonus=0.5), 4)
    assert [t.reward for t in subjects] == [len("call\nanswer-7\nanswer-9") + 0.5] * 4
    workers = {t.reward_extra["pid"] for t in subjects}
    assert len(workers) == 1  # quick calls share one
    assert os.getpid() not in workers
    assert subjects[0].reward_extra["key"] == len("0/f:1/0")
    for pid in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("hangs", "no answer within 0.5 s"),
        ("dies", "its process died (exit code 3)"),
        ("breaks", "failed: KeyError: 'nothing here'"),
    ],
)
async def test_prime_survives_what_functions_do(module: str, name: str, why: str) -> None:
    scoring = scorer(module, name, "prime", timeout=0.5 if name == "hangs" else 30.0)
    (subject,) = await outcomes(scoring, 1)
    assert subject.outcome is Outcome.INFRA_ERROR
    assert why in subject.error
    assert subject.reward is None


async def test_prime_waits_for_no_module_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sleepy.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setattr(isolated, "START", 0.5)
    fn = RewardFn(lambda: 0.0, "mine", {}, frozenset(), (str(tmp_path / "sleepy.py"), "mine"))
    with pytest.raises(InfraError, match=r"no answer within 0.5 s"):
        await Calls(fn, 30.0, 1, required=True)({})


async def test_a_mistake_of_the_persons_comes_out_of_a_process_as_one(module: str) -> None:
    with pytest.raises(UserError, match="install it"):
        await outcomes(scorer(module, "picky", "prime"), 1)


async def test_prime_takes_async_functions_and_refuses_the_sandbox(module: str) -> None:
    assert [t.reward for t in await outcomes(scorer(module, "later", "prime"), 1)] == [2.0]
    asks = reward_fn(lambda **given: 0.0, ("sandbox",))
    with pytest.raises(UserError, match="prime: mine asks for `sandbox`"):
        manager_for(Reward(), asks, "prime")


async def test_batch_calls_once_with_lists(module: str) -> None:
    subjects = await outcomes(scorer(module, "together", "batch", bonus=0.25), 3)
    assert [t.reward for t in subjects] == [3.25, 4.25, 5.25]
    assert subjects[0].reward_extra["truth"] == 42.0


async def test_batch_does_not_wait_for_failed_trajectories(module: str) -> None:
    scoring = scorer(module, "together", "batch")
    subjects = [trajectory(), trajectory(outcome=Outcome.INFRA_ERROR), trajectory()]
    scoring.expect([subject.key for subject in subjects])
    await asyncio.wait_for(asyncio.gather(*(scoring.score(subject) for subject in subjects)), 10)
    assert [t.reward for t in subjects] == [2.0, None, 3.0]


async def test_batches_that_run_beside_each_other_are_scored_apart(module: str) -> None:
    """A call does not wait for the other batch, nor for trajectories that were cancelled and are expected again."""
    scoring = scorer(module, "together", "batch")
    batches = [[replace(trajectory(), key=f"{tag}/r/{i}") for i in range(3)] for tag in ("1", "2")]
    for batch in (*batches, batches[1]):
        scoring.expect([subject.key for subject in batch])
    gone = asyncio.create_task(scoring.score(batches[0][0]))
    await asyncio.wait_for(asyncio.gather(*(scoring.score(subject) for subject in batches[1])), 10)
    gone.cancel()
    scoring.expect([subject.key for subject in batches[0]])
    await asyncio.wait_for(asyncio.gather(*(scoring.score(subject) for subject in batches[0])), 10)
    assert [[t.reward for t in batch] for batch in batches] == [[3.0, 4.0, 5.0]] * 2


async def test_a_batch_function_of_the_wrong_length_masks_all(module: str) -> None:
    subjects = await outcomes(scorer(module, "too_few", "batch"), 2)
    assert all("returned 1 values for 2 trajectories" in t.error for t in subjects)


def test_a_batch_function_takes_lists(module: str) -> None:
    with pytest.raises(UserError, match=r"make it later\(data_sources, solution_strs, ground_truths"):
        load_reward_function(module, "later", {}, batch=True)


@pytest.mark.parametrize("manager", sorted(set(REWARD_MANAGERS) - {"batch"}))
async def test_all_managers_agree(module: str, manager: str) -> None:
    assert [t.reward for t in await outcomes(scorer(module, "later", manager), 2)] == [2.0, 2.0]


@pytest.mark.parametrize(("tokens", "expected"), [(0, 0.0), (90, 0.0), (95, -0.25), (100, -0.5), (250, -0.5)])
def test_long_answers_cost_more_and_more(tokens: int, expected: float) -> None:
    assert length_penalty(OverlongBuffer(len=10, penalty_factor=0.5), 100, tokens) == pytest.approx(expected)


@pytest.mark.prevents("the overlong penalty counts tool tokens")
async def test_the_overlong_penalty_counts_the_models_tokens_only(module: str) -> None:
    # Six tokens after the prompt, three of them the model's: over a limit of 5, were the whole span counted.
    scoring = scorer(module, "later", "naive")
    scoring.overlong_buffer = OverlongBuffer(enable=True, max_resp_len=5, len=2)
    (subject,) = await outcomes(scoring, 1)
    assert subject.reward == 2.0
    assert subject.reward_extra["overlong"] == 0.0
    scoring.overlong_buffer = OverlongBuffer(enable=True, max_resp_len=4, len=2)
    (subject,) = await outcomes(scoring, 1)
    assert subject.reward == 1.5
    assert subject.reward_extra == {"overlong_reward": -0.5, "overlong": 1.0}
    paid, subject = subject.reward, trajectory()
    scoring.overlong_buffer = OverlongBuffer(enable=True, max_resp_len=4, len=2, log=False)
    await scoring.score(subject)
    assert subject.reward == paid
    assert "overlong" not in subject.reward_extra
