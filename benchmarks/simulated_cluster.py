"""A cluster of fixed speeds in virtual time: what the controller of 64 or 512 GPUs computes, keeps and sends.

    python benchmarks/simulated_cluster.py agent_waits.jsonl.gz                       # 64 and 512 GPUs, bounds 0 and 4
    python benchmarks/simulated_cluster.py agent_waits.jsonl.gz --gpus 64 --profile   # and the functions that cost most
    python benchmarks/simulated_cluster.py agent_waits.jsonl.gz --gpus 8 --steps 3    # to see that it runs

Real: the sampler with its stream and its window, the scheduler, an asyncio task for each conversation with its ledger,
packing, advantages, and the shares of the ranks, pickled as they are sent. Stubs: servers, whose requests share a fixed
speed, and ranks, which take a fixed time for a batch. The event loop jumps from event to event, so that hours of agents
that wait for their tools pass in seconds, and CPU seconds are the controller's alone. Half of the GPUs serve, half
train; a step has eight conversations a GPU, recorded sessions of a coding agent with tokens and turns reduced
(replayed_sessions.py), and speeds reduced alike. `cores`: CPU seconds of the controller over the seconds of a step;
above 1 it holds the GPUs back. Each line is a process.
"""

import argparse
import asyncio
import cProfile
import heapq
import itertools
import json
import pickle
import pstats
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gpu_parts import REWARD, console, mean
from gpu_prepare import tokenizer_of
from replayed_sessions import SESSIONS
from rich.table import Table
from stragglers import Quiet

from agentrl.config import compose
from agentrl.config.schema import Config
from agentrl.data import Loader
from agentrl.data.splits import Splits
from agentrl.engines.engine import Generation, Sampling
from agentrl.rollout.rollouts import Rollouts
from agentrl.rollout.sampler import Sampler, stream_of
from agentrl.runtime.ray.learner import RayLearner
from agentrl.training.batches.outline import BatchPlan
from agentrl.training.update.advantages import advantages_of, columns_read, kl_of
from agentrl.training.update.finished_groups import FinishedGroups
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Trajectory

GROUP = 8
LOOK = 5.0
"""Virtual seconds between two looks of a trainer that waits."""
FIGURES = {
    "s a step": "{:,.0f}", "of the ideal": "{:.3f}", "turns": "{:,.0f}", "tokens": "{:,.0f}", "age": "{:.2f}",
    "oldest": "{:.0f}", "servers idle": "{:.2f}", "trainer waits": "{:.2f}", "CPU s": "{:.2f}", "loop": "{:.2f}",
    "pack": "{:.2f}", "shares": "{:.2f}", "us a turn": "{:,.0f}", "cores": "{:.4f}", "GiB": "{:.2f}",
    "MiB sent": "{:,.0f}",
}  # fmt: skip
Figures = dict[str, float]


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer; work for other threads runs at once."""

    now = 0.0

    def __init__(self) -> None:
        super().__init__()
        select = self._selector.select  # type: ignore[attr-defined]

        def jump(timeout: float | None = None) -> Any:
            events = select(0)
            if timeout and not events:
                self.now += timeout
            return events

        self._selector.select = jump  # type: ignore[attr-defined]

    def time(self) -> float:
        return self.now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        future = self.create_future()
        future.set_result(func(*args))
        return future


@dataclass
class Server:
    """Requests that share a speed equally; none gets more than `fastest`. Tokens a second."""

    loop: VirtualLoop
    speed: float
    fastest: float
    busy: float = 0.0
    """Seconds with a request, and request seconds."""
    requests: float = 0.0
    _each: float = 0.0
    """Tokens of a request that was there all the time."""
    _last: float = 0.0
    _queue: list[tuple[float, int, asyncio.Future[None]]] = field(default_factory=list)
    _timer: asyncio.TimerHandle | None = None
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    async def tokens(self, count: int) -> None:
        """Wait until so many tokens are sampled."""
        self._pass()
        done = self.loop.create_future()
        heapq.heappush(self._queue, (self._each + count, next(self._numbers), done))
        self._set_timer()
        await done

    def _rate(self) -> float:
        return min(self.fastest, self.speed / len(self._queue))

    def _pass(self) -> None:
        seconds, self._last = self.loop.now - self._last, self.loop.now
        if self._queue:
            self._each += seconds * self._rate()
            self.busy += seconds
            self.requests += seconds * len(self._queue)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._queue:
            left = max(self._queue[0][0] - self._each, 0.0) / self._rate()
            self._timer = self.loop.call_later(left, self._ended)

    def _ended(self) -> None:
        self._pass()
        while self._queue and self._queue[0][0] <= self._each + 1e-6:
            heapq.heappop(self._queue)[2].set_result(None)
        self._set_timer()


@dataclass
class Servers:
    """The engine: a conversation stays on one server."""

    all: list[Server]
    version: int = 0
    turns: int = 0
    _of: dict[str, Server] = field(default_factory=dict)
    _next: int = 0

    async def generate(self, token_ids: list[int], sampling: Sampling, *, key: str, media: Any = ()) -> Generation:
        """Tokens of the number that the session asks for."""
        server = self._of.get(key)
        if server is None:
            server = self._of[key] = self.all[self._next % len(self.all)]
            self._next += 1
        version, count = self.version, sampling.max_new_tokens
        await server.tokens(count)
        self.turns += 1
        return Generation([1] * count, [-0.5] * count, "length", version)

    def open(self, key: str) -> None:
        """Nothing to prepare."""

    def release(self, key: str) -> None:
        self._of.pop(key, None)

    async def health(self) -> dict[str, float]:
        """No figures of a cache."""
        return {}

    async def close(self) -> None:
        """Nothing to stop."""


@dataclass
class Made:
    """Trajectories of a batch that was begun."""

    loop: VirtualLoop
    task: asyncio.Task[list[Trajectory]]

    def result(self, poll: Callable[[], object] = lambda: None) -> list[Trajectory]:
        while not self.task.done():
            self.loop.run_until_complete(asyncio.wait({self.task}, timeout=LOOK))
            poll()
        return self.task.result()

    def done(self) -> bool:
        return self.task.done()


@dataclass
class Background:
    """Rollouts that continue while the ranks train."""

    loop: VirtualLoop
    servers: Servers
    begun: float = 0.0

    def start(self, work: Coroutine[Any, Any, list[Trajectory]]) -> Made:
        return Made(self.loop, self.loop.create_task(work))

    def activity(self) -> dict[str, float]:
        seconds, self.begun = max(self.loop.now - self.begun, 1e-9), self.loop.now
        found = sum(server.requests for server in self.servers.all) / seconds
        for server in self.servers.all:
            server.requests = 0.0
        return {"perf/running_requests": found}

    def close(self) -> None:
        """Everything ends with the process."""


@dataclass
class Store:
    """Bodies of the trajectories of a step, by number."""

    values: dict[int, Any] = field(default_factory=dict)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def put(self, value: Any) -> int:
        number = next(self._numbers)
        self.values[number] = value
        return number

    def get(self, references: Sequence[int]) -> list[Any]:
        return [self.values[number] for number in references]


@dataclass
class Ranks:
    """The group of ranks: takes shares, and counts their bytes and the CPU seconds of sending them."""

    count: int
    sent: int = 0

    def call(self, method: str, name: str, outline: Any = None) -> Any:
        """The plan of a batch: shares of equal work."""
        if name != "plan":
            return True
        order = np.argsort(-np.asarray(outline.lengths), kind="stable")
        shares = [order[rank :: self.count].tolist() for rank in range(self.count)]
        return BatchPlan(shares, scores_first=False)

    def scatter(self, name: str, shares: Iterator[Any], each: int) -> list[dict[str, float]]:
        self.sent += sum(len(pickle.dumps(share, protocol=5)) for share in shares)
        return [{}]


class Cluster:
    """Servers, ranks, and the controller's own parts around them."""

    def __init__(self, args: argparse.Namespace, config: Config) -> None:
        self.args, self.config, self.loop = args, config, VirtualLoop()
        asyncio.set_event_loop(self.loop)
        half, share = args.gpus // 2, args.tokens
        self.servers = Servers([Server(self.loop, args.speed * share, args.fastest * share) for _ in range(half)])
        self.ranks = Ranks(half)
        self.store = Store()
        self.learner = RayLearner(self.ranks, self.store, 1, reads=columns_read(config))  # type: ignore[arg-type]
        self.cpu = dict.fromkeys(("loop", "pack", "shares"), 0.0)
        run = self.loop.run_until_complete
        background = Background(self.loop, self.servers) if config.trainer.max_staleness else None
        tokenizer = tokenizer_of("")
        self.rollouts = Rollouts(config, tokenizer, self.servers, run, background=background)  # type: ignore[arg-type]
        rows = [Row(f"r{i}", [{"role": "user", "content": f"Number {i}."}]) for i in range(args.gpus * 4)]
        loader = Loader(rows, args.gpus, shuffle=True, seed=0)
        self.advantages = advantages_of(config, kl_of(config.algorithm), lambda *_: None)
        look = FinishedGroups(config, self, self.advantages)
        stream = stream_of(config, Splits(loader, [], args.steps + args.bound + 1))
        self.sample = Sampler(config, self.rollouts, stream, Quiet(), lambda: self.loop.now, look)  # type: ignore[arg-type]
        self.early = 0

    def can_accumulate_early(self) -> bool:
        return self.config.trainer.max_staleness > 0

    def accumulate_early(self, part: Any) -> None:
        """Ranks begin with groups that are finished."""
        with self._counted("shares"):
            self.learner.accumulate_early(part)
        self.early += part.num_tokens
        self._train(part.num_tokens)

    def step(self, step: int) -> Figures:
        """One step of the training loop."""
        begun, first, turns, sent = time.process_time(), self.loop.now, self.servers.turns, self.ranks.sent
        busy, parts, self.early = sum(s.busy for s in self.servers.all), dict(self.cpu), 0
        groups = self.sample(step)
        with self._counted("pack"):
            batch = self.learner.pack(groups.trained, step - 1)
            batch, _ = self.advantages(batch, groups.trained, None, step)
        with self._counted("shares"):
            self.learner.update(batch)
        self.store.values.clear()
        self._train(batch.num_tokens - self.early)
        self.servers.version = step
        seconds = self.loop.now - first
        used = time.process_time() - begun
        mine = {name: self.cpu[name] - parts[name] for name in ("pack", "shares")}
        made = self.servers.turns - turns
        idle = 1 - (sum(s.busy for s in self.servers.all) - busy) / seconds / len(self.servers.all)
        drawn = sum(ledger.model_tokens for t in groups.trained for ledger in t.ledgers)
        found = {"s a step": seconds, "CPU s": used, **mine, "loop": used - sum(mine.values()), "turns": made}
        found |= {"tokens": batch.num_tokens, "servers idle": idle, "MiB sent": (self.ranks.sent - sent) / 2**20}
        found |= {"drawn": drawn, "trainer waits": 1 - self._seconds(batch.num_tokens) / seconds}
        found |= {"age": groups.metrics.get("staleness/mean", 0.0), "oldest": groups.metrics.get("staleness/max", 0.0)}
        return found | {"GiB": memory()}

    @contextmanager
    def _counted(self, part: str) -> Iterator[None]:
        begun = time.process_time()
        yield
        self.cpu[part] += time.process_time() - begun

    def _seconds(self, tokens: int) -> float:
        """Seconds that the ranks take: they are as fast as the servers."""
        return tokens * self.args.drawn_share / (self.args.speed * self.args.tokens * self.ranks.count)

    def _train(self, tokens: int) -> None:
        self.loop.run_until_complete(asyncio.sleep(self._seconds(tokens)))


def memory() -> float:
    """GiB of this process."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["VmRSS"].split()[0]) / 2**20


def measured(args: argparse.Namespace, folder: Path) -> Figures:
    """Means over the steps after those that fill the window."""
    every = args.every or (2 if args.gpus <= 64 else 8)
    SESSIONS.read(args.sessions, every=every, tokens=args.tokens, seconds=1.0)
    drawn = sum(turn.tokens for turns in SESSIONS.all for turn in turns)
    args.drawn_share = drawn / sum(turn.tokens + turn.reply for turns in SESSIONS.all for turn in turns)
    (folder / "reward.py").write_text(REWARD)
    tokenizer_of("").save_pretrained(folder)
    config: Config = compose(
        [
            f"model.path={folder}", f"rollout.n={GROUP}", f"data.train_batch_size={args.gpus}",
            f"actor.ppo_mini_batch_size={args.gpus}", f"trainer.max_staleness={args.bound}",
            "rollout.agent.default_agent_loop=replayed_sessions.Replay", "rollout.trajectory_timeout=100000000",
            f"rollout.max_concurrent_trajectories={args.gpus * GROUP * (args.bound + 1)}",
            f"data.max_response_length={SESSIONS.longest()}", "rollout.deterministic=false",
            f"reward.custom_reward_function.path={folder / 'reward.py'}", "reward.custom_reward_function.name=score",
        ],
        checks=(),
    )  # fmt: skip
    cluster = Cluster(args, config)
    base, first = memory(), args.bound + 1
    profile = cProfile.Profile()
    lines = []
    for step in range(1, args.steps + 1):
        if args.profile and step == first:
            profile.enable()
        lines.append(cluster.step(step))
    profile.disable()
    if args.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    usual = lines[first:] or lines[-1:]
    found = {name: mean(line[name] for line in usual) for name in usual[0]}
    found["oldest"], found["GiB"] = max(line["oldest"] for line in lines), max(line["GiB"] for line in lines) - base
    found["us a turn"] = 1e6 * found["loop"] / max(found["turns"], 1)
    found["cores"] = found["CPU s"] / found["s a step"]
    found["of the ideal"] = found["drawn"] / (args.speed * args.tokens * args.gpus / 2) / found["s a step"]
    return found


def main() -> None:
    """A process a line, then the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sessions", type=Path)
    parser.add_argument("--gpus", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--bounds", type=int, nargs="+", default=[0, 4])
    parser.add_argument("--steps", type=int, default=10, help="bound + 1 of them fill the window")
    parser.add_argument("--tokens", type=float, default=0.04, help="share of the tokens, and of the speeds")
    parser.add_argument("--every", type=int, default=0, help="turns that become one; default 2, above 64 GPUs 8")
    parser.add_argument("--speed", type=float, default=300.0, help="tokens/s of a GPU that serves")
    parser.add_argument("--fastest", type=float, default=60.0, help="tokens/s of a request at most")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds of a line")
    parser.add_argument("--profile", action="store_true", help="print the functions that cost most")
    parser.add_argument("--bound", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.bound is not None:
        (args.gpus,) = args.gpus
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measured(args, Path(folder))))
        return
    table = Table("GPUs", "bound", *FIGURES, title="the controller, a step")
    for gpus, bound in itertools.product(args.gpus, args.bounds):
        command = [sys.executable, __file__, *sys.argv[1:], "--gpus", str(gpus), "--bound", str(bound)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=args.limit, check=False)
        except subprocess.TimeoutExpired:
            console.print(gpus, bound, f"not ready after {args.limit:.0f} s")
            continue
        *said, last = done.stdout.splitlines() or [""]
        if done.returncode:
            console.print(gpus, bound, "failed:", done.stderr[-2000:], markup=False, highlight=False)
            continue
        console.print(*said, sep="\n", highlight=False)
        found = json.loads(last)
        table.add_row(str(gpus), str(bound), *(form.format(found[name]) for name, form in FIGURES.items()))
        console.print(gpus, bound, {name: round(value, 4) for name, value in found.items()}, highlight=False)
    console.width = 200
    console.print(table)


if __name__ == "__main__":
    main()
