"""The time of `agentrl view` to open a run: by default 100,000 trajectories of about 500 tokens.

Writes a synthetic run with the code of real runs, then measures in a fresh process: the first page, a step's table, a
conversation, a step's timeline, a filter and a search over all steps; with the indices of the dumps, and (`--rebuild`)
without.

    python benchmarks/view.py --trajectories 100000 --steps 200 --out /tmp/view-bench
"""

import argparse
import json
import random
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from agentrl.core.outputs import write_atomic
from agentrl.tracking.dumps.jsonl import write_trajectories
from agentrl.trajectory.ledger import Ledger, Source
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Outcome, Span, ToolCallRecord, Trajectory

WORDS = ("so", "we", "add", "the", "two", "and", "take", "what", "is", "left", "then", "divide by", "three", "giving")


def decode(ids: Sequence[int]) -> str:
    """In these files a token is a character."""
    return "".join(map(chr, ids))


def text(rng: random.Random, n: int) -> str:
    """About `n` characters."""
    return " ".join(rng.choices(WORDS, k=max(1, n // 5))) + "."


def made_up(rng: random.Random, step: int, row: int, sample: int, tokens: int) -> Trajectory:
    """Four turns with three calls, tool replies and spans; one in 50 is a straggler, one in 200 failed."""
    ledger, clock = Ledger(), 1.7e9 + step * 100 + rng.random()
    trajectory = Trajectory(Row(f"train.parquet:{row}", [{"role": "user", "content": "How much?"}]), "", sample)
    ledger.append_prompt([ord(c) for c in f"<user>{text(rng, tokens // 8)}<assistant>"])
    slow = 8 if rng.random() < 0.02 else 1
    for turn in range(4):
        said = [ord(c) for c in text(rng, tokens // 8)]
        ledger.append_model(said, [-rng.expovariate(4) for _ in said], turn=turn, version=step)
        took = slow * rng.uniform(0.5, 2)
        trajectory.spans += [Span("generate", clock, clock + took), Span("tool", clock + took, clock + took + 0.3)]
        clock += took + 0.3
        reply = text(rng, tokens // 10)
        ledger.append_observation([ord(c) for c in f"<tool>{reply}<assistant>"], Source.TOOL, turn=turn)
        call = ToolCallRecord(turn, "calculator", {"expression": "17 * 23"}, reply, Outcome.OK, 0.3)
        trajectory.tool_calls.append(call)
    trajectory.messages = [{"role": "assistant", "content": decode(said)}]
    trajectory.key, trajectory.ledgers, trajectory.turns = f"{step}/train.parquet:{row}/{sample}", [ledger], 4
    trajectory.reward = float(rng.random() < 0.3 + step / 500)
    if rng.random() < 0.005:
        trajectory.outcome, trajectory.error, trajectory.finish = Outcome.INFRA_ERROR, "the sandbox is gone", "error"
    return trajectory


def moved(rng: random.Random, trajectory: Trajectory, step: int) -> Trajectory:
    """The same at another step, with another reward and other times."""
    spans = [Span(s.kind, s.start + step * 100, s.end + step * 100) for s in trajectory.spans]
    reward = float(rng.random() < 0.3 + step / 500)
    return replace(trajectory, key=trajectory.key.replace("0/", f"{step}/", 1), spans=spans, reward=reward)


def write_run(out: Path, trajectories: int, steps: int, tokens: int) -> None:
    """A run of `steps` steps, groups of 8."""
    rng = random.Random(0)
    per_step = trajectories // steps
    lines = []
    pool = [made_up(rng, 0, i // 8, i % 8, tokens) for i in range(per_step)]
    for step in range(1, steps + 1):
        made = [moved(rng, trajectory, step) for trajectory in pool]
        for each in made:
            each.advantages = [[each.reward or -0.5] * len(each.ledgers[0])]
        write_trajectories(out / "rollouts" / f"{step}.jsonl", step, made, decode)
        mean = sum(t.reward or 0 for t in made) / per_step
        lines.append(json.dumps({"step": step, "rollout/reward_mean": mean, "time/step": 20 + rng.random()}) + "\n")
    write_atomic(out / "metrics.jsonl", lines)


def ask(url: str) -> tuple[float, bytes]:
    """Seconds and answer of one request."""
    begin = time.perf_counter()
    with urllib.request.urlopen(url) as response:
        answer = response.read()
    return time.perf_counter() - begin, answer


def measure(run: Path, steps: int) -> dict[str, float]:
    """Seconds from the command to each answer, in a fresh process."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "agentrl", "view", str(run), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        assert process.stdout is not None
        url = next(word for word in process.stdout.readline().split() if word.startswith("http"))
        times = {"command to page": ask(url)[0] + time.perf_counter() - begin}
        questions = {
            "runs": "runs",
            "curves": "metrics?names=rollout/reward_mean,time/step",
            "table of a step": f"trajectories?step={steps}",
            "conversation": f"trajectory?step={steps}&line=3",
            "timeline of a step": f"timeline?step={steps}",
            "table of all steps": "trajectories?limit=200",
            "filter over all steps": "trajectories?outcome=infra_error&reward_min=1&sort=-seconds",
            "text search over all steps": "trajectories?text=sandbox%20is%20gone",
        }
        for name, question in questions.items():
            times[name], _ = ask(f"{url}api/{question}")
        process.terminate()
    return times


def main() -> None:
    """Write the run if it is missing, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=500, help="about, in a trajectory")
    parser.add_argument("--out", type=Path, default=Path("runs/view-bench"))
    parser.add_argument("--rebuild", action="store_true", help="also without the indices")
    args = parser.parse_args()
    if not args.out.exists():
        begin = time.perf_counter()
        write_run(args.out, args.trajectories, args.steps, args.tokens)
        print(f"written in {time.perf_counter() - begin:.0f} s, made-up text included")
    size = sum(file.stat().st_size for file in (args.out / "rollouts").glob("*.jsonl"))
    print(f"{args.trajectories:,} trajectories, {args.steps} steps, {size / 1e9:.2f} GB")
    rounds = ["as written"] + (["without indices"] if args.rebuild else [])
    for name in rounds:
        if name == "without indices":
            for index in (args.out / "rollouts").glob(".*.index"):
                index.unlink()
        for what, seconds in measure(args.out, args.steps).items():
            print(f"  {name:<16} {what:<28} {seconds:7.3f} s")


if __name__ == "__main__":
    main()
