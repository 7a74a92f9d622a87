"""How much of the ideal speed a run reaches when a few conversations take much longer than the others.

Recorded sessions of a coding agent are replayed: their turns, sampled tokens and waits between turns. Engine and
trainer have fixed speeds and no other cost, and a clock that jumps to the next event: hours pass in seconds. agentrl's
own `Stream` and `Sampler` admit the rows and give out the groups. Ideal: neither engine nor trainer is ever idle; both
have the same speed, which is the hardest case for a trainer and an engine with GPUs of their own. With --shared they
take turns on one GPU, and the ideal is half the speed.

    python benchmarks/stragglers.py agent_waits.jsonl.gz --bounds 0 1 2 4 8

A line of the file is {"turns": [[context tokens, sampled tokens, seconds waited before, ...], ...]}.
"""

import argparse
import asyncio
import gzip
import heapq
import itertools
import json
import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rich.console import Console
from rich.table import Table

from agentrl.config import compose
from agentrl.config.schema import Config
from agentrl.data import Loader
from agentrl.data.splits import Splits
from agentrl.rollout.sampler import Sampler, stream_of
from agentrl.rollout.stream import AdmittedBatch
from agentrl.trajectory.ledger import Ledger
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Trajectory

LOOK = 60.0
"""Seconds between two looks at a batch that the trainer waits for."""
Turns = list[tuple[float, int]]
"""(seconds waited before the turn, tokens sampled in it)."""


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer when nothing else is left to do."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        timers = self._scheduled  # type: ignore[attr-defined]
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)._scheduled = False
            self._timer_cancelled_count -= 1  # type: ignore[attr-defined]
        if not self._ready and timers:  # type: ignore[attr-defined]
            self.now = max(self.now, timers[0]._when)
        super()._run_once()  # type: ignore[misc]


class Engine:
    """Requests share `speed` tokens/s equally, and none gets more than `fastest`."""

    def __init__(self, loop: JumpingLoop, speed: float, fastest: float) -> None:
        self.loop, self.speed, self.fastest = loop, speed, fastest
        self.paused = False
        self._done = self._since = 0.0  # tokens that a request has got which was there all the time
        self._ends: list[tuple[float, int, asyncio.Future[None]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._numbers = itertools.count()

    async def generate(self, tokens: int) -> None:
        """Returns when the tokens are sampled."""
        self._advance()
        end: asyncio.Future[None] = self.loop.create_future()
        heapq.heappush(self._ends, (self._done + tokens, next(self._numbers), end))
        self._schedule()
        await end

    def pause(self, paused: bool) -> None:
        """Stop or continue."""
        self._advance()
        self.paused = paused
        self._schedule()

    def _advance(self) -> None:
        self._done += self._rate * (self.loop.time() - self._since)
        self._since = self.loop.time()

    @property
    def _rate(self) -> float:
        return min(self.fastest, self.speed / max(len(self._ends), 1)) if not self.paused else 0.0

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._ends and not self.paused:
            left = max(self._ends[0][0] - self._done, 0.0)
            self._timer = self.loop.call_later(left / self._rate, self._end)

    def _end(self) -> None:
        self._advance()
        while self._ends and self._ends[0][0] <= self._done + 1e-6:
            heapq.heappop(self._ends)[2].set_result(None)
        self._schedule()


@dataclass
class Making:
    """Trajectories of a batch, as tasks of the jumping loop."""

    loop: JumpingLoop
    task: "asyncio.Task[list[Trajectory]]"

    def result(self, poll: Callable[[], object] = lambda: None) -> list[Trajectory]:
        while not self.task.done():
            self.loop.run_until_complete(asyncio.wait({self.task}, timeout=LOOK))
            poll()
        return self.task.result()

    def done(self) -> bool:
        return self.task.done()


@dataclass
class Workers:
    """Replays a session for each trajectory."""

    loop: JumpingLoop
    engine: Engine
    sessions: Sequence[Turns]
    n: int
    version: int = 0
    begun: list[int] = field(default_factory=list)
    """Tokens of each trajectory that was begun."""

    def begin(self, batch: AdmittedBatch) -> Making:
        jobs = [Trajectory(row, f"{batch.number}/{row.uid}/{i}", i) for row in batch.rows for i in range(self.n)]
        return Making(self.loop, self.loop.create_task(self._all(jobs, batch.finished)))

    def rollout(self, rows: Sequence[Row], step: int, on_done: Any, *, scored: bool = True) -> list[Trajectory]:
        return self.begin(AdmittedBatch(step, [], list(rows))).result()

    def activity(self) -> dict[str, float]:
        return {}

    async def _all(self, jobs: list[Trajectory], finished: dict[int, Trajectory]) -> list[Trajectory]:
        async def one(place: int, job: Trajectory) -> None:
            finished[place] = await self._replay(job)

        await asyncio.gather(*(one(i, job) for i, job in enumerate(jobs)))
        return [finished[i] for i in range(len(jobs))]

    async def _replay(self, job: Trajectory) -> Trajectory:
        turns = random.Random(job.key).choice(self.sessions)
        ledger, job.reward = Ledger(), 0.0
        ledger.append_prompt([0])
        job.extra["tokens"] = sum(tokens for _, tokens in turns)
        self.begun.append(job.extra["tokens"])
        for i, (wait, tokens) in enumerate(turns):
            await asyncio.sleep(wait)
            version = self.version
            await self.engine.generate(tokens)
            ledger.append_model([0], [0.0], turn=i, version=version)
        job.ledgers = [ledger]
        return job


class Quiet:
    """A tracker that keeps nothing."""

    view = SimpleNamespace(progress=lambda done, total: None)

    def phase(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()

    def rolling(self, name: str, total: int) -> AbstractContextManager[Callable[[Trajectory], None]]:
        return nullcontext(lambda _: None)

    def rolled(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Nothing to write."""


@dataclass(frozen=True)
class Outcome:
    """What a run of one bound came to."""

    efficiency: float
    """Tokens/s over the ideal."""
    staleness: tuple[float, float]
    """(mean over turns and steps, maximum)."""
    distance: float
    """Kolmogorov-Smirnov distance of the trained lengths from the begun ones."""
    dropped: int


def run(config: Config, bound: int, sessions: Sequence[Turns], args: argparse.Namespace) -> Outcome:
    """Take `args.steps` steps, the first of them to fill the pipeline."""
    config.trainer.max_staleness = bound
    loop = JumpingLoop()
    engine = Engine(loop, args.speed, args.fastest)
    workers = Workers(loop, engine, sessions, config.rollout.n)
    rows = [Row(f"r{i}", []) for i in range(args.rows * 4)]
    loader = Loader(rows, args.rows, shuffle=True, seed=0)
    sample = Sampler(config, workers, stream_of(config, Splits(loader, [], args.steps)), Quiet())  # type: ignore[arg-type]
    trained: list[int] = []
    ages: list[tuple[float, float]] = []
    started, first = 0.0, 0
    for step in range(1, args.steps + 1):
        groups = sample(step)
        lengths = [t.extra["tokens"] for t in groups.kept]
        train(loop, engine, sum(lengths) / args.speed, shares=args.shared)
        workers.version = step
        trained += lengths
        ages.append((groups.metrics.get("staleness/mean", 0.0), groups.metrics.get("staleness/max", 0.0)))
        if step == args.warm_up:
            started, first = loop.time(), len(trained)
    ideal = sum(trained[first:]) / args.speed * (2 if args.shared else 1)
    means, most = zip(*ages[args.warm_up :], strict=True)
    return Outcome(
        ideal / (loop.time() - started),
        (sum(means) / len(means), max(most)),
        kolmogorov_smirnov(trained, workers.begun),
        len(workers.begun) - len(trained),
    )


def train(loop: JumpingLoop, engine: Engine, seconds: float, *, shares: bool) -> None:
    """An update; on a shared GPU the engine waits for it."""
    engine.pause(shares)
    loop.run_until_complete(_sleep(seconds))
    engine.pause(False)


def _sleep(seconds: float) -> Coroutine[Any, Any, None]:
    return asyncio.sleep(seconds)


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
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warm-up", type=int, default=10, help="first steps that are not measured")
    parser.add_argument("--rows", type=int, default=32, help="prompts of a step")
    parser.add_argument("--n", type=int, default=8, help="trajectories of a prompt")
    parser.add_argument("--speed", type=float, default=2000.0, help="tokens/s of the engine, and of the trainer")
    parser.add_argument("--fastest", type=float, default=60.0, help="tokens/s of one request at most")
    parser.add_argument("--longest-wait", type=float, default=120.0)
    parser.add_argument("--most-turns", type=int, default=100)
    parser.add_argument("--shared", action="store_true", help="engine and trainer share a GPU")
    args = parser.parse_args()
    sessions = read(args.sessions, args.longest_wait, args.most_turns)
    config = compose([f"rollout.n={args.n}", f"data.train_batch_size={args.rows}"], checks=())
    tokens = [sum(tokens for _, tokens in turns) for turns in sessions]
    alone = sorted(sum(wait + tokens / args.fastest for wait, tokens in turns) for turns in sessions)
    step = sum(tokens) / len(tokens) * args.rows * args.n / args.speed
    console = Console()
    console.print(
        f"{len(sessions)} sessions; alone on the engine one takes {alone[len(alone) // 2]:,.0f} s (median), "
        f"{alone[-1]:,.0f} s at most; an ideal step takes {step * (2 if args.shared else 1):,.0f} s"
    )
    table = Table("bound", "of the ideal", "over bound 0", "staleness mean", "max", "KS distance", "dropped")
    results = {bound: run(config, bound, sessions, args) for bound in args.bounds}
    base = results[args.bounds[0]].efficiency
    for bound, got in results.items():
        mean, most = got.staleness
        figures = f"{got.efficiency:.3f}", f"{got.efficiency / base:.2f}", f"{mean:.2f}", f"{most:.0f}"
        table.add_row(str(bound), *figures, f"{got.distance:.4f}", str(got.dropped))
    console.print(table)


if __name__ == "__main__":
    main()
