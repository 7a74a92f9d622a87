"""All that the docs let a reward function, a tool, an interaction and a row give reaches its place in a run.

One run of a tiny model serves all cases: a row each. The engine's answers are written here, for the model cannot call
tools; the rest is the run's own, from rows to gradients and dumps.
"""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import agentrl
from agentrl.core.points import LOOPS
from agentrl.engines.engine import Generation
from agentrl.engines.hf.hf_engine import HFEngine
from agentrl.rollout.loops.base import AgentLoop
from agentrl.tracking.dumps.jsonl import load_trajectories
from agentrl.trajectory.trajectory import Trajectory
from tests.registries import scoped

END = "<|im_end|>"
CALL = '<tool_call>{"name": "tell", "arguments": {"x": 1}}</tool_call>' + END


@dataclass
class Outcome:
    """A case's first trajectory, its record in the dump, the advantages of its ledgers, and the step's metrics."""

    trajectory: Trajectory
    record: dict[str, Any]
    metrics: dict[str, float]

    @property
    def said(self) -> str:
        """The answer of the tool, as the model reads it."""
        return next(m["content"] for m in self.trajectory.messages if m["role"] == "tool")

    @property
    def learned(self) -> list[bool]:
        """Whether each ledger has an advantage."""
        columns = [sample["columns"]["advantages"] for sample in self.record["samples"]]
        return [any(value for _, value in runs) for runs in columns]


@dataclass
class Case:
    """What is given, and what must be true after the run."""

    gives: Any
    holds: Callable[[Outcome], Any]
    turns: list[str] = field(default_factory=lambda: ["5" + END])
    row: dict[str, Any] = field(default_factory=dict)


def extra(o: Outcome) -> dict[str, Any]:
    return o.trajectory.reward_extra


def forked(weights: Any, learned: list[bool]) -> Case:
    return Case({"score": 1.0, "ledger_weights": weights}, lambda o: o.learned == learned, row={"agent_name": "forks"})


REWARDS: dict[str, Case] = {
    "an int": Case(3, lambda o: o.trajectory.reward == 3.0),
    "a bool": Case(True, lambda o: o.trajectory.reward == 1.0),
    "a number of numpy's": Case(np.float32(0.5), lambda o: o.trajectory.reward == 0.5),
    "a number of torch's": Case(torch.tensor(0.25), lambda o: o.trajectory.reward == 0.25),
    "a dict": Case({"score": 2}, lambda o: o.trajectory.reward == 2.0),
    "further numbers, as metrics": Case(
        {"score": 1, "depth": np.int64(4)},
        lambda o: o.metrics["reward/depth"] == 4.0 and o.record["reward_extra"]["depth"] == 4.0,
    ),
    "acc decides the success": Case({"score": 0.0, "acc": True}, lambda o: extra(o)["acc"] == 1.0),
    "text": Case(
        {"score": 1, "pred": "five"}, lambda o: o.record["reward_extra"]["pred"] == "five" == extra(o)["pred"]
    ),
    "lists, dicts, nested": Case(
        {"score": 1, "parts": [1, {"a": (2, None)}], "by": {"x": np.arange(3)}},
        lambda o: extra(o)["parts"] == [1, {"a": [2, None]}] and o.record["reward_extra"]["by"] == {"x": [0, 1, 2]},
    ),
    "an object that no file can hold": Case({"score": 1, "odd": object()}, lambda o: "object" in extra(o)["odd"]),
    "nothing finite is no score": Case({"score": float("nan")}, lambda o: o.trajectory.outcome == "infra_error"),
    "ledger_weights, a list": forked([0.0, 2.0], [False, True]),
    "ledger_weights, a tuple": forked((1, 0), [True, False]),
    "ledger_weights, of numpy": forked(np.array([0.0, 1.0]), [False, True]),
    "ledger_weights, of torch": forked(torch.tensor([1.0, 0.0]), [True, False]),
    "ledger_weights, a dict by number": forked({1: 0.0}, [True, False]),
    "ledger_weights, none": Case({"score": 1.0}, lambda o: o.learned == [True, True], row={"agent_name": "forks"}),
}


def tool(gives: Any, holds: Callable[[Outcome], Any], **row: Any) -> Case:
    return Case(gives, holds, [CALL, "5" + END], row)


class Mine(agentrl.ToolResponse):
    """A response of the user's own."""


TOOLS: dict[str, Case] = {
    "text": tool("seven", lambda o: o.said == "seven"),
    "a number": tool(7, lambda o: o.said == "7"),
    "a response": tool(agentrl.ToolResponse(text="seven"), lambda o: o.said == "seven"),
    "a response of a class of its own": tool(Mine(text="seven"), lambda o: o.said == "seven"),
    "a dict of parts": tool({"text": "seven"}, lambda o: o.said == "seven"),
    "another dict, as JSON": tool({"n": [7]}, lambda o: json.loads(o.said) == {"n": [7]}),
    "a list, as JSON": tool([7, None], lambda o: json.loads(o.said) == [7, None]),
    "nothing": tool(None, lambda o: o.said == ""),
    "a step reward": tool(
        ("seven", 0.5), lambda o: [(r.value, r.source, r.turn) for r in o.trajectory.turn_rewards] == [(0.5, "tool", 0)]
    ),
    "metrics": tool(
        ("seven", 0.0, {"hits": np.int64(3), "ids": (1, 2)}),
        lambda o: o.record["tool_calls"][0]["metrics"] == {"hits": 3, "ids": [1, 2]},
    ),
    "an error for the model": tool(
        agentrl.ModelError("bad x"), lambda o: (o.said, o.trajectory.reward) == ("bad x", 1.0)
    ),
    "a score at the end": tool("seven", lambda o: o.trajectory.tool_rewards == {"tell": 0.125}, ends=0.125),
    "extra fields": tool("seven", lambda o: o.record["extra"]["mine"] == [1] and extra(o)["saw"] == [1], keeps=[1]),
    "no valid reward": tool(("seven", float("inf")), lambda o: o.trajectory.outcome == "infra_error"),
}


def user(gives: Any, holds: Callable[[Outcome], Any]) -> Case:
    return Case(gives, holds, ["5" + END] * 2, {"interaction_kwargs": {"name": "asks"}})


def turn(o: Outcome, number: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = o.record["turn_rewards"][number]
    return found


INTERACTIONS: dict[str, Case] = {
    "the end": user((True, "bye"), lambda o: o.trajectory.finish == "terminated" and o.trajectory.turns == 1),
    "a reply": user(
        [(False, "more?"), (True, None)],
        lambda o: [m["role"] for m in o.trajectory.messages][-3:-1] == ["assistant", "user"],
    ),
    "a score": user((True, "bye", 0.5), lambda o: turn(o)["value"] == 0.5 == o.trajectory.interaction_score),
    "an extra dict": user(
        [(False, "go", 0.25, {"mood": ["calm", 2]}), (True, "", 0.5, {"mood": np.float64(1)})],
        lambda o: [turn(o, n)["extra"] for n in (0, 1)] == [{"mood": ["calm", 2]}, {"mood": 1.0}],
    ),
    "nothing valid": user("bye", lambda o: o.trajectory.outcome == "infra_error"),
}


def row(holds: Callable[[Outcome], Any], turns: list[str] | None = None, **columns: Any) -> Case:
    return Case(1.0, holds, turns or ["5" + END], columns)


def seen(o: Outcome) -> dict[str, Any]:
    """What the reward function got."""
    return SEEN[o.trajectory.key]


ROWS: dict[str, Case] = {
    "messages as the prompt": row(
        lambda o: o.trajectory.messages[0]["content"] == "hello", prompt=[{"role": "user", "content": "hello"}]
    ),
    "question and answer": row(lambda o: seen(o)["ground_truth"] == "5", question="2 + 3?", answer="5"),
    "a column ground_truth": row(lambda o: seen(o)["ground_truth"] == 6, ground_truth=6),
    "a reward model": row(lambda o: seen(o)["ground_truth"] == [6], reward_model={"ground_truth": [6]}),
    "JSON text": row(
        lambda o: seen(o)["extra_info"]["level"] == {"n": 1},
        extra_info='{"level": {"n": 1}, "case": "JSON text"}',
        reward_model='{"ground_truth": 1}',
    ),
    "a data source": row(lambda o: seen(o)["data_source"] == "mine", data_source="mine"),
    "other columns": row(lambda o: seen(o)["extra_info"]["colour"] == ["red"], colour=["red"]),
    "arguments of tools": row(
        lambda o: o.said == "created 3, executed 4" and o.trajectory.tool_rewards == {"tell": 0.5},
        [CALL, "5" + END],
        tools_kwargs={
            "tell": {"create_kwargs": {"n": 3}, "execute_kwargs": {"m": 4}, "calc_reward_kwargs": {"r": 0.5}}
        },
    ),
    "a selection of tools": row(
        lambda o: [schema["function"]["name"] for schema in o.trajectory.schemas] == ["other"],
        extra_info={"tool_selection": ["other"], "case": "a selection of tools"},
    ),
    "an agent loop": row(lambda o: len(o.trajectory.ledgers) == 2, agent_name="forks"),
    "a loop that scores": row(
        lambda o: (o.trajectory.reward, "scores" in extra(o)) == (0.75, True), agent_name="scores"
    ),
}

TABLE = {"reward": REWARDS, "tool": TOOLS, "interaction": INTERACTIONS, "row": ROWS}
CASES = {f"{kind}: {name}": case for kind, cases in TABLE.items() for name, case in cases.items()}
SEEN: dict[str, dict[str, Any]] = {}


def reward(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any], trajectory: Trajectory
) -> Any:
    SEEN[trajectory.key] = {"data_source": data_source, "ground_truth": ground_truth, "extra_info": extra_info}
    case = extra_info["case"]
    given = CASES[f"reward: {case}"].gives if case in REWARDS else 1.0
    if "mine" in extra_info:
        return {"score": 1.0, "saw": extra_info["mine"]}
    if isinstance(given, dict):  # groups must differ
        return given | {"score": given["score"] - trajectory.sample}
    return given - trajectory.sample if trajectory.sample else given


class Tell(agentrl.BaseTool):
    """Answers as the row's case says."""

    tool_schema = {  # noqa: RUF012
        "type": "function",
        "function": {
            "name": "tell",
            "description": "Tell.",
            "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}},
        },
    }

    async def create(self, instance_id: str | None = None, n: int = 0, **kwargs: Any) -> Any:
        self.config[instance_id] = n
        return instance_id, agentrl.ToolResponse()

    async def execute(self, instance_id: str, parameters: dict[str, Any], agent_data: Any, m: int = 0, **_: Any) -> Any:
        columns = agent_data.row.extra_info
        if "keeps" in columns:
            agent_data.extra_fields["mine"] = columns["keeps"]
        if columns["case"] not in TOOLS:
            return f"created {self.config[instance_id]}, executed {m}"
        self.config[instance_id] = columns.get("ends", 0.0)
        gives = TOOLS[columns["case"]].gives
        if isinstance(gives, Exception):
            raise gives
        return gives

    async def calc_reward(self, instance_id: str, r: float | None = None, **_: Any) -> float:
        return float(self.config[instance_id]) if r is None else r


def other() -> str:
    """Another tool."""
    return ""


class Asks(agentrl.BaseInteraction):
    """Replies as the row's case says, in turn."""

    async def generate_response(
        self, instance_id: str, messages: list[dict[str, Any]], case: str = "", **_: Any
    ) -> Any:
        gives = INTERACTIONS[case].gives
        answered = sum(message["role"] == "assistant" for message in messages)
        return gives[answered - 1] if isinstance(gives, list) else gives


class Forks(AgentLoop):
    """Two ledgers a trajectory."""

    async def run(self, trajectory: Trajectory, sampling: Any) -> None:
        for _ in range(2):
            episode = self.episode(trajectory, sampling, [])
            episode.begin(trajectory.row.prompt)
            await episode.generate()
        episode.finish("stop")


class Scores(Forks):
    """A loop that gives the reward itself."""

    async def run(self, trajectory: Trajectory, sampling: Any) -> None:
        await super().run(trajectory, sampling)
        trajectory.reward = 0.75 - trajectory.sample
        trajectory.reward_extra["scores"] = ["itself"]


def record(name: str, case: Case) -> dict[str, Any]:
    _, _, short = name.partition(": ")
    columns = {"prompt": "What is 2 + 3?", "case": short} | case.row
    if "interaction_kwargs" in columns:
        columns["interaction_kwargs"] = {"case": short} | columns["interaction_kwargs"]
    return {key: value for key, value in columns.items() if not (key == "prompt" and "question" in columns)}


@pytest.fixture(scope="module")
def outcomes(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    from transformers import AutoTokenizer

    folder, tokenizer, names = tmp_path_factory.mktemp("contracts"), AutoTokenizer.from_pretrained(model), list(CASES)
    taken: Counter[str] = Counter()

    async def generate(self: Any, token_ids: Any, sampling: Any, *, key: str, media: Any = ()) -> Generation:
        _, uid, sample = key.split("/")
        place = int(uid.partition(":")[2]) - 1
        turns = CASES[names[place]].turns
        said = turns[min(taken[key], len(turns) - 1)]
        taken[key] += 1
        ids = tokenizer.encode(said.replace("5", "56"[int(sample)]), add_special_tokens=False)
        return Generation(ids, [-1.0] * len(ids), "stop", 0)

    settings = {
        "model.path": model,
        "data": {
            "train_batch_size": len(names),
            "max_prompt_length": 900,
            "max_response_length": 300,
            "shuffle": False,
        },
        "actor.ppo_mini_batch_size": len(names),
        "algorithm": {"ledger_credit": "weighted", "adv_estimator": "grpo"},
        "rollout": {"n": 2, "infra_retries": 0, "max_infra_drop_share": 0.9, "agent.default_agent_loop": "tool_agent"},
        "reward": {"tool_weight": 0.0, "interaction_weight": 0.0},
        "trainer": {
            "total_training_steps": 1,
            "device": "cpu",
            "default_local_dir": folder,
            "max_rollout_gap": None,  # the engine's log-probs are made up
        },
    }
    with pytest.MonkeyPatch.context() as patch, scoped(LOOPS):
        agentrl.agent_loop("forks")(Forks)
        agentrl.agent_loop("scores")(Scores)
        patch.setattr(HFEngine, "generate", generate)
        interactions = [Asks({"name": "asks"}), Asks({"name": "others"})]  # rows that name none meet none
        rows = [record(name, case) for name, case in CASES.items()]
        result = agentrl.train(settings, tools=[Tell(), other], interactions=interactions, reward=reward, rows=rows)
    records = {record["key"]: record for record in load_trajectories(folder / "rollouts/1.jsonl")}
    first = [trajectory for trajectory in result.trajectories if trajectory.sample == 0]
    return {names[int(t.row.uid.partition(":")[2]) - 1]: Outcome(t, records[t.key], result.metrics) for t in first}


@pytest.mark.parametrize("name", CASES)
def test_what_is_given_reaches_its_place(name: str, outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes[name]
    assert CASES[name].holds(outcome), (outcome.trajectory.error, outcome.record)


def test_the_run_learned_from_all_that_was_scored(outcomes: dict[str, Outcome]) -> None:
    metrics = next(iter(outcomes.values())).metrics
    assert metrics["actor/grad_norm"] > 0
    assert metrics["rollout/infra_drops"] == 2 * sum("infra" in str(o.trajectory.outcome) for o in outcomes.values())
