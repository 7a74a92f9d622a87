"""FIRE sampling: a hot first token, scored as the trainer scores it, and regular sampling after it."""

from collections import Counter
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

from agentrl.engines.engine import Generation, Sampling
from agentrl.rollout.first_token import CANDIDATES, redraw_first_token
from agentrl.rollout.loops import SingleTurn, ToolAgent
from agentrl.tools.loading import load_tools
from agentrl.trajectory.ledger import Ledger
from agentrl.trajectory.trajectory import Trajectory
from tests.rollout.scripted import END, calls, environment, row, says

ADD = """
from agentrl.tools import function_tool


@function_tool
def add(a: int) -> str:
    \"\"\"Add.

    Args:
        a: A number.
    \"\"\"
    return "3"
"""

PEAKED = Generation([1], [log(0.9)], "length", 0, candidates=((1, log(0.9)), (2, log(0.09)), (3, log(0.01))))


def test_the_first_token_is_drawn_hot_and_scored_cold() -> None:
    drawn = [redraw_first_token(PEAKED, Sampling(1, seed=seed)) for seed in range(600)]
    counts = Counter(generation.token_ids[0] for generation in drawn)
    assert min(counts[token] for token in (1, 2, 3)) > 120, "at temperature 30 all are about as likely"
    assert all(g.logprobs == [dict(PEAKED.candidates)[g.token_ids[0]]] for g in drawn)
    assert redraw_first_token(PEAKED, Sampling(1, seed=5)) == redraw_first_token(PEAKED, Sampling(1, seed=5))


def test_a_stop_token_ends_the_turn_and_another_is_gone_on_from() -> None:
    sampling = Sampling(9, seed=1, stop_token_ids=(1, 2, 3))
    assert redraw_first_token(PEAKED, sampling).finish_reason == "stop"
    assert redraw_first_token(PEAKED, replace(sampling, ignore_eos=True)).finish_reason == "abort"


def test_without_candidates_the_engines_own_draw_stands_and_the_turn_goes_on() -> None:
    bare = replace(PEAKED, candidates=())
    assert redraw_first_token(bare, Sampling(1, seed=1)) == replace(bare, finish_reason="abort")
    nothing = replace(bare, token_ids=[], logprobs=[], finish_reason="abort")
    assert redraw_first_token(nothing, Sampling(1)) is nothing


async def test_only_the_first_token_of_a_response_is_hot(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(ADD)
    tools = load_tools(None, str(tmp_path / "mine.py"), max_response=256, unit="characters", side="middle")
    env, scripted = environment(says(calls("add", '{"a": 1}'), "5"), tools=tools)
    asked: list[Sampling] = []
    hot = scripted.chat.tokenizer.encode("You", add_special_tokens=False)[0]

    class Engine:
        async def generate(self, token_ids: list[int], sampling: Sampling, *, key: str, media: Any = ()) -> Generation:
            asked.append(sampling)
            if sampling.candidates:
                return Generation([7], [-0.1], "length", 3, candidates=((hot, -4.0),))
            return await scripted.generate(token_ids, sampling, key=key)

    trajectory = Trajectory(row(), "k", 0)
    await ToolAgent(replace(env, engine=Engine())).run(trajectory, Sampling(64, seed=1, candidates=CANDIDATES))
    assert [(s.candidates, s.max_new_tokens == 1) for s in asked] == [(16, True), (0, False), (0, False)]
    ledger: Ledger = trajectory.ledgers[0]
    ledger.check()
    first = ledger.prompt_length
    assert (ledger.ids[first], ledger.logprobs[first]) == (hot, -4.0)
    assert scripted.prompts["k"][0] == ledger.ids[: first + 1]
    assert trajectory.turns == 2


async def test_without_it_no_candidates_are_asked_for() -> None:
    env, scripted = environment(says("5"))
    trajectory = Trajectory(row(), "k", 0)
    await SingleTurn(env).run(trajectory, Sampling(64, seed=1))
    assert trajectory.ledgers[0].model_tokens == len(scripted.chat.tokenizer.encode("5" + END))
