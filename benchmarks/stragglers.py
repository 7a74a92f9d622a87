"""How much of the ideal speed a run reaches when a few conversations take much longer than the others.

Recorded sessions of a coding agent are replayed: their turns, sampled tokens and waits between turns. Engine and
trainer have fixed speeds and no other cost, and time jumps from event to event: a day passes in seconds. agentrl's own
`Stream` and `Sampler` admit the rows and give out the groups. Ideal: neither engine nor trainer is ever idle; both
have the same speed, which is the hardest case for a trainer and an engine with GPUs of their own. With --shared they
take turns on one GPU, and the ideal is half the speed. The trainer begins an update with the groups that are finished,
as a run of one process does whose server keeps its memory; with --whole, and where the GPU is shared, it waits for all.

    python benchmarks/stragglers.py agent_waits.jsonl.gz --bounds 0 1 2 4 8

A line of the file is {"turns": [[context tokens, sampled tokens, seconds waited before, ...], ...]}.
"""

import argparse
import gzip
import heapq
import itertools
import json
import math
import random
from collections.abc import Callable, Sequence, Sized
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from agentrl.config import compose
from agentrl.config.schema import Config
from agentrl.data import Loader
from agentrl.data.splits import Splits
from agentrl.rollout.sampler import Sampler, stream_of
from agentrl.rollout.stream import AdmittedBatch
from agentrl.training import Batch, pack_tokens
from agentrl.training.update.finished_groups import FinishedGroups
from agentrl.trajectory.ledger import Ledger
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Trajectory

LOOKS = 50
"""Looks at a batch that the trainer waits for, in the time of an ideal step."""
Turns = list[tuple[float, int]]
"""(seconds waited before the turn, tokens sampled in it)."""


@dataclass
class Conversation:
    """A session that is replayed."""

    job: Trajectory
    turns: Turns
    end: Callable[[], None]
    """Called when its last turn ends."""
    versions: list[int] = field(default_factory=list)
    """Of the weights at the begin of each turn."""


@dataclass
class World:
    """Conversations on an engine; time jumps from event to event.

    Requests share `speed` tokens/s equally, and none gets more than `fastest`.
    """

    speed: float
    fastest: float
    now: float = 0.0
    version: int = 0
    paused: bool = False
    """Whether the engine waits for the update."""
    busy: float = 0.0
    """Seconds of all requests, and those in which the engine was not paused."""
    open: float = 0.0
    _each: float = 0.0
    """Tokens that a request has got which was there all the time."""
    _requests: list[tuple[float, int, Conversation]] = field(default_factory=list)
    """Each with the value of `_each` at its end."""
    _waits: list[tuple[float, int, Conversation]] = field(default_factory=list)
    """Each with its time."""
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def begin(self, one: Conversation) -> None:
        """Wait before the next turn."""
        wait, _ = one.turns[len(one.versions)]
        heapq.heappush(self._waits, (self.now + wait, next(self._numbers), one))

    def advance(self, until: float, unfinished: Sized | None = None) -> None:
        """Move on to `until`, or to the moment when nothing is `unfinished` any more."""
        while self.now < until and (unfinished is None or unfinished):
            rate = 0.0 if self.paused else min(self.fastest, self.speed / max(len(self._requests), 1))
            left = max(self._requests[0][0] - self._each, 0.0) if self._requests else math.inf
            over = self.now + left / rate if rate else math.inf
            ready = self._waits[0][0] if self._waits else math.inf
            now = min(over, ready, until)
            self._pass(now - self.now, rate)
            self.now = now
            if now == over:
                self._turn_ends()
            elif now == ready:
                self._turn_begins()

    def _pass(self, seconds: float, rate: float) -> None:
        self._each += rate * seconds
        if not self.paused:
            self.open += seconds
            self.busy += seconds * len(self._requests)

    def _turn_begins(self) -> None:
        _, number, one = heapq.heappop(self._waits)
        _, tokens = one.turns[len(one.versions)]
        one.versions.append(self.version)
        heapq.heappush(self._requests, (self._each + tokens, number, one))

    def _turn_ends(self) -> None:
        one = heapq.heappop(self._requests)[2]
        if len(one.versions) < len(one.turns):
            self.begin(one)
        else:
            one.end()


@dataclass
class Making:
    """Trajectories of a batch."""

    world: World
    jobs: Sequence[Trajectory]
    unfinished: set[int]
    """Places in `jobs`."""
    look: float
    """Seconds between two looks."""

    def result(self, poll: Callable[[], object] = lambda: None) -> list[Trajectory]:
        while self.unfinished:
            self.world.advance(self.world.now + self.look, self.unfinished)
            poll()
        return list(self.jobs)

    def done(self) -> bool:
        return not self.unfinished


@dataclass
class Workers:
    """Replays a session for each trajectory."""

    teachers = ()

    world: World
    sessions: Sequence[Turns]
    n: int
    look: float
    begun: list[int] = field(default_factory=list)
    """Tokens of each trajectory that was begun."""

    def begin(self, batch: AdmittedBatch) -> Making:
        jobs = [Trajectory(row, f"{batch.number}/{row.uid}/{i}", i) for row in batch.rows for i in range(self.n)]
        making = Making(self.world, jobs, set(range(len(jobs))), self.look)
        for place, job in enumerate(jobs):
            self._begin(place, job, making.unfinished, batch.finished)
        return making

    def sample(self, rows: Sequence[Row], step: int, on_done: Any, *, scored: bool = True) -> list[Trajectory]:
        return self.begin(AdmittedBatch(step, [], list(rows))).result()

    def wait(self, future: Making, poll: Callable[[], object]) -> list[Trajectory]:
        return future.result(poll)

    def compare(self, trajectories: Sequence[Trajectory]) -> None:
        """Nothing to record."""

    def activity(self) -> dict[str, float]:
        """As `PausableEngine.activity`."""
        mean = self.world.busy / self.world.open if self.world.open else 0.0
        self.world.busy = self.world.open = 0.0
        return {"perf/running_requests": mean}

    def _begin(self, place: int, job: Trajectory, unfinished: set[int], finished: dict[int, Trajectory]) -> None:
        turns = random.Random(job.key).choice(self.sessions)

        def end() -> None:
            job.ledgers, job.reward = [ledger_of(one.versions)], 0.0
            finished[place] = job
            unfinished.remove(place)

        one = Conversation(job, turns, end)
        job.extra["tokens"] = sum(tokens for _, tokens in turns)
        self.begun.append(job.extra["tokens"])
        self.world.begin(one)


def ledger_of(versions: Sequence[int]) -> Ledger:
    """A token a turn, of the weights that drew it."""
    ledger, ids = Ledger(), [0] * len(versions)
    ledger.append_prompt([0])
    ledger.append_model(ids, [0.0] * len(ids), turn=0, version=versions)
    return ledger


class Quiet:
    """A tracker that keeps nothing."""

    view = SimpleNamespace(progress=lambda done, total: None)

    def phase(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()

    def rollout_phase(self, name: str, total: int) -> AbstractContextManager[Callable[[Trajectory], None]]:
        return nullcontext(lambda _: None)

    def record_rollouts(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Nothing to write."""

    def in_background(self, work: Callable[[], None]) -> None:
        work()

    def wait_for_background(self) -> None:
        """Nothing runs."""


@dataclass
class Updates:
    """The trainer."""

    world: World
    speed: float
    """Tokens/s."""
    shared: bool
    early: bool
    begun: int = 0
    """Tokens of the present batch that it has computed."""
    total: int = 0
    """Tokens of all batches that were begun early."""

    @property
    def learner(self) -> "Updates":
        """Packs, too."""
        return self

    def pack(self, trajectories: Sequence[Trajectory], version: int | None) -> Batch:
        return pack_tokens(trajectories, version)

    def can_accumulate_early(self) -> bool:
        return self.early

    def __call__(self, batch: Batch, trajectories: Sequence[Trajectory], *_: object) -> tuple[Batch, dict[str, float]]:
        """In place of `ComputeAdvantages`: the batch with the tokens of the sessions."""
        batch.rewards = torch.tensor([float(t.extra["tokens"]) for t in trajectories])
        return batch, {}

    def accumulate_early(self, part: Batch) -> None:
        tokens = int(part.rewards.sum())
        self.begun += tokens
        self.total += tokens
        self._compute(tokens)

    def update(self, tokens: int) -> None:
        """Of a whole batch of so many tokens."""
        self._compute(tokens - self.begun)
        self.begun = 0

    def _compute(self, tokens: int) -> None:
        self.world.paused = self.shared
        self.world.advance(self.world.now + tokens / self.speed)
        self.world.paused = False


@dataclass(frozen=True)
class Outcome:
    """What a run of one bound came to."""

    efficiency: float
    """Tokens/s over the ideal."""
    window: float
    """Batches that were under way at once, on average."""
    staleness: tuple[float, float]
    """(mean over turns and steps, maximum)."""
    distance: float
    """Kolmogorov-Smirnov distance of the lengths trained in the first half from those begun in it."""
    dropped: int
    early: float
    """Share of the tokens whose update began before their batch was complete."""


def run(config: Config, bound: int, sessions: Sequence[Turns], args: argparse.Namespace) -> Outcome:
    """Take `args.steps` steps, the first of them to fill the pipeline."""
    config.trainer.max_staleness = bound
    world = World(args.speed, args.fastest)
    workers = Workers(world, sessions, config.rollout.n, ideal_step(sessions, args) / LOOKS)
    rows = [Row(f"r{i}", []) for i in range(args.rows * 4)]
    loader = Loader(rows, args.rows, shuffle=True, seed=0)
    stream = stream_of(config, Splits(loader, [], args.steps))
    updates = Updates(world, args.speed * args.faster, args.shared, early=not (args.whole or args.shared))
    look = FinishedGroups(config, updates, updates)  # type: ignore[arg-type]
    sample = Sampler(config, workers, stream, Quiet(), lambda: world.now, look)  # type: ignore[arg-type]
    trained: list[int] = []
    metrics: list[dict[str, float]] = []
    started, first, distance = 0.0, 0, 0.0
    for step in range(1, args.steps + 1):
        groups = sample(step)
        lengths = [t.extra["tokens"] for t in groups.trained]
        updates.update(sum(lengths))
        world.version = step
        trained += lengths
        metrics.append(groups.metrics)
        if step == args.warm_up:
            started, first = world.now, len(trained)
        if step == args.steps // 2:
            distance = kolmogorov_smirnov(trained, workers.begun)
    ideal = sum(trained[first:]) / args.speed * (2 if args.shared else 1)
    oldest = max(each.get("staleness/max", 0.0) for each in metrics)
    window, age = (mean(metrics[args.warm_up :], name) for name in ("perf/window", "staleness/mean"))
    efficiency, dropped = ideal / (world.now - started), len(workers.begun) - len(trained)
    return Outcome(efficiency, window, (age, oldest), distance, dropped, updates.total / sum(trained))


def mean(metrics: Sequence[dict[str, float]], name: str) -> float:
    """Of a metric over the steps that have it."""
    values = [each[name] for each in metrics if name in each]
    return sum(values) / len(values) if values else 0.0


def ideal_step(sessions: Sequence[Turns], args: argparse.Namespace) -> float:
    """Seconds that the trainer computes in a step."""
    tokens = sum(tokens for turns in sessions for _, tokens in turns)
    return tokens / len(sessions) * args.rows * args.n / args.speed


def kolmogorov_smirnov(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest difference between the two distribution functions."""
    import numpy as np

    points = np.unique([*one, *other])
    below = [np.searchsorted(np.sort(values), points, side="right") / len(values) for values in (one, other)]
    return float(np.abs(below[0] - below[1]).max())


def read(path: Path, longest_wait: float, most_turns: int) -> list[Turns]:
    """The sessions of a file, waits and turns capped."""
    with gzip.open(path, "rt") as stream:
        records = [json.loads(line)["turns"] for line in stream]
    return [[(min(turn[2], longest_wait), int(turn[1])) for turn in turns[:most_turns]] for turns in records]


def main() -> None:
    """Run each bound and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sessions", type=Path)
    parser.add_argument("--bounds", type=int, nargs="+", default=[0, 1, 2, 4, 8])
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--warm-up", type=int, default=10, help="first steps that are not measured")
    parser.add_argument("--rows", type=int, default=32, help="prompts of a step")
    parser.add_argument("--n", type=int, default=8, help="trajectories of a prompt")
    parser.add_argument("--speed", type=float, default=2000.0, help="tokens/s of the engine")
    parser.add_argument("--faster", type=float, default=1.0, help="speed of the trainer over that of the engine")
    parser.add_argument("--fastest", type=float, default=60.0, help="tokens/s of one request at most")
    parser.add_argument("--longest-wait", type=float, default=120.0)
    parser.add_argument("--most-turns", type=int, default=100)
    parser.add_argument("--shared", action="store_true", help="engine and trainer share a GPU")
    parser.add_argument("--whole", action="store_true", help="updates begin when their batch is complete")
    args = parser.parse_args()
    sessions = read(args.sessions, args.longest_wait, args.most_turns)
    config: Config = compose([f"rollout.n={args.n}", f"data.train_batch_size={args.rows}"], checks=())
    alone = sorted(sum(wait + tokens / args.fastest for wait, tokens in turns) for turns in sessions)
    step = ideal_step(sessions, args)
    console = Console()
    console.print(
        f"{len(sessions)} sessions; alone on the engine one takes {alone[len(alone) // 2]:,.0f} s (median), "
        f"{alone[-1]:,.0f} s at most; an ideal step takes {step * (2 if args.shared else 1):,.0f} s"
    )
    table = Table(
        "bound", "of the ideal", "over bound 0", "window", "staleness mean", "max", "early", "KS distance", "dropped"
    )
    results = {bound: run(config, bound, sessions, args) for bound in args.bounds}
    base = results[args.bounds[0]].efficiency
    for bound, got in results.items():
        age, most = got.staleness
        speed = f"{got.efficiency:.3f}", f"{got.efficiency / base:.2f}", f"{got.window:.2f}"
        table.add_row(
            str(bound), *speed, f"{age:.2f}", f"{most:.0f}", f"{got.early:.2f}", f"{got.distance:.4f}", str(got.dropped)
        )
    console.print(table)


if __name__ == "__main__":
    main()
