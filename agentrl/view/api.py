"""Answers the page's questions by plain functions: name -> JSON-ready answer.

Raises UserError for a question that has no answer.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from threading import RLock
from typing import Any

from agentrl.core.errors import UserError
from agentrl.core.plurals import plural
from agentrl.tracking.dumps import token_texts
from agentrl.tracking.dumps.index import KINDS, Index, read_lines
from agentrl.view.curves import AXES, Curves
from agentrl.view.runs import FOLDERS, Run
from agentrl.view.table import Row, Table

Query = Mapping[str, str]
Json = dict[str, Any]

PAGE = 200
ASYNC_METRICS = (
    "staleness/",
    *(f"perf/{n}" for n in ("queue", "running", "trainer_wait", "engine_idle", "interruptions")),
)
"""Beginnings of the names of metrics of a run whose rollouts continue while the policy trains."""


class Api:
    """Answers about some runs. One question at a time: answers are small, and the caches are plain."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = list(runs)
        self.curves = [Curves(run.metrics_file) for run in runs]
        self.tables = [{split: Table(partial(run.dumps, split)) for split in FOLDERS} for run in runs]
        self.questions = {
            "runs": self.overview,
            "metrics": self.metrics,
            "settings": self.settings,
            "trajectories": self.trajectories,
            "trajectory": self.trajectory,
            "timeline": self.timeline,
            "match": self.match,
        }
        self._lock = RLock()

    def answer(self, question: str, query: Query) -> Json:
        """Raises UserError."""
        with self._lock:
            try:
                return self.questions[question](query)
            except ValueError as error:
                raise UserError(f"{question}: {error}") from None
            except KeyError as error:
                raise UserError(f"{question}: {error.args[0]} is missing") from None

    def overview(self, query: Query) -> Json:
        """The runs: names, metrics, steps with dumps, by split."""
        return {"runs": [self._run(i) for i in range(len(self.runs))]}

    def metrics(self, query: Query) -> Json:
        """Series of the metrics in `names` (comma-separated) of a run: [steps, values] by name.

        With `axis`, one of AXES, [steps, values, places on that axis].
        """
        curves, axis = self.curves[self._chosen(query)], query.get("axis")
        curves.refresh()
        if axis and axis not in AXES:
            raise UserError(f"axis {axis!r}: there are {', '.join(AXES)}")
        found = {name: curves.thinned(name) for name in query.get("names", "").split(",") if name in curves.series}
        return {name: [*line, curves.sums(axis, line[0])] for name, line in found.items()} if axis else {**found}

    def settings(self, query: Query) -> Json:
        """Each run's configuration, {dotted key: value}, in the order of the runs."""
        return {"runs": [run.settings() for run in self.runs]}

    def trajectories(self, query: Query) -> Json:
        """A page of the table that `Table.rows` describes, how many rows there are, and what their values may be."""
        rows = self._table(query).rows(query)
        start, count = int(query.get("offset", 0)), int(query.get("limit", PAGE))
        rewards = [row["reward"] for row in rows if row["reward"] is not None]
        return {
            "total": len(rows),
            "rows": rows[start : start + count],
            "outcomes": sorted({row["outcome"] for row in rows}),
            "finishes": sorted({row["finish"] for row in rows}),
            "reward": sum(rewards) / len(rewards) if rewards else None,
        }

    def trajectory(self, query: Query) -> Json:
        """One record of a dump, with the text and the advantage of each token where the dump has them."""
        table, step, line = self._table(query), int(query["step"]), int(query["line"])
        index = table.index(step)
        if not 0 <= line < len(index):
            raise UserError(f"step {step} has {plural(len(index), 'trajectory', 'trajectories')}, no {line}")
        (record,) = read_lines(table.path(step), index, [line])
        for sample in record["samples"]:
            sample["texts"] = token_texts(sample)
            runs = sample["columns"].get("advantages")
            sample["columns"]["advantages"] = None if runs is None else _unrolled(runs)
        return record | {"line": line, "lines": len(index)}

    def timeline(self, query: Query) -> Json:
        """Every trajectory of a step with its spans: [kind, start, end, kind, start, end, ...], ms from the first.

        `figures`: the step's metrics of ASYNC_METRICS, where rollouts continued while the policy trained.
        """
        table, step = self._table(query), int(query["step"])
        index = table.index(step)
        rows = [row for row in table.rows({"step": str(step)}) if row["start"] is not None]
        origin = min((row["start"] for row in rows), default=0.0)
        lives = [_life(row, index, origin) for row in rows]
        return {
            "kinds": KINDS,
            "origin": origin,
            "rows": lives,
            "untimed": len(index) - len(lives),
            "figures": self._async_figures(query, step),
        }

    def match(self, query: Query) -> Json:
        """The trajectory of a step that another one compares with: same row and sample, else same row, else first."""
        rows = self._table(query).rows({"step": query["step"]})
        if not rows:
            raise UserError(f"step {query['step']} has no trajectories")
        uid, sample = query.get("uid"), query.get("sample")
        best = max(rows, key=lambda row: (row["uid"] == uid, row["uid"] == uid and str(row["sample"]) == sample))
        return best | {"same": best["uid"] == uid}

    def _async_figures(self, query: Query, step: int) -> Json:
        if query.get("split", "rollout") != "rollout":
            return {}
        curves = self.curves[self._chosen(query)]
        curves.refresh()
        return curves.at(step, [name for name in curves.series if name.startswith(ASYNC_METRICS)])

    def _run(self, i: int) -> Json:
        run, curves = self.runs[i], self.curves[i]
        curves.refresh()
        splits = {split: list(run.dumps(split)) for split in FOLDERS}
        return {
            "name": run.name,
            "path": str(run.only or run.path),
            "metrics": sorted(curves.series),
            "last_step": curves.last_step,
            "splits": splits,
        }

    def _chosen(self, query: Query) -> int:
        run = int(query.get("run", 0))
        if not 0 <= run < len(self.runs):
            raise UserError(f"run {run}: there are {len(self.runs)}")
        return run

    def _table(self, query: Query) -> Table:
        split = query.get("split", "rollout")
        if split not in FOLDERS:
            raise UserError(f"split {split!r}: there are {', '.join(FOLDERS)}")
        return self.tables[self._chosen(query)][split]


def _unrolled(runs: list[list[float]]) -> list[float]:
    return list(chain.from_iterable([value] * int(count) for count, value in runs))


def _life(row: Row, index: Index, origin: float) -> Json:
    shift, spans = round((row["start"] - origin) * 1000), index.spans[row["line"]]
    moved = [number if i % 3 == 0 else number + shift for i, number in enumerate(spans)]
    shown = ("line", "key", "uid", "sample", "reward", "outcome", "finish", "turns", "calls")
    return {name: row[name] for name in shown} | {"spans": moved, "versions": index.versions[row["line"]]}
