"""Memory of long runs, synchronous and not: small steps of a tiny model; the process is flat within 5% after step 100.

    python benchmarks/soak.py                                  # 1,000 steps of each kind
    python benchmarks/soak.py --steps 300 --kinds async        # shorter
    python benchmarks/soak.py --hidden 256 --layers 4          # a model whose cache and kernels weigh more

Each kind of run is a process of its own. Resident memory is read after every step; its mean over the last tenth of the
steps is compared with that of as many after step 100.
"""

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean

KINDS = {"sync": [], "async": ["trainer.max_staleness=2"]}
FLAT = 0.05
SETTINGS = (
    "rollout.n=4",
    "data.train_batch_size=2",
    "actor.ppo_mini_batch_size=2",
    "data.max_response_length=32",
    "data.val_files=null",
    "rollout.multi_turn.enable=false",
    "actor.entropy_coeff=0.001",
    "trainer.test_freq=-1",
    "trainer.live=false",
    "trainer.logger=[console]",
    "trainer.val_before_train=false",
    "trainer.save_freq=-1",
    "trainer.total_epochs=100000",
    "actor.optim.lr=1e-4",
)


def resident() -> float:
    """Resident memory of this process, in MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4 / 1024


def prepare(folder: Path, hidden: int, layers: int) -> None:
    """A model, and rows."""
    from agentrl.tasks.models import tiny

    data = ["data", "arithmetic", "--train", "200", "--val", "8", "--demos", "200", "--out", str(folder / "data")]
    subprocess.run([sys.executable, "-m", "agentrl", *data], check=True, stdout=subprocess.DEVNULL)
    shape = tiny.TinyShape(hidden_size=hidden, intermediate_size=4 * hidden, num_hidden_layers=layers)
    tiny.prepare(folder / "model", [folder / "data/sft.jsonl"], shape=shape)


def measure(folder: Path, kind: str, steps: int, seconds: float) -> None:
    """One run in this process; prints MiB after each step as JSON."""
    import agentrl

    sizes, begun = [], time.monotonic()
    places = [
        f"model.path={folder / 'model'}",
        f"data.train_files={folder / 'data/train.parquet'}",
        f"trainer.default_local_dir={folder / kind}",
        f"trainer.total_training_steps={steps}",
    ]
    with agentrl.training([*SETTINGS, *KINDS[kind], *places], preset="tiny") as run:
        for _ in run:
            sizes.append(round(resident(), 1))
            if time.monotonic() - begun > seconds:
                break
    print(json.dumps({"sizes": sizes, "collected": gc.collect()}))


def report(kind: str, sizes: list[float], warm: int) -> bool:
    """Print what a run came to; whether it is flat."""
    part = max(1, len(sizes) // 10)
    early, late = mean(sizes[warm : warm + part] or sizes[-1:]), mean(sizes[-part:])
    growth = late / early - 1
    at = [i for i in (1, 10, 50, *range(100, len(sizes), 100), len(sizes)) if i <= len(sizes)]
    print(f"{kind}: {len(sizes)} steps; MiB", ", ".join(f"{i}: {sizes[i - 1]:.0f}" for i in at))
    print(f"{kind}: from step {warm} on {growth:+.1%}: {'flat' if growth <= FLAT else 'GROWS'}", flush=True)
    return growth <= FLAT


def main() -> int:
    """Exit code 1 where a run grows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=3600, help="most for each kind")
    parser.add_argument("--warm", type=int, default=100, help="steps before memory is compared")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--measure", nargs=2, metavar=("FOLDER", "KIND"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(Path(args.measure[0]), args.measure[1], args.steps, args.seconds)
        return 0
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name), args.hidden, args.layers)
        limits = ["--steps", str(args.steps), "--seconds", str(args.seconds)]
        flat = []
        for kind in args.kinds:
            command = [sys.executable, __file__, *limits, "--measure", name, kind]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            flat.append(report(kind, json.loads(done.stdout.splitlines()[-1])["sizes"], args.warm))
    return 0 if all(flat) else 1


if __name__ == "__main__":
    sys.exit(main())
