"""What a trajectory is worth, and that no failure ever counts as a bad answer."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.config.schema import Reward
from agentrl.core.errors import UserError
from agentrl.rewards.function import RewardFn
from agentrl.rewards.scorer import Scorer, ScoreSources
from agentrl.trajectory.ledger import Ledger, Source
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Outcome, ToolCallRecord, Trajectory, TurnReward

WORDS = ["<pad>", "ask", "call", "tool-says-42", "glue", "answer-7", "hint", "answer-9"]


def decode(ids: list[int]) -> str:
    return " ".join(WORDS[i] for i in ids)


def ledger(*pieces: tuple[int, Source, int]) -> Ledger:
    made = Ledger()
    made.append_prompt([1])
    for token, source, turn in pieces:
        if source is Source.MODEL:
            made.append_model([token], [-0.5], turn=turn, version=0)
        else:
            made.append_observation([token], source, turn=turn)
    made.check()
    return made


def trajectory(*ledgers: Ledger, **changes: Any) -> Trajectory:
    row = Row("f:1", [{"role": "user", "content": "q"}], "src", None, {"ground_truth": "42"}, {"index": 3})
    conversation = ledger(
        (2, Source.MODEL, 0),
        (3, Source.TOOL, 0),
        (4, Source.TEMPLATE, 0),
        (5, Source.MODEL, 1),
        (6, Source.USER, 1),
        (7, Source.MODEL, 2),
    )
    return Trajectory(row, "0/f:1/0", 0, ledgers=list(ledgers) or [conversation], turns=3, **changes)


def reward_fn(function: Callable[..., Any], accepted: tuple[str, ...] = ("extra_info",), **kwargs: Any) -> RewardFn:
    return RewardFn(function, "mine", kwargs, frozenset(accepted))


def scorer(function: Callable[..., Any] | None, accepted: tuple[str, ...] = ("extra_info",), **changes: Any) -> Scorer:
    fn = None if function is None else reward_fn(function, accepted)
    objects = {name: changes.pop(name) for name in ("manager", "reward_model", "sources") if name in changes}
    defaults = {"tool_weight": 1.0, "interaction_weight": 1.0, "num_workers": 2, "timeout": 5.0}
    return Scorer(fn, Reward(**{**defaults, **changes}), decode, **objects)


async def scored(function: Callable[..., Any] | None, subject: Trajectory | None = None, **changes: Any) -> Trajectory:
    subject = subject or trajectory()
    await scorer(function, **changes).score(subject)
    return subject


async def seen(subject: Trajectory) -> dict[str, Any]:
    """The arguments that a reward function gets for a trajectory."""
    got: dict[str, Any] = {}

    def function(**arguments: Any) -> float:
        got.update(arguments)
        return 1.0

    await scored(function, subject)
    return got


@pytest.mark.prevents("reward functions read tool output as the model's text")
async def test_the_function_sees_the_models_words_only() -> None:
    assert (await seen(trajectory()))["solution_str"] == "call\nanswer-7\nanswer-9"


async def test_a_turn_in_several_ledgers_counts_once() -> None:
    before = ledger((2, Source.MODEL, 0), (5, Source.MODEL, 1))
    after = ledger((5, Source.MODEL, 1), (7, Source.MODEL, 2))  # history up to turn 1 was rewritten
    assert (await seen(trajectory(before, after)))["solution_str"] == "call\nanswer-7\nanswer-9"


async def test_arguments_are_verls() -> None:
    subject = trajectory(user_turns=1, tool_rewards={"bank": 0.5}, interaction_score=0.25)
    subject.tool_calls = [ToolCallRecord(0, "bank", {}, "", Outcome.OK, 0.0)] * 2  # two calls in one turn
    subject.turn_rewards = [TurnReward(0, 0.1, "tool"), TurnReward(1, 0.2, "interaction")]
    got = await seen(subject)
    assert (got["data_source"], got["ground_truth"]) == ("src", "42")
    assert got["extra_info"] == {
        "index": 3,
        "num_turns": 6,  # prompt, call, result, answer, objection, answer
        "rollout_reward_scores": {
            "bank": 0.5,
            "user_turn_rewards": [0.2],
            "tool_turn_rewards": [0.1],
            "interaction_score": 0.25,
        },
    }
    assert subject.row.extra_info == {"index": 3}


async def test_trajectory_is_given_only_to_functions_that_ask() -> None:
    got = []
    await scored(
        lambda data_source, solution_str, ground_truth, trajectory: got.append(trajectory) or 1.0,
        accepted=("trajectory",),
    )
    assert isinstance(got[0], Trajectory)
    assert "trajectory" not in await seen(trajectory())


@pytest.mark.parametrize("value", [1, 0.5, True, np.float32(0.5), np.int64(2), torch.tensor(0.25)])
async def test_every_kind_of_number(value: Any) -> None:
    subject = await scored(lambda **_: value)
    assert type(subject.reward) is float
    assert subject.reward == float(value)
    assert subject.outcome is Outcome.OK


async def test_async_functions() -> None:
    async def function(**_: Any) -> float:
        await asyncio.sleep(0)
        return 0.5

    assert (await scored(function)).reward == 0.5


async def test_dicts_keep_all_their_values_and_numbers_as_floats() -> None:
    subject = await scored(lambda **_: {"score": 1, "acc": True, "pred": "42", "len": np.int32(3)})
    assert subject.reward == 1.0
    assert subject.reward_extra == {"score": 1.0, "acc": 1.0, "pred": "42", "len": 3.0}


@pytest.mark.prevents("rewards of tools and turns are collected and ignored")
async def test_scores_add_up() -> None:
    subject = trajectory(tool_rewards={"a": 0.5, "b": 0.25}, interaction_score=1.0)
    await scored(lambda **_: 2.0, subject, tool_weight=2.0, interaction_weight=0.1)
    assert subject.reward == pytest.approx(2.0 + 2.0 * 0.75 + 0.1)
    subject = await scored(None, trajectory(tool_rewards={"a": 0.5}))
    assert subject.reward == 0.5


def raising(**_: Any) -> float:
    raise ValueError("no such key\nwith a second line")


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (raising, "reward function mine failed: ValueError: no such key"),
        (lambda **_: None, "mine returned None, not a finite number"),
        (lambda **_: float("nan"), "mine returned nan, not a finite number"),
        (lambda **_: "0.5", "mine returned '0.5', not a finite number"),
        (lambda **_: {"acc": 1.0}, 'mine returned a dict without "score"; it has acc'),
        (lambda **_: {"score": None}, "mine returned None, not a finite number"),
        (lambda **_: np.zeros(2), "not a finite number"),
    ],
)
async def test_failures_are_infrastructure_errors_and_never_zero(function: Callable[..., Any], error: str) -> None:
    subject = await scored(function, trajectory(tool_rewards={"a": 1.0}))
    assert subject.outcome is Outcome.INFRA_ERROR
    assert subject.reward is None
    assert error in str(subject.error)
    assert not subject.trainable


async def test_a_mistake_of_the_persons_ends_the_run() -> None:
    # Masked it would be worse than a crash: answers that need no package to be judged would teach alone.
    def picky(**_: Any) -> float:
        raise UserError("math-verify is not installed")

    with pytest.raises(UserError, match="math-verify is not installed"):
        await scored(picky)


async def test_a_time_limit_of_the_functions_own_is_told_as_such() -> None:
    def late(**_: Any) -> float:
        raise TimeoutError("the database did not answer")

    assert "the database did not answer" in str((await scored(late)).error)


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
async def test_a_reward_model_that_says_no_number_masks_the_sample(score: float) -> None:
    async def model(_: Trajectory) -> float:
        return score

    subject = await scored(None, reward_model=model)
    assert (subject.outcome, subject.reward) == (Outcome.INFRA_ERROR, None)


async def test_the_error_names_the_line() -> None:
    subject = await scored(raising)
    assert f"({__file__}:" in str(subject.error)


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_slow_function_costs_its_own_timeout_and_nothing_else(asynchronous: bool) -> None:
    async def slow_async(**_: Any) -> float:
        await asyncio.sleep(90)
        return 1.0

    def slow(**_: Any) -> float:
        time.sleep(90)
        return 1.0

    shared = scorer(slow_async if asynchronous else slow, timeout=0.2, num_workers=2)
    subjects = [trajectory() for _ in range(4)]
    start = time.monotonic()
    await asyncio.gather(*(shared.score(subject) for subject in subjects))
    assert time.monotonic() - start < 60  # two at a time, 0.2 s each
    assert {subject.outcome for subject in subjects} == {Outcome.INFRA_ERROR}
    assert "no answer within 0.2 s" in str(subjects[0].error)


async def test_num_workers_bounds_what_runs_at_once() -> None:
    running, peak = 0, 0

    def function(**_: Any) -> float:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        time.sleep(0.05)
        running -= 1
        return 1.0

    shared = scorer(function, num_workers=3)
    await asyncio.gather(*(shared.score(trajectory()) for _ in range(9)))
    assert peak == 3


async def test_a_sync_function_does_not_block_the_loop() -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    await scored(lambda **_: time.sleep(0.3) or 1.0)
    ticking.cancel()
    assert ticks > 5


async def test_infrastructure_errors_are_not_scored() -> None:
    subject = trajectory(outcome=Outcome.INFRA_ERROR, error="the tool died")
    await scored(lambda **_: 1.0, subject)
    assert (subject.reward, subject.error) == (None, "the tool died")


def test_nothing_that_could_score() -> None:
    tools = ScoreSources(interactions=False)
    with pytest.raises(UserError, match=r"set reward.custom_reward_function.path"):
        scorer(None, sources=ScoreSources(tools=False, interactions=False))
    with pytest.raises(UserError, match=r"nothing gives a reward"):
        scorer(None, tool_weight=0.0, sources=tools)
    scorer(None, sources=tools)
    scorer(lambda **_: 1.0, sources=ScoreSources(tools=False, interactions=False))


async def test_an_answer_that_a_function_judges_counts_once() -> None:
    """Weights that nobody sets: tools and interactions are reported, and added where nothing else scores."""
    alone = {"tool_weight": None, "interaction_weight": None}
    both = trajectory(tool_rewards={"check": 1.0}, interaction_score=1.0)
    assert (await scored(lambda **_: 1.0, both, **alone)).reward == 1.0
    acting = trajectory(tool_rewards={"check": 1.0}, interaction_score=0.5)
    assert (await scored(None, acting, **alone)).reward == 1.5
    asked = trajectory(tool_rewards={"check": 1.0}, interaction_score=1.0)
    assert (await scored(lambda **_: 1.0, asked, tool_weight=0.5, interaction_weight=None)).reward == 1.5


def test_what_is_left_out_is_known() -> None:
    assert scorer(lambda **_: 1.0, tool_weight=None, interaction_weight=1.0).left_out == (True, False)
    assert scorer(None, tool_weight=None, interaction_weight=None).left_out == (False, False)


async def test_an_answer_that_did_not_stop_scores_zero() -> None:
    strict = Reward(zero_unless_stopped=True)
    for reward, finish, expected in ((strict, "length", 0.0), (strict, "stop", 1.0), (Reward(), "length", 1.0)):
        subject = trajectory(finish=finish)
        await Scorer(reward_fn(lambda **_: {"score": 1.0}), reward, decode).score(subject)
        assert (subject.reward, subject.reward_extra["score"]) == (expected, 1.0)
