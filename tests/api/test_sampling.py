"""Trajectories, figures and warm-ups from Python."""

import asyncio
from typing import Any

import pytest

import agentrl
from agentrl.data.given import given_rows
from agentrl.data.rows import make_row

pytestmark = pytest.mark.integration

Settings = dict[str, Any]
Rows = list[dict[str, Any]]


def same(data_source: str, solution_str: str, ground_truth: str) -> float:
    return float(solution_str == ground_truth)


async def test_trajectories_come_with_their_tokens(settings: Settings, rows: Rows) -> None:
    made = await asyncio.to_thread(agentrl.rollout, settings, rows=rows, n=3, limit=2)
    assert [(t.row.uid, t.sample) for t in made] == [(f"rows:{row}", n) for row in (1, 2) for n in range(3)]
    for trajectory in made:
        trajectory.ledgers[0].check()
        assert trajectory.ledgers[0].model_tokens > 0
        assert trajectory.reward == 0.0


def asking(data_source: str, solution_str: str, ground_truth: str, *, reward_router_address: str) -> float:
    return float(reward_router_address == "127.0.0.1:9")


@pytest.mark.parametrize("reward", [asking, {"judge": asking}])
def test_a_function_may_ask_a_reward_model(settings: Settings, rows: Rows, reward: Any) -> None:
    served = {"reward.reward_model.enable": True, "reward.reward_model.url": "http://127.0.0.1:9"}
    (made,) = agentrl.rollout({**settings, **served}, rows=rows, reward=reward, n=1, limit=1)
    assert made.reward == 1.0


def test_a_model_is_evaluated(settings: Settings, rows: Rows) -> None:
    report = agentrl.evaluate(settings, rows=rows, reward=lambda data_source, solution_str, ground_truth: 1.0, n=2)
    assert (report["unknown"].rows, report["unknown"].answers) == (4, 8)
    assert report["unknown"].passes[2].value == 1.0
    with pytest.raises(agentrl.UserError, match="nothing scores"):
        agentrl.evaluate(settings, rows=rows)


async def test_answers_at_hand_are_evaluated() -> None:
    rows = [{"responses": ["5", "6"], "answer": "5"}, {"responses": "7", "ground_truth": "7", "data_source": "b"}]
    reports = agentrl.evaluate(rows=rows, reward=same)
    assert {name: report.mean.value for name, report in reports.items()} == {"b": 1.0, "unknown": 0.5, "all": 0.75}


def test_conversations_warm_a_model_up(settings: Settings, tmp_path: Any) -> None:
    talk = [{"role": "user", "content": "What is 2 + 3?"}, {"role": "assistant", "content": "5"}]
    seen: list[int] = []
    result = agentrl.sft(
        {"model.path": settings["model.path"], "trainer": {"device": "cpu", "output_dir": tmp_path / "warm"}},
        rows=[{"messages": talk}] * 4,
        on_step=lambda step, total, metrics: seen.append(step),
    )
    assert result.conversations == 4
    assert seen
    assert (result.path / "model.safetensors").is_file()


class Table:
    """As much of a DataFrame as is asked for."""

    iloc = None

    def __iter__(self) -> Any:
        return iter(["prompt"])

    def to_dict(self, how: str) -> Rows:
        assert how == "records"
        return [{"prompt": "a?"}]


@pytest.mark.parametrize("given", [[{"prompt": "a?"}], ({"prompt": "a?"},), iter([{"prompt": "a?"}]), Table()])
def test_rows_come_in_many_shapes(given: Any) -> None:
    rows = given_rows(given, name="rows")
    assert [(row.uid, row.prompt) for row in rows] == [("rows:1", [{"role": "user", "content": "a?"}])]


def test_a_simple_row_is_completed() -> None:
    row = make_row({"question": "a?", "answer": "b", "level": 3}, "rows:1")
    assert (row.prompt, row.ground_truth, row.extra_info) == ([{"role": "user", "content": "a?"}], "b", {"level": 3})
    whole = {
        "prompt": "a?",
        "reward_model": {"ground_truth": "b"},
        "answer": "c",
        "extra_info": {"level": 1},
        "level": 2,
    }
    row = make_row(whole, "rows:1")
    assert (row.ground_truth, row.extra_info) == ("b", {"level": 1, "answer": "c"})


def test_a_rows_object_of_another_kind_is_refused() -> None:
    for given, message in (({"prompt": "a?"}, "rows is a dict"), ([3], "rows:1 is a int"), (3, "rows is a int")):
        with pytest.raises(agentrl.UserError, match=message):
            given_rows(given, name="rows")  # type: ignore[arg-type]
