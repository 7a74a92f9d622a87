"""Answers the page's questions by plain functions: name -> JSON-ready answer.

Raises UserError for a question that has no answer.
"""

import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from threading import RLock
from typing import Any

from agentrl.core.errors import UserError, plural
from agentrl.tracking.dumps.index import KINDS, Index, read_lines
from agentrl.tracking.dumps.records import token_texts
from agentrl.tracking.meanings import meaning_of
from agentrl.tracking.status import RUNNING, read_status
from agentrl.view.curves import AXES, Curves
from agentrl.view.runs import FOLDERS, Run, differing, find_runs
from agentrl.view.table import Row, Table

Query = Mapping[str, str]
Json = dict[str, Any]

PAGE_ROWS, MOST_ROWS = 200, 1000
STRANGE = re.compile(r"\W", re.ASCII)
"""Characters that Prometheus does not take in names."""
QUESTIONS = ("metrics", "meanings", "settings", "trajectories", "tasks", "trajectory", "timeline", "match")
"""Names of methods that answer them."""
BETWEEN = "//"
"""Between names of runs in a query: no name has it."""
ASYNC_METRICS = (
    "staleness/",
    *(f"perf/{n}" for n in ("queue", "running", "trainer_wait", "engine_idle", "interruptions")),
)
"""Beginnings of the names of metrics of a run whose rollouts continue while the policy trains."""


class Api:
    """Answers about the runs at some paths. One question at a time: answers are small, and the caches are plain."""

    def __init__(self, paths: Sequence[str]) -> None:
        """Raises UserError where there is no run."""
        self.paths = paths
        self.runs = {run.name: run for run in find_runs(paths)}
        self.questions = {"runs": self.overview} | {name: getattr(self, name) for name in QUESTIONS}
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
        """The runs that there are now: names, states, metrics, steps with dumps by split; and the newest values of the
        metrics in `last`."""
        self._find()
        names = [name for name in query.get("last", "").split(",") if name]
        return {"runs": [self._run(run, names) for run in self.runs.values()]}

    def prometheus(self) -> str:
        """The newest value of each metric of all runs, in Prometheus's text format."""
        found = defaultdict[str, list[str]](list)
        with self._lock:
            self._find()
            for name, run in self.runs.items():
                run.curves.refresh()
                for metric in run.curves.series:
                    value = f"{{run={json.dumps(name, ensure_ascii=False)}}} {run.curves.last(metric)}\n"
                    found[f"agentrl_{STRANGE.sub('_', metric)}"].append(value)
        return "".join(f"# TYPE {name} gauge\n{name}{name.join(values)}" for name, values in found.items())

    def meanings(self, query: Query) -> Json:
        """Metric -> [sentence, when it is a problem], for the known metrics of all runs."""
        names = {name for run in self.runs.values() for name in run.curves.series}
        found = {name: meaning for name in sorted(names) if (meaning := meaning_of(name))}
        return {name: [meaning.sentence, meaning.problem] for name, meaning in found.items()}

    def metrics(self, query: Query) -> Json:
        """Series of the metrics in `names` (comma-separated), by run of `runs`: [steps, values] by name.

        With `axis`, one of AXES, [steps, values, places on that axis].
        """
        axis, names = query.get("axis"), query.get("names", "").split(",")
        if axis and axis not in AXES:
            raise UserError(f"axis {axis!r}: there are {', '.join(AXES)}")
        return {name: _series(run.curves, names, axis) for name, run in self._selected(query).items()}

    def settings(self, query: Query) -> Json:
        """Configurations of the runs in `runs` (all without it), {dotted key: value}, and the keys that differ."""
        found = {name: run.settings() for name, run in self._selected(query).items()}
        return {"runs": found, "differing": differing(list(found.values()))}

    def trajectories(self, query: Query) -> Json:
        """A page of the table that `Table.rows` describes, how many rows there are, and what their values may be."""
        rows = self._table(query).rows(query)
        rewards = [row["reward"] for row in rows if row["reward"] is not None]
        return _page(rows, query) | {
            "outcomes": sorted({row["outcome"] for row in rows}),
            "finishes": sorted({row["finish"] for row in rows}),
            "reward": sum(rewards) / len(rewards) if rewards else None,
        }

    def tasks(self, query: Query) -> Json:
        """A page of the tasks (rows) with their mean rewards by step; those whose last one is lowest come first.

        `kind`: never (solved), always, or changing; without it all. `kinds`: how many there are of each.
        """
        means = self._table(query).means().items()
        rows: list[Json] = [{"uid": uid, "kind": _kind(list(steps.values())), "means": steps} for uid, steps in means]
        chosen = [row for row in rows if query.get("kind", row["kind"]) == row["kind"]]
        chosen.sort(key=lambda row: (list(row["means"].values())[-1], row["uid"]))
        return _page(chosen, query) | {"kinds": Counter(row["kind"] for row in rows)}

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
            each = chain.from_iterable([value] * int(count) for count, value in runs or ())
            sample["columns"]["advantages"] = None if runs is None else list(each)
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
        curves = self._chosen(query).curves
        curves.refresh()
        return curves.at(step, [name for name in curves.series if name.startswith(ASYNC_METRICS)])

    def _run(self, run: Run, names: Sequence[str]) -> Json:
        curves = run.curves
        curves.refresh()
        status = {} if run.only else read_status(run.path)
        total = status.get("total_steps")
        return {
            "name": run.name,
            "path": str(run.only or run.path),
            "metrics": sorted(curves.series),
            "last_step": curves.last_step,
            "splits": {split: list(run.dumps(split)) for split in FOLDERS},
            "state": status.get("state"),
            "error": status.get("error", ""),
            "total_steps": total,
            "eta": curves.eta(total, time.time()) if total and status.get("state") == RUNNING else None,
            "last": {name: value for name in names if (value := curves.last(name)) is not None},
        }

    def _find(self) -> None:
        """Runs that are new are opened, and folders that are gone are forgotten."""
        with suppress(UserError):  # all are gone: what was read stays
            found = find_runs(self.paths)
            self.runs = {run.name: self.runs.get(run.name, run) for run in found}

    def _selected(self, query: Query) -> dict[str, Run]:
        names = [name for name in query.get("runs", "").split(BETWEEN) if name in self.runs]
        return {name: self.runs[name] for name in names} or self.runs

    def _chosen(self, query: Query) -> Run:
        name = query.get("run") or next(iter(self.runs), "")
        if name not in self.runs:
            self._find()
        if name not in self.runs:
            raise UserError(f"run {name!r} is not here; there are {', '.join(self.runs)}"[:300])
        return self.runs[name]

    def _table(self, query: Query) -> Table:
        split = query.get("split", "rollout")
        if split not in FOLDERS:
            raise UserError(f"split {split!r}: there are {', '.join(FOLDERS)}")
        return self._chosen(query).tables[split]


def _page(rows: Sequence[Json], query: Query) -> Json:
    """Rows of an answer, and how many there are in all."""
    start, count = int(query.get("offset", 0)), min(int(query.get("limit", PAGE_ROWS)), MOST_ROWS)
    return {"total": len(rows), "rows": rows[start : start + count]}


def _kind(means: Sequence[float]) -> str:
    return "always" if min(means) >= 1 else "never" if max(means) <= 0 else "changing"


def _series(curves: Curves, names: Sequence[str], axis: str | None) -> Json:
    curves.refresh()
    found = {name: curves.thinned(name) for name in names if name in curves.series}
    return {name: [*line, curves.sums(axis, line[0])] for name, line in found.items()} if axis else {**found}


def _life(row: Row, index: Index, origin: float) -> Json:
    shift, spans = round((row["start"] - origin) * 1000), index.columns["spans"][row["line"]]
    moved = [number if i % 3 == 0 else number + shift for i, number in enumerate(spans)]
    shown = ("line", "key", "uid", "sample", "reward", "outcome", "finish", "turns", "calls")
    return {name: row[name] for name in shown} | {"spans": moved, "versions": index.columns["versions"][row["line"]]}
