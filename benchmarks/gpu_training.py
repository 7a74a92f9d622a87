"""A training run of a user's command on one GPU, measured from outside: a part of one_gpu.py.

Times of phases are agentrl's own; the GPU's load in each comes from samples of NVML beside the run, the seconds to the
end of a step from the moment at which its line of metrics is there.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_parts import REWARD, console, estimate, least_seconds, median
from gpu_usage import Usage, busy_by_phase

PHASES = ("rollout", "logprobs", "update", "sync", "dump")
SPARE = 8
"""Tokens: SGLang ends an answer two tokens before its longest sequence."""
GRACE = 30.0
"""Seconds for a run to end after its last step."""
STOPPED = threading.Event()
"""Set by SIGTERM: what runs is stopped, what was measured is kept."""
Figures = dict[str, Any]


@dataclass(frozen=True)
class Work:
    """The work of a step: all lengths are exact."""

    prompts: int = 64
    group: int = 8
    prompt_tokens: int = 256
    new_tokens: int = 512

    @property
    def samples(self) -> int:
        return self.prompts * self.group


@dataclass
class Run:
    """What was seen of a run from outside. Times are seconds since the epoch."""

    begun: float
    ended: float = 0.0
    code: int | None = None
    step_ends: list[float] = field(default_factory=list)


def write_rows(file: Path, tokenizer: Any, work: Work, steps: int) -> None:
    """Different prompts of exactly `prompt_tokens` tokens in the model's chat template, and a reward function beside
    them."""
    with file.open("w") as stream:
        for i in range(work.prompts * steps):
            row = {"prompt": prompt_of(tokenizer, i, work.prompt_tokens), "data_source": "load"}
            stream.write(json.dumps(row | {"reward_model": {"ground_truth": str(i)}}) + "\n")
    file.with_name("reward.py").write_text(REWARD)


def prompt_of(tokenizer: Any, number: int, tokens: int) -> list[dict[str, str]]:
    """Messages of exactly so many tokens. Raises ValueError where there are none."""
    words = tokens
    for _ in range(8):
        messages = [{"role": "user", "content": f"{number:06d}" + " so" * words}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        excess = len(tokenizer.encode(text, add_special_tokens=False)) - tokens
        if excess == 0:
            return messages
        words -= excess
    raise ValueError(f"no prompt of exactly {tokens} tokens with this tokenizer")


def settings(work: Work, rows: Path, run: Path, *, model: Path, engine: str, steps: int) -> list[str]:
    """Model, batch and lengths; a load test needs exact lengths and no validation. All else is agentrl's default."""
    return [
        f"model.path={model}",
        f"data.train_files={rows}",
        "data.val_files=null",
        f"data.train_batch_size={work.prompts}",
        f"actor.ppo_mini_batch_size={work.prompts}",
        f"rollout.n={work.group}",
        f"data.max_prompt_length={work.prompt_tokens}",
        f"data.max_response_length={work.new_tokens}",
        f"rollout.max_model_len={work.prompt_tokens + work.new_tokens + SPARE}",
        f"rollout.name={engine}",
        "rollout.ignore_eos=true",
        f"reward.custom_reward_function.path={rows.with_name('reward.py')}",
        "reward.custom_reward_function.name=score",
        f"trainer.default_local_dir={run}",
        f"trainer.total_training_steps={steps}",
        "trainer.save_freq=-1",
        "trainer.test_freq=-1",
        "trainer.val_before_train=false",
    ]


def watch(command: Sequence[str], env: Mapping[str, str], log: Path, metrics: Path, steps: int, limit: float) -> Run:
    """Run a command until it ends, until `GRACE` seconds after its last step, or for `limit` seconds.

    It runs in the log's folder: a checkout in the working directory would come before the one that is measured.
    """
    run = Run(time.time())
    with log.open("w") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env=env, cwd=log.parent, start_new_session=True
        )
        try:
            while process.poll() is None and not _over(run, steps, limit):
                _see(run, metrics)
                time.sleep(0.02)
        finally:
            kill(process)  # SIGTERM would have it write a checkpoint; its servers end with it
    _see(run, metrics)
    run.ended, run.code = time.time(), process.returncode
    return run


def _over(run: Run, steps: int, limit: float) -> bool:
    late = STOPPED.is_set() or time.time() - run.begun > limit
    return late or (len(run.step_ends) >= steps and time.time() - run.step_ends[-1] > GRACE)


def _see(run: Run, metrics: Path) -> None:
    """Note the time of each new line of metrics."""
    lines = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
    if new := lines - len(run.step_ends):
        run.step_ends += [time.time()] * new
        console.print(f"  step {lines} after {time.time() - run.begun:.1f} s", highlight=False)


def kill(process: subprocess.Popen[Any]) -> None:
    """SIGKILL to all that is left of its session."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def train(
    command: Sequence[str], env: Mapping[str, str], folder: Path, work: Work, steps: int, limit: float
) -> Figures:
    """Run it and measure; the figures of the steps that ended. Raises RuntimeError where none did."""
    metrics, trace, log = folder / "run/metrics.jsonl", folder / "phases.jsonl", folder / "log.txt"
    with Usage() as usage:
        run = watch(command, env, log, metrics, steps, limit)
    lines = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
    marks = [tuple(json.loads(line)) for line in trace.read_text().splitlines()] if trace.exists() else []
    seen = ", ".join(f"{name or 'none'} at {time - run.begun:.1f} s" for time, name in marks[-3:])
    if not run.step_ends or not lines:
        raise RuntimeError(last_line(log, f"exit code {run.code}") + f"; no step; phases: {seen or 'none'}")
    _write_samples(folder / "gpu.csv", usage)
    return figures(run, lines, usage, marks, work)


def _write_samples(file: Path, usage: Usage) -> None:
    file.write_text("".join(f"{s.time:.3f},{s.busy},{s.memory:.3f}\n" for s in usage.samples))


def last_line(log: Path, default: str) -> str:
    """The last line that a program wrote."""
    return next(iter(tail(log, 1)), default)[:200]


def tail(log: Path, count: int) -> list[str]:
    """The last lines of a file that are not empty."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return [line.rstrip() for line in lines if line.strip()][-count:]


def figures(run: Run, lines: list[dict[str, Any]], usage: Usage, marks: Any, work: Work) -> Figures:
    """All figures of a run: times are medians over the steps after the first."""
    usual, first = lines[1:] or lines, lines[0]
    found = {f"{name}, s": value for name, value in step_seconds(usual).items()}
    found["sync, share of a step"] = median(line["time/sync"] / line["time/step"] for line in usual)
    found["tokens a step"] = median(line.get("batch/tokens", 0) for line in usual)
    found["rollout tokens/s"] = work.samples * work.new_tokens / found["rollout, s"]
    if "perf/update_mfu" in usual[0]:
        found["update MFU"] = median(line["perf/update_mfu"] for line in usual)
    busy = busy_by_phase(usage.samples, marks, run.step_ends[0], run.step_ends[-1])
    found |= {f"GPU busy, {name}": share for name, share in busy.items()}
    found |= start_figures(run, first, found["step, s"], marks)
    found |= quality(lines)
    peaks = [line[key] for line in lines for key in ("perf/update_peak_cuda_gb", "perf/peak_cuda_gb") if key in line]
    found |= {"peak of the trainer, GiB": max(peaks)} if peaks else {}
    if (peak := usage.peak()) is not None:
        found["peak of the GPU, GiB"] = peak
    end = "by itself" if run.code == 0 else f"exit code {run.code}" if (run.code or 0) > 0 else "killed"
    return found | {"steps": len(lines), "ended": end}


def step_seconds(lines: list[dict[str, Any]]) -> Figures:
    """Seconds of the step, of each phase, and of what is in none."""
    named = {name.removeprefix("time/") for line in lines for name in line if name.startswith("time/")} - {"step"}
    order = [*PHASES, *sorted(named - set(PHASES))]
    rest = [line["time/step"] - sum(line.get(f"time/{name}", 0.0) for name in named) for line in lines]
    step = {"step": median(line["time/step"] for line in lines)}
    return step | {n: median(line.get(f"time/{n}", 0.0) for line in lines) for n in order} | {"rest": median(rest)}


def start_figures(run: Run, first: dict[str, Any], step: float, marks: Any) -> Figures:
    """Seconds from the command to the end of step 1, by cause as far as the run's metrics have them."""
    whole = run.step_ends[0] - run.begun
    found = {"command to the end of step 1, s": whole}
    if marks:
        found["command to the first phase, s"] = marks[0][0] - run.begun
    found["step 1 beyond a usual one, s"] = first["time/step"] - step
    found |= {f"start: {name.partition('/')[2]}, s": v for name, v in first.items() if name.startswith("start/")}
    return found | {"last step to the end, s": run.ended - run.step_ends[-1]}


def quality(lines: list[dict[str, Any]]) -> Figures:
    """What must not get worse: violations, the gap to the engine, the first step's numbers."""
    found = {"ledger violations": sum(line["rollout/ledger_violations"] for line in lines)}
    for name in ("mean", "p99", "k3"):
        gaps = [line[f"rollout_gap/{name}"] for line in lines if f"rollout_gap/{name}" in line]
        found |= {f"rollout gap, {name}": max(gaps, key=abs)} if gaps else {}
    names = ("actor/pg_loss", "actor/grad_norm", "actor/entropy", "rollout/reward_mean")
    return found | {f"step 1: {name}": lines[0][name] for name in names if name in lines[0]}


def over_limit(found: Figures, work: Work, costs: tuple[int, int, float]) -> float:
    """The rollout's tokens/s over those of the memory's limit."""
    chains = [[(work.prompt_tokens, work.new_tokens)]] * work.samples
    return least_seconds(chains, work.samples, *costs) / found["rollout, s"]


def estimates(commands: Mapping[str, tuple[Sequence[str], Mapping[str, str]]], limit: float = 60.0) -> Figures:
    """GiB on the GPU by `agentrl doctor`, by name of a run; `commands`: its words and environment. All are asked at
    once."""
    asked = {
        name: subprocess.Popen(
            [sys.executable, "-P", "-m", "agentrl", "doctor", "--no-conversation", *words],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for name, (words, env) in commands.items()
    }

    def kill() -> None:
        for process in asked.values():
            process.kill()

    killer = threading.Timer(limit, kill)
    killer.start()
    said = {name: process.communicate()[0] for name, process in asked.items()}
    killer.cancel()
    guesses = {name: estimate(text) for name, text in said.items()}
    return {name: guess for name, guess in guesses.items() if guess}
