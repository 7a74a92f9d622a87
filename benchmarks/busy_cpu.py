"""A run on busy cores: PyTorch's default threads beside agentrl's choice of threads.

    python benchmarks/busy_cpu.py --busy 0 1 2 --rounds 3

Two kinds of work, with the layers of a model of 135M parameters: decoding (16 rows at a time) and an update (1,024
tokens, with gradients). Each cell is the time as a multiple of agentrl's in the same round, median over rounds.
"""

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table

from agentrl.core.cpu_cores import CHOSEN, SPINS, Host

WORK = """
import sys, time, torch
from agentrl.core.cpu_cores import Host
if sys.argv[1] == "idle":
    torch.set_num_threads(min(torch.get_num_threads(), Host().idle()))
torch.manual_seed(0)
up = [torch.randn(576, 1536).mul_(0.02).requires_grad_() for _ in range(12)]
down = [torch.randn(1536, 576).mul_(0.02).requires_grad_() for _ in range(12)]
def layers(h):
    for u, d in zip(up, down):
        h = torch.nn.functional.layer_norm(h + torch.nn.functional.silu(h @ u) @ d, (576,))
    return h
def decode(times):
    with torch.no_grad():
        for _ in range(times):
            layers(torch.ones(16, 576))
def update():
    layers(torch.ones(1024, 576)).sum().backward()
def seconds(work, *args):
    start = time.perf_counter()
    work(*args)
    return time.perf_counter() - start
decode(3), update()
print(seconds(decode, 20), seconds(update))
"""
ASLEEP = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": SPINS}
WAYS: dict[str, tuple[str, dict[str, str]]] = {
    "agentrl": ("idle", ASLEEP),
    "PyTorch's own": ("all", {}),
    "all cores, asleep": ("all", ASLEEP),
    "one thread": ("all", {"OMP_NUM_THREADS": "1"}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1, 2], help="processes that only count")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    table = Table("busy processes", "work", *WAYS, title=f"{Host().allowed()} cores, load {os.getloadavg()[0]:.1f}")
    for busy in args.busy:
        with others(busy):
            rounds = [{way: timed(*how) for way, how in WAYS.items()} for _ in range(args.rounds)]
        for i, work in enumerate(("decoding", "update")):
            table.add_row(str(busy), work, *(ratio(rounds, way, i) for way in WAYS))
    Console().print(table)


def ratio(rounds: list[dict[str, list[float]]], way: str, work: int) -> str:
    return f"{statistics.median(one[way][work] / one['agentrl'][work] for one in rounds):.2f}"


def timed(threads: str, environment: dict[str, str]) -> list[float]:
    """Seconds of decoding and of an update, in its own process."""
    unset = {name: value for name, value in os.environ.items() if name not in (*CHOSEN, "OMP_NUM_THREADS")}
    command = [sys.executable, "-c", WORK, threads]
    done = subprocess.run(command, env=unset | environment, capture_output=True, text=True, check=True)
    return [float(figure) for figure in done.stdout.split()]


@contextmanager
def others(count: int) -> Iterator[None]:
    """Processes that keep one core busy each."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
