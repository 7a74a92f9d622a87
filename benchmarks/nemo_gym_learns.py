"""Learning curve on NeMo Gym's own Blackjack server, unmodified: mean reward of held-out hands over a run.

    python benchmarks/nemo_gym_learns.py --python .venv-nemo-gym/bin/python --seeds 0 1 2

A hand is won (1), drawn (0) or lost (-1). Demonstrations hit or stand at random, so the warm model does, and only the
server's rewards can correct it. By the same rules three fixed policies play for comparison. The server deals new cards
for each hand, also within a group. `make test-agents` installs NeMo Gym.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from agentrl.tracking import read_metrics

SERVER = "blackjack"
RANKS = ["2", "3", "4", "5", "6", "7", "8", "9", "10", "J", "Q", "K", "A"]
REMINDER = "Respond with <action>hit</action> or <action>stand</action>."
Policy = Callable[[int], bool]
"""Whether to hit with a hand of this value."""


def main() -> None:
    """A warm model, a run for each seed, and fixed policies."""
    args = arguments()
    prepare(args)
    runs = [trained(args, seed) for seed in args.seeds]
    rng = random.Random(0)
    fixed: dict[str, Policy] = {
        "acts at random": lambda value: rng.random() < 0.5,
        "stands": lambda value: False,
        "hits below 17": lambda value: value < 17,
    }
    means = {name: statistics.fmean(played(policy, rng) for _ in range(20_000)) for name, policy in fixed.items()}
    Console(width=120).print(table(runs, means, args))


def arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", type=Path, default=Path(".venv-nemo-gym/bin/python"), help="that has nemo-gym")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=48, help="of 16 groups of 16 hands each")
    parser.add_argument("--warm-up", type=int, default=400, help="steps of the warm-up")
    parser.add_argument("--held-out", type=int, default=1024, help="hands of a validation")
    parser.add_argument("--out", type=Path, default=Path(".cache/nemo_gym_learns"))
    parser.add_argument("--set", nargs="*", default=[], help="further settings of the runs")
    args = parser.parse_args()
    args.out, args.python = args.out.absolute(), args.python.absolute()
    return args


def prepare(args: argparse.Namespace) -> None:
    """Write rows and a warm model; all hands begin with the published row."""
    folder: Path = args.out
    folder.mkdir(parents=True, exist_ok=True)
    found = list(
        args.python.parents[1].glob(f"lib/python*/site-packages/resources_servers/{SERVER}/data/example.jsonl")
    )
    if not found:
        sys.exit(f"{args.python} has no NeMo Gym: run `make test-agents`, or name another --python")
    text = found[0].read_text().splitlines()[0]
    entries = {}
    for name, count in (("train", 16 * args.steps), ("val", args.held_out)):
        (folder / f"{name}.jsonl").write_text(f"{text}\n" * count)
        entries[name] = {"nemo_gym": SERVER, "python": str(args.python), "data": str(folder / f"{name}.jsonl")}
    (folder / "environments.yaml").write_text(json.dumps(entries))
    rng = random.Random(0)
    asked = json.loads(text)["responses_create_params"]["input"]
    shown = [{"messages": [*asked, *demonstration(rng)]} for _ in range(4000)]
    (folder / "sft.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in shown))
    if not (folder / "warm/config.json").exists():
        agentrl(folder, "model", "tiny", str(folder / "model"), "--tokenizer-data", str(folder / "sft.jsonl"))
        files = [f"model.path={folder / 'model'}", f"data.train_files={folder / 'sft.jsonl'}"]
        steps = [f"trainer.output_dir={folder / 'warm'}", f"trainer.total_training_steps={args.warm_up}"]
        agentrl(folder, "sft", "--config-name=tiny_sft", *files, *steps, "trainer.device=cpu")


def demonstration(rng: random.Random) -> Iterator[dict[str, str]]:
    """A hand played at random."""
    hand, dealer = [rng.choice(RANKS), rng.choice(RANKS)], rng.choice(RANKS)
    while value(hand) <= 21:
        cards = f"Your hand: [{', '.join(hand)}] = {value(hand)}\nDealer shows: {dealer}\n{REMINDER}"
        yield {"role": "user", "content": cards}
        action = rng.choice(["hit", "stand"])
        yield {"role": "assistant", "content": f"<action>{action}</action>"}
        if action == "stand":
            return
        hand.append(rng.choice(RANKS))


def value(hand: list[str]) -> int:
    """The best count of a hand."""
    aces = hand.count("A")
    total = 11 * aces + sum(10 if card in "JQK" else int(card) for card in hand if card != "A")
    while total > 21 and aces:
        total, aces = total - 10, aces - 1
    return total


def played(policy: Policy, rng: random.Random) -> float:
    """Reward of a hand by the server's rules."""
    hand, dealer = ([rng.choice(RANKS), rng.choice(RANKS)] for _ in range(2))
    while policy(value(hand)):
        hand.append(rng.choice(RANKS))
        if value(hand) > 21:
            return -1.0
    while value(dealer) < 17:
        dealer.append(rng.choice(RANKS))
    theirs = value(dealer) if value(dealer) <= 21 else 0
    return float((value(hand) > theirs) - (value(hand) < theirs))


def trained(args: argparse.Namespace, seed: int) -> dict[int, float]:
    """Mean reward of held-out hands by step."""
    folder, run = args.out, args.out / f"run-{seed}"
    if not (run / "metrics.jsonl").exists():
        begun = time.monotonic()
        agentrl(folder, "train", "--config-name=game", *settings(args, run, seed))
        print(f"seed {seed}: {time.monotonic() - begun:.0f} s", flush=True)
    lines = read_metrics(run / "metrics.jsonl")
    return {int(line["step"]): line["val/reward_mean"] for line in lines if "val/reward_mean" in line}


def settings(args: argparse.Namespace, run: Path, seed: int) -> list[str]:
    """Of a run."""
    return [
        f"model.path={args.out / 'warm'}",
        f"data.environment_config_path={args.out / 'environments.yaml'}",
        "data.train_files=env:train",
        "data.val_files=env:val",
        "data.max_prompt_length=256",
        "data.max_response_length=512",
        "rollout.n=16",
        "actor.optim.lr=1e-4",
        "rollout.multi_turn.max_assistant_turns=8",
        "rollout.multi_turn.max_user_turns=8",
        f"trainer.total_training_steps={args.steps}",
        f"trainer.test_freq={max(1, args.steps // 4)}",
        "trainer.save_freq=-1",
        "trainer.device=cpu",
        f"trainer.default_local_dir={run}",
        *(f"{section}.seed={seed}" for section in ("trainer", "data", "rollout")),
        *args.set,
    ]


def agentrl(folder: Path, *words: str) -> None:
    """Run a command; its output is in the folder's log."""
    with (folder / "log.txt").open("ab") as log:
        done = subprocess.run([sys.executable, "-m", "agentrl", *words], stdout=log, stderr=subprocess.STDOUT)
    if done.returncode:
        sys.exit(f"agentrl {words[0]} failed: see {log.name}")


def table(runs: list[dict[int, float]], means: dict[str, float], args: argparse.Namespace) -> Table:
    """A line for each seed, and the fixed policies."""
    title = f"mean reward of {args.held_out} hands by NeMo Gym's {SERVER}"
    shown = Table("policy", *(f"step {step}" for step in runs[0]), title=title)
    for seed, curve in zip(args.seeds, runs, strict=True):
        shown.add_row(f"seed {seed}", *(f"{mean:+.3f}" for mean in curve.values()))
    for name, mean in means.items():
        shown.add_row(name, f"{mean:+.3f}")
    return shown


if __name__ == "__main__":
    main()
