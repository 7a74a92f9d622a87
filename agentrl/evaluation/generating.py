"""Rows answered by a model, in a file that an interruption does not spoil.

Invariants:
- a row is in the part file once all of its answers are there; a run that begins again answers the others only;
- a row that failed is answered with other seeds by the next run, for the same ones would draw what failed once more;
- the part file begins with what the answers depend on, and is not continued under other settings;
- the finished file is whole or absent, and has the rows in the order of the input.
"""

import json
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from operator import attrgetter
from pathlib import Path
from typing import Any

from agentrl.config.schema.evaluation import EvalConfig
from agentrl.config.schema.marks import FILTERS
from agentrl.core.errors import UserError
from agentrl.core.foreign import read_object
from agentrl.core.grouping import grouped
from agentrl.core.json_text import to_json
from agentrl.core.outputs import append_line, superseded_path, write_atomic, write_parquet, writing
from agentrl.rewards.function import solution
from agentrl.runtime.runtime import Runtime
from agentrl.tracking.estimates import RowScores
from agentrl.tracking.metrics import passed
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Outcome, Trajectory

log = logging.getLogger(__name__)

CHUNK = 1024  # rows that are sent to the engine together

DEPENDS_ON = (
    *("model.path", "model.chat_template", "data.path", "data.prompt_key", "data.max_response_length"),
    *("rollout.n", "rollout.do_sample", "rollout.temperature", "trainer.seed", "reward.custom_reward_function"),
    *("rollout.agent.default_agent_loop", "rollout.agent.agent_loop_config_path"),
)
ROW = ("data_source", "prompt", "ability", "reward_model", "extra_info")
# Column of a row -> the part of each answer that it has.
COLUMNS = {"responses": "response", "messages": "messages", "finish": "finish", "turns": "turns", "scores": "score"}
Answer = dict[str, Any]
OnRow = Callable[[int, int], None]  # gets (rows done, all rows)


async def unscored(data_source: str, solution_str: str, ground_truth: Any) -> float:
    """The reward function of a run that only answers. Async, so that no other process loads this module for it."""
    del data_source, solution_str, ground_truth
    return 0.0


class Part:
    """A file with a line for each time that a row was answered, or failed; `failures`: the number of runs in which each
    row failed."""

    def __init__(self, out: Path, settings: dict[str, Any]) -> None:
        """Raises UserError if `out` was started with other settings, or has an unknown suffix."""
        if out.suffix not in (".parquet", ".jsonl"):
            raise UserError(f"data.output_path={out}: name it .parquet or .jsonl")
        self.file = out.with_name(f"{out.name}.part")
        self.settings: dict[str, Any] = json.loads(json.dumps(settings, default=str))
        self.answers: dict[str, list[Answer]] = {}
        self.failures: Counter[str] = Counter()
        if self.file.exists():
            self._read()
        else:
            set_aside(out)
            write_atomic(self.file, [to_json(self.settings)])

    def add(self, uid: str, answers: list[Answer] | None) -> None:
        """Store the answers to a row; None: it failed."""
        self._take(uid, answers)
        with writing(str(self.file)), self.file.open("ab", buffering=0) as stream:
            line = to_json({"uid": uid, "answers": answers}, str)
            append_line(stream, f"\n{line}".encode())  # the line before may be cut

    def _read(self) -> None:
        """The lines of an earlier run, without an incomplete last one."""
        lines = self.file.read_text(encoding="utf-8").split("\n")
        begun = read_object(lines[0]) or {}
        differing = [key for key, value in self.settings.items() if begun.get(key, value) != value]
        if differing:
            raise UserError(
                f"{self.file} was begun with another {differing[0]}: remove that file, or set data.output_path"
            )
        for record in filter(None, map(read_object, lines[1:])):
            self._take(record["uid"], record.get("answers"))

    def _take(self, uid: str, answers: list[Answer] | None) -> None:
        if answers is None:
            self.failures[uid] += 1
        else:
            self.answers[uid] = answers


def depends_on(config: EvalConfig) -> dict[str, Any]:
    """The settings that answers depend on, by key."""
    rollout = config.rollout
    multi_turn = {f"rollout.multi_turn.{key}": value for key, value in asdict(rollout.multi_turn).items()}
    filters = {f"rollout.{name}": getattr(rollout, name) for name in FILTERS}
    return multi_turn | {key: attrgetter(key)(config) for key in DEPENDS_ON} | filters


class Generator:
    """Answers rows and writes them to `data.output_path`; `answers`: by uid; `failed`: trajectories without one."""

    def __init__(self, config: EvalConfig, runtime: Runtime, out: Path) -> None:
        """Raises UserError where `out` cannot be continued."""
        self.config, self.runtime, self.out = config, runtime, out
        self.part = Part(out, depends_on(config))
        self.answers = dict(self.part.answers)
        self.failed = 0
        self._groups: dict[str, list[Trajectory]] = {}

    def run(self, rows: Sequence[Row], on_row: OnRow) -> None:
        """Answer the rows that have no answers yet, then write the file.

        The part file is removed if nothing failed; otherwise the next run retries the missing answers.
        """
        waiting = [row for row in rows if row.uid not in self.answers]
        on_row(len(rows) - len(waiting), len(rows))

        def on_done(trajectory: Trajectory) -> None:
            if self._keep(trajectory):
                on_row(len(self.answers), len(rows))

        # Rows that failed in as many runs: that number gives their trajectories new names, and so new seeds.
        for failures, alike in grouped(waiting, lambda row: self.part.failures[row.uid]).items():
            for start in range(0, len(alike), CHUNK):
                self.runtime.rollouts.sample(alike[start : start + CHUNK], failures, on_done)
        write(self.out, [record(row, self.answers.get(row.uid, [])) for row in rows])
        if not self.failed:
            self.part.file.unlink()

    def scores(self, rows: Sequence[Row]) -> list[RowScores]:
        """Scores of the answers."""
        return [self._scores(row, self.answers.get(row.uid, [])) for row in rows]

    def _scores(self, row: Row, group: list[Answer]) -> RowScores:
        missing = self.config.rollout.n - len(group)
        return RowScores(row.data_source, [a["score"] for a in group], [a["passed"] for a in group], missing, row.uid)

    def _keep(self, trajectory: Trajectory) -> bool:
        """Store an answer; returns whether it was the last of its row."""
        uid = trajectory.row.uid
        group = self._groups.setdefault(uid, [])
        group.append(trajectory)
        if len(group) < self.config.rollout.n:
            return False
        fine = [t for t in group if t.outcome is not Outcome.INFRA_ERROR]
        self.answers[uid] = [self._answer(t) for t in sorted(fine, key=lambda t: t.sample)]
        self.failed += len(group) - len(fine)
        self.part.add(uid, self.answers[uid] if len(fine) == len(group) else None)
        del self._groups[uid]
        return True

    def _answer(self, trajectory: Trajectory) -> Answer:
        def text(ids: list[int]) -> str:
            return str(self.runtime.tokenizer.decode(ids, skip_special_tokens=True))

        evaluation = self.config.evaluation
        return {
            "response": solution(trajectory, text),
            "messages": trajectory.messages[len(trajectory.row.prompt) :],
            "tools": trajectory.schemas,
            "finish": trajectory.finish,
            "turns": trajectory.turns,
            "score": float(trajectory.reward or 0.0),
            "passed": passed(trajectory, evaluation.success_threshold),
        }


def record(row: Row, answers: Sequence[Answer]) -> dict[str, Any]:
    """A row with its answers, in the format that `agentrl eval` and verl's evaluation read."""
    about = {name: getattr(row, name) for name in ROW}
    columns = {column: [answer[name] for answer in answers] for column, name in COLUMNS.items()}
    return about | columns | {"tools": answers[0].get("tools", []) if answers else []}


def set_aside(out: Path) -> None:
    """Rename finished answers: a new run would replace them."""
    if out.exists():
        aside = superseded_path(out.parent, f"{out.stem}.", out.suffix)
        out.rename(aside)
        log.warning("%s held finished answers: they are now in %s", out, aside)


def write(out: Path, records: Sequence[dict[str, Any]]) -> None:
    """Rows as jsonl, or as parquet with everything nested as JSON text: rows need not be alike. Raises InfraError."""
    with writing(str(out)):
        if out.suffix == ".jsonl":
            write_atomic(out, (to_json(record, str) + "\n" for record in records))
        else:
            nested = ("reward_model", "extra_info", "messages", "tools")
            write_parquet(out, [r | {key: to_json(r[key], str) for key in nested if key in r} for r in records])
