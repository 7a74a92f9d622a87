"""A small run as training leaves it: tokens are bytes, so that characters of several tokens occur."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.tracking.dumps.jsonl import write_trajectories
from agentrl.trajectory.ledger import Ledger, Source
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Outcome, Span, ToolCallRecord, Trajectory, TurnReward
from agentrl.view.api import Api
from agentrl.view.server import ViewServer


def decode(ids: list[int]) -> str:
    return bytes(ids).decode("utf-8", "replace")


def encode(text: str) -> list[int]:
    return list(text.encode())


AHEAD = {
    "staleness/mean": 0.75,
    "staleness/max": 1.0,
    "staleness/share_0": 0.25,
    "staleness/share_1": 0.75,
    "staleness/mixed": 0.5,
    "perf/queue_groups": 3.0,
    "perf/running_groups": 5.0,
    "perf/trainer_wait_share": 0.125,
    "perf/engine_idle_share": 0.062,
    "perf/interruptions": 17.0,
}
"""Of the last step with metrics, and of no other."""
CALL = {"name": "calculator", "arguments": {"expression": "17 * 23"}}


def talk(step: int, row: int, sample: int, *, reward: float | None = 1.0, **fields: Any) -> Trajectory:
    """A question, a call, its answer, a reply with characters of several bytes."""
    ledger, start = Ledger(), 1000.0 * step + row
    ledger.append_prompt(encode("<user>What is 17 * 23?<assistant>"))
    old, new = max(0, step - 1 - row), step - 1
    call = encode('calculator("17 * 23")')
    ledger.append_model(call, [-0.1] * len(call), turn=0, version=old)
    ledger.append_observation(encode("<tool>391<assistant>"), Source.TOOL, turn=0)
    reply = encode(f"It is 391 – trés simple 🙂 <b>step {step}</b>")
    half = len(reply) // 2  # of row 1, from step 2 on, an update came in between
    ledger.append_model(reply, [-2.0] * len(reply), turn=1, version=[old] * half + [new] * (len(reply) - half))
    uid = f"train.parquet:{row}"
    defaults: dict[str, Any] = {
        "ledgers": [ledger],
        "turns": 2,
        "messages": [
            {"role": "user", "content": "What is 17 * 23?"},
            {"role": "assistant", "content": "", "tool_calls": [{"function": CALL}]},
            {"role": "tool", "name": "calculator", "content": "391"},
            {"role": "assistant", "content": "<think>17 times 23</think>It is 391 <img src=x onerror=alert(1)>"},
        ],
        "tool_calls": [ToolCallRecord(0, "calculator", {"expression": "17 * 23"}, "391", Outcome.OK, 0.5)],
        "turn_rewards": [TurnReward(1, 0.5, "interaction")],
        "spans": [
            Span("generate", start, start + 1 + row),
            Span("wait", start + 1 + row, start + 1.25 + row),
            Span("tool", start + 1.25 + row, start + 1.5 + row),
        ],
    }
    row_of = Row(uid, [{"role": "user", "content": "?"}], data_source="arithmetic")
    return Trajectory(row_of, f"{step}/{uid}/{sample}", sample, reward=reward, **(defaults | fields))


@pytest.fixture(scope="session")
def make_run(tmp_path_factory) -> Callable[..., Path]:
    """Writes a run: `steps` steps of 2 rows, 3 samples each, the last of each row failed."""

    def make(name: str = "run", steps: int = 3) -> Path:
        folder = tmp_path_factory.mktemp("runs") / name
        for step in range(1, steps + 1):
            failed = {"reward": None, "outcome": Outcome.INFRA_ERROR, "finish": "error", "error": "engine died"}
            group = [talk(step, row, sample, reward=float(sample)) for row in (0, 1) for sample in (0, 1)]
            group += [talk(step, row, 2, **failed) for row in (0, 1)]
            for each in filter(lambda t: t.reward, group):
                each.advantages = [[1.25 * mask for mask in each.ledgers[0].mask]]
            write_trajectories(folder / f"rollouts/{step}.jsonl", step, group, decode)
            write_trajectories(folder / f"validation/{step}.jsonl", step, [talk(step, 0, 0)], decode)
        lines = [
            {"step": s, "rollout/reward_mean": s / 10, "actor/lr": 1e-6, "val/success": None} for s in range(steps)
        ]
        lines[-1] |= AHEAD
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return folder

    return make


@pytest.fixture(scope="session")
def run(make_run) -> Path:
    return make_run()


@pytest.fixture
def api(run) -> Api:
    return Api([str(run)])


@pytest.fixture
def ask(api) -> Callable[..., Any]:
    return lambda question, **query: api.answer(question, {name: str(value) for name, value in query.items()})


@pytest.fixture(scope="session")
def server(run, make_run):
    """The page of two runs, on a port of its own."""
    from threading import Thread

    server = ViewServer(Api([str(run), str(make_run("other", 2))]))
    Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
