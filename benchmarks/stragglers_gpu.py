"""Speed at each bound with a few slow conversations, on a real engine and a real update that share one GPU.

    python benchmarks/stragglers_gpu.py agent_waits.jsonl.gz --tokenizer MODEL
    python benchmarks/stragglers_gpu.py agent_waits.jsonl.gz --device cpu --engine hf --tiny

Qwen3-1.7B's shape, random weights. Recorded sessions of a coding agent are replayed (replayed_sessions.py): every
16th turn, tokens of the model and of tools' answers times 0.12, waits, capped at 120 s, times 0.02. One process and one
server serve all variants. A number is `trainer.max_staleness`; with an i, sampling is interrupted while the policy
trains, and the server frees its memory (`rollout.free_cache_engine=true`), otherwise both run at once; with a d,
requests that have begun end before the weights arrive (`rollout.partial_rollout=false`). --seconds ends a variant,
--limit the whole; the table has all that was measured until then. Costs about 500 s on an H200, 75 of them to the
first step.
"""

import argparse
import contextlib
import json
import signal
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_parts import REWARD, console, mean, median, random_model
from gpu_prepare import tokenizer_of
from gpu_usage import Usage
from replayed_sessions import SESSIONS, length
from rich.table import Table
from stragglers import kolmogorov_smirnov

from agentrl.config import compose
from agentrl.config.schema import Config
from agentrl.core.tasks import cancelled
from agentrl.rollout.pausable_engine import PausableEngine
from agentrl.runtime.local import LocalRuntime
from agentrl.train import Trainer, open_trainer

PROMPT = 128
"""Tokens of a prompt at most."""
ANSWER = {"data_source": "load", "reward_model": {"ground_truth": "0"}}


@dataclass(frozen=True)
class Variant:
    """A bound, and how the GPU is shared."""

    bound: int
    interrupted: bool
    drained: bool

    @classmethod
    def parse(cls, text: str) -> "Variant":
        """From 4, 4i, 4d or 4id."""
        return cls(int(text.rstrip("id")), "i" in text, "d" in text)

    def __str__(self) -> str:
        return f"{self.bound}{'i' * self.interrupted}{'d' * self.drained}"


@dataclass
class Measured:
    """Steps of one variant."""

    ends: list[float] = field(default_factory=list)
    """When each step ended, in seconds since the epoch."""
    tokens: list[int] = field(default_factory=list)
    """Tokens of the model that each step trained on."""
    lines: list[dict[str, float]] = field(default_factory=list)
    trained: dict[str, int] = field(default_factory=dict)
    """Tokens by trajectory."""
    begun: dict[str, int] = field(default_factory=dict)
    warm_up: int = 1
    """First steps that are not measured."""
    note: str = ""

    def window(self) -> tuple[float, float]:
        """From the end of the warm-up to the end of the last step."""
        return self.ends[self.warm_up - 1], self.ends[-1]

    def seconds(self) -> float:
        """Of the measured steps."""
        first, last = self.window() if len(self.ends) > self.warm_up else (0.0, 0.0)
        return last - first

    def speed(self) -> float:
        """Trained tokens of the model a second."""
        return sum(self.tokens[self.warm_up :]) / self.seconds()

    def metric(self, name: str) -> float:
        """The mean over the measured steps."""
        return mean(line[name] for line in self.lines[self.warm_up :] if name in line)

    def dropped(self) -> int:
        """Trajectories of steps that are over which were not trained on."""
        over = {f"{step}" for step in range(1, len(self.ends) + 1)}
        return sum(key not in self.trained for key in self.begun if key.partition("/")[0] in over)


class Bench:
    """All variants, one after the other, on one runtime."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.args, self.folder, self.usage = args, folder, Usage()
        self.config: Config = compose(settings(args, folder), checks=())
        self.measured: dict[str, Measured] = {}

    def run(self, runtime: LocalRuntime) -> None:
        """Take the steps of each variant; one that fails is a line."""
        for variant in map(Variant.parse, self.args.variants):
            measured = self.measured[str(variant)] = Measured(warm_up=2 * variant.bound + 1)  # the window settles
            console.print(f"variant {variant}")
            try:
                self._steps(runtime, variant, measured)
            except Exception as error:
                measured.note = f"{type(error).__name__}: {error}"[:120]
                (self.folder / f"error-{variant}.txt").write_text(traceback.format_exc())
            finally:  # --limit too ends a variant here
                measured.begun = dict(SESSIONS.begun)
            assert runtime.async_sampling is not None
            runtime.runner.run(cancelled(runtime.async_sampling._tasks))  # what is under way
            runtime.prepare = lambda total_steps: None  # type: ignore[method-assign]  # once is enough

    def _steps(self, runtime: LocalRuntime, variant: Variant, measured: Measured) -> None:
        self.config.trainer.max_staleness = variant.bound
        self.config.trainer.default_local_dir = str(self.folder / f"run-{variant}")
        runtime.sleeps = variant.interrupted and self.args.engine != "hf"  # that one has no memory of its own
        assert runtime.async_sampling is not None
        engine = runtime.async_sampling.engine
        assert isinstance(engine, PausableEngine)
        engine.partial = not variant.drained
        SESSIONS.begun.clear()
        with open_trainer(self.config, runtime) as trainer:
            noted(trainer, measured)
            for step in range(1, measured.warm_up + self.args.steps + 1):
                metrics = trainer.tracker.step(step, trainer.train_step(step))
                measured.ends.append(time.time())
                measured.lines.append(metrics)
                console.print(f"  step {step} {metrics['time/step']:.1f} s", highlight=False)
                if measured.seconds() > self.args.seconds:
                    break

    def table(self) -> Table:
        """A row for each variant with a step after its warm-up."""
        columns = (
            "bound steps step-s tokens/s over-first GPU-idle engine-idle waits early window age most gap KS dropped"
        )
        title = "one GPU, real engine and update; i: interrupted to train, d: drained for weights"
        table = Table(*columns.split(), "", title=title)
        done = {name: found for name, found in self.measured.items() if len(found.ends) > found.warm_up}
        base = next(iter(done.values())).speed() if done else 1.0
        for name, found in self.measured.items():
            table.add_row(name, *(self._cells(found, base) if name in done else [""] * 14), found.note)
        return table

    def _cells(self, found: Measured, base: float) -> list[str]:
        first, last = found.window()
        steps = len(found.ends) - found.warm_up
        busy = [sample.busy for sample in self.usage.samples if first < sample.time <= last]
        ages = [line.get("staleness/max", 0.0) for line in found.lines]
        distance = kolmogorov_smirnov(list(found.trained.values()), list(found.begun.values()))
        return [
            str(steps),
            f"{(last - first) / steps:.1f}",
            f"{found.speed():,.0f}",
            f"{found.speed() / base:.2f}",
            f"{1 - mean(busy):.3f}" if busy else "",
            f"{found.metric('perf/engine_idle_share'):.3f}",
            f"{found.metric('perf/trainer_wait_share'):.3f}",
            f"{found.metric('perf/early_share'):.2f}",
            f"{found.metric('perf/window'):.1f}",
            f"{found.metric('staleness/mean'):.2f}",
            f"{max(ages):.0f}",
            f"{found.metric('rollout_gap/mean'):.4f}",
            f"{distance:.3f}",
            str(found.dropped()),
        ]


def noted(trainer: Trainer, measured: Measured) -> None:
    """Note the trajectories that each step trains on."""
    take = trainer.take_groups

    def take_and_note(step: int) -> Any:
        groups = take(step)
        tokens = {t.key: sum(ledger.model_tokens for ledger in t.ledgers) for t in groups.trained}
        measured.trained |= tokens
        measured.tokens.append(sum(tokens.values()))
        return groups

    trainer.take_groups = take_and_note  # type: ignore[assignment]


def settings(args: argparse.Namespace, folder: Path) -> list[str]:
    """Model, batch, lengths and memory; all else is agentrl's default."""
    (folder / "reward.py").write_text(REWARD)
    rows = [{"prompt": [{"role": "user", "content": f"Number {i}."}], **ANSWER} for i in range(8192)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    variants = [Variant.parse(text) for text in args.variants]
    most = max(variant.bound for variant in variants) + 1
    memory = [f"rollout.gpu_memory_utilization={args.memory}", f"actor.ppo_max_token_len_per_gpu={args.pass_tokens}"]
    memory += [f"rollout.free_cache_engine={any(variant.interrupted for variant in variants)}"]
    model = random_model(folder, tokenizer_of(str(args.tokenizer or "")), "tiny" if args.tiny else "qwen3-1.7b")
    return [
        f"model.path={model}",
        f"data.train_files={folder / 'rows.jsonl'}",
        "data.filter_overlong_prompts=false",
        f"data.train_batch_size={args.prompts}",
        f"actor.ppo_mini_batch_size={args.prompts}",
        f"data.max_prompt_length={PROMPT}",
        f"data.max_response_length={SESSIONS.longest()}",
        f"rollout.n={args.group}",
        f"rollout.name={args.engine}",
        f"rollout.max_concurrent_trajectories={args.prompts * args.group * most}",
        f"rollout.max_num_seqs={args.sequences}",
        "rollout.agent.default_agent_loop=replayed_sessions.Replay",
        f"reward.custom_reward_function.path={folder / 'reward.py'}",
        "reward.custom_reward_function.name=score",
        f"trainer.device={args.device}",
        f"trainer.max_staleness={most - 1}",
        f"trainer.default_local_dir={folder / 'run'}",
        "trainer.total_training_steps=100",
        "trainer.resume_mode=disable",
        "trainer.save_freq=-1",
        "trainer.test_freq=-1",
        *(memory if args.device == "cuda" else []),
        *args.set,
    ]


class OutOfTime(BaseException):
    """--limit, or SIGTERM."""


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """The body, until its time is over."""

    def stop(*_: object) -> None:
        signal.alarm(0)
        raise OutOfTime

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGALRM, stop)
    signal.alarm(int(seconds))
    with contextlib.suppress(OutOfTime):
        yield
    signal.alarm(0)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sessions", type=Path)
    parser.add_argument("--variants", nargs="+", default=["0", "2", "4", "4i"], help="bounds, with i or d")
    parser.add_argument("--tokenizer", type=Path, help="folder of a model whose tokenizer serves; default: a new one")
    parser.add_argument("--engine", default="sglang")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--sequences", type=int, default=512, help="that the server decodes at once")
    parser.add_argument("--every", type=int, default=16, help="turns of a session that become one")
    parser.add_argument("--tokens", type=float, default=0.12, help="share of the tokens of turns and tools")
    parser.add_argument("--time", type=float, default=0.02, help="share of the waits")
    parser.add_argument("--steps", type=int, default=12, help="measured steps of a variant at most")
    parser.add_argument("--seconds", type=float, default=35, help="of a variant's measured steps, about")
    parser.add_argument("--limit", type=float, default=540, help="seconds in all")
    parser.add_argument("--memory", type=float, default=0.45, help="share of the GPU for the server")
    parser.add_argument("--pass-tokens", type=int, default=16384)
    parser.add_argument("--set", nargs="+", default=[], help="more settings")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, short sessions, 4 x 2 trajectories")
    parser.add_argument("--out", type=Path, help="folder for logs; default: a temporary one")
    args = parser.parse_args()
    if args.tiny:
        args.prompts, args.group, args.sequences, args.steps = 4, 2, 40, 2
        args.every, args.tokens, args.time = 32, 0.02, 0.005
    return args


def main() -> None:
    args = arguments()
    SESSIONS.read(args.sessions, every=args.every, tokens=args.tokens, seconds=args.time)
    waits = [sum(turn.wait for turn in turns[1:]) for turns in SESSIONS.all]
    sizes = [length(turns) for turns in SESSIONS.all]
    answers = [sum(turn.reply for turn in turns[1:]) for turns in SESSIONS.all]
    console.print(
        f"{len(sizes)} sessions: {median(map(len, SESSIONS.all)):.0f} turns, {median(sizes):.0f} tokens of the model, "
        f"{median(answers):.0f} of tools, {median(waits):.1f} s of waits (medians); at most "
        f"{max(map(len, SESSIONS.all))}, {max(sizes)}, {max(answers)}, {max(waits):.1f} s"
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.out or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        measure(args, folder)


def measure(args: argparse.Namespace, folder: Path) -> None:
    """Run all, and print the table, whatever comes."""
    bench, begun = Bench(args, folder), time.time()
    runtime: LocalRuntime | None = None
    try:
        with bench.usage, limited(args.limit):
            runtime = LocalRuntime(bench.config)
            console.print(f"the model is there after {time.time() - begun:.0f} s")
            bench.run(runtime)
    finally:
        console.print(bench.table())
        if runtime is not None:
            runtime.close()
    console.print(f"{time.time() - begun:.0f} s")


if __name__ == "__main__":
    main()
