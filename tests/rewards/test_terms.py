"""Several reward functions: their weighted sum, each one's score, and no sum where one of them fails."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.api.settings import Given, experiment, settings
from agentrl.config.schema import Config, Reward
from agentrl.config.schema.reward import RewardTerm
from agentrl.core.errors import UserError
from agentrl.rewards.managers import manager_for
from agentrl.rewards.scorer import Scorer
from agentrl.rewards.terms import Term, load_terms
from agentrl.trajectory.trajectory import Outcome, Trajectory
from tests.rewards.test_scorer import decode, reward_fn, trajectory


def correct(data_source: str, solution_str: str, ground_truth: Any) -> float:
    return 1.0


async def short(data_source: str, solution_str: str, ground_truth: Any, **kwargs: Any) -> dict[str, float]:
    return {"score": 0.5, "acc": 1.0}


async def fails(data_source: str, solution_str: str, ground_truth: Any) -> float:
    raise ValueError("no verdict")


def term(name: str, function: Callable[..., Any], weight: float = 1.0) -> Term:
    fn = reward_fn(function, ())
    return Term(manager_for(Reward(), fn), fn, weight, name)


async def scored(*terms: Term, function: Callable[..., Any] | None = None) -> Trajectory:
    subject = trajectory()
    fn = None if function is None else reward_fn(function, ())
    scorer = Scorer(fn, Reward(), decode, terms=terms)
    await scorer.score(subject)
    await scorer.close()
    return subject


async def test_the_reward_is_the_weighted_sum_and_each_score_is_logged() -> None:
    made = await scored(term("correct", correct), term("short", short, 0.2), term("watched", correct, 0.0))
    assert made.reward == pytest.approx(1.1)
    assert made.reward_extra == {"correct": 1.0, "short": 0.5, "acc": 1.0, "watched": 1.0}


async def test_the_one_function_of_the_settings_is_a_term_too() -> None:
    made = await scored(term("short", short), function=correct)
    assert (made.reward, made.reward_extra["mine"], made.reward_extra["short"]) == (1.5, 1.0, 0.5)


async def test_a_failure_of_one_masks_the_trajectory() -> None:
    made = await scored(term("correct", correct), term("fails", fails))
    assert made.outcome is Outcome.INFRA_ERROR
    assert made.reward is None
    assert "reward function fails failed: ValueError: no verdict" in str(made.error)


async def test_async_ones_run_together() -> None:
    met = asyncio.Barrier(2)

    async def meets(data_source: str, solution_str: str, ground_truth: Any) -> float:
        await met.wait()
        return 1.0

    assert (await scored(term("one", meets), term("two", meets))).reward == 2.0


async def test_two_values_of_one_name_end_the_run() -> None:
    with pytest.raises(UserError, match="two values are called 'acc'"):
        await scored(term("one", short), term("two", short))
    with pytest.raises(UserError, match="two values are called 'acc'"):
        await scored(term("acc", short))


def test_files_and_objects_load_by_their_names(tmp_path: Path) -> None:
    file = tmp_path / "rewards.py"
    file.write_text("def brief(data_source, solution_str, ground_truth, extra_info=None, limit=9): return 1.0\n")
    terms = {
        "brief": RewardTerm(str(file), reward_kwargs={"limit": 5}),
        "number": RewardTerm(name="agentrl.rewards.scorers:final_number"),
        "mine": RewardTerm("<python: correct>"),
    }
    found = load_terms(Reward(functions=terms).functions, {"mine": correct}, batch=False)
    assert [(name, fn.name) for name, fn in found.items()] == [
        ("brief", "brief"),
        ("number", "final_number"),
        ("mine", "correct"),
    ]
    assert found["brief"].kwargs == {"limit": 5}
    assert found["mine"].shared
    assert [*load_terms(terms, {}, batch=False)] == ["brief", "number"]


@pytest.mark.parametrize(
    ("term", "message"),
    [
        (RewardTerm(), "reward.functions.x.name=x names no file; set reward.functions.x.path"),
        (RewardTerm("agentrl.rewards.scorers"), "reward.functions.x.name: agentrl.rewards.scorers has no 'x'"),
        (RewardTerm(name="agentrl.rewards.function:solution"), "reward.functions.x: solution.*does not fit"),
    ],
)
def test_mistakes_name_the_setting(term: RewardTerm, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_terms({"x": term}, {}, batch=False)


def given(reward: Any) -> tuple[Config, Any]:
    settled = settings(["reward.custom_reward_function.name=a:b"], Config, preset="train", config_dir=None)
    return settled, experiment(settled, Given(reward=reward), ())


@pytest.mark.parametrize(
    "reward", [[correct, ("rewards.py:brief", 0.2)], {"correct": correct, "brief": ("rewards.py:brief", 0.2)}]
)
def test_python_takes_a_list_or_a_dict(reward: Any) -> None:
    config, objects = given(reward)
    assert config.reward.functions == {
        "correct": RewardTerm("<python: correct>", "correct"),
        "brief": RewardTerm("rewards.py", "brief", 0.2),
    }
    assert objects.rewards == {"correct": correct}
    assert objects.reward is None
    assert config.reward.custom_reward_function.name == "compute_score"  # the list replaces it


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ([correct, correct], "two reward functions are called correct: pass a dict"),
        ([(correct, "high")], "reward correct: the weight is 'high'"),
        ([3], "a reward is 3: pass a function"),
    ],
)
def test_python_mistakes(reward: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        given(reward)
