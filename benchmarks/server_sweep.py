"""The bare SGLang server under several sets of flags: tokens/s, and how near a decode step is to the hardware's limit.

    python benchmarks/server_sweep.py --model MODEL --out FOLDER

Servers start together, as many as the GPU's memory takes, and are measured one after the other. Three workloads:
`batch`, 512 requests in groups of 8 that share a prompt (256 tokens in, 512 out); `turns`, 128 conversations of 4 turns
of 128 tokens; `short`, 256 conversations of 6 turns of 32 to 96 tokens, whose requests come one by one; `few`, 8 of
these.

The limit of a decode step of `batch` is the time to read its memory once: weights, plus the KV cache of every sequence
at its mean length, over the bandwidth. `GEMM` is the time of its matrix products at the GPU's usual speed; attention
cannot overlap with them, so KV + GEMM is the more honest floor.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
import traceback
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console
from rich.table import Table
from sweep_load import Shape, measure, shape_of
from sweep_servers import Row, launch, ready, reason, stop

from agentrl.engines.servers.settings import graph_sizes

console = Console(width=180)
COLUMNS = ("flags", "start s", "batch tok/s", "prefill s", "ms/step", "of limit", "KV+GEMM", "turns", "short", "few")
NO_PREFILL_GRAPHS = {"cuda_graph_backend_prefill": "disabled"}
LARGE = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "dtype": "bfloat16",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    "tie_word_embeddings": True,
}
"""Qwen3-1.7B's shape; its weights are the server's own, at random."""
KV_TOKENS = 340_000
GIB_EACH = 45
"""Of one server: its cache, weights, graphs and context."""


def rows(best: str, concurrent: int) -> list[Row]:
    """The sets of flags; `best`: the fastest attention that is installed."""
    triton: dict[str, Any] = {"attention_backend": "triton", "sampling_backend": "pytorch"}
    fast: dict[str, Any] = {
        "attention_backend": best,
        "sampling_backend": "flashinfer" if find_spec("flashinfer") else "pytorch",
    }
    fast |= {"cuda_graph_bs_decode": graph_sizes(concurrent, 0)}
    short = {"cuda_graph_bs_prefill": [32, 64, 128, 256, 512]}
    return [
        Row(f"{best}, agentrl's choice", fast | short, profiled=True),
        Row(f"{best}, requests read every 8 steps", fast | short | {"scheduler_recv_interval": 8}),
        Row(f"{best}, no prefill graphs", fast | NO_PREFILL_GRAPHS),
        Row(f"{best}, no prefill graphs, every 8", fast | NO_PREFILL_GRAPHS | {"scheduler_recv_interval": 8}),
        Row("triton, graphs as SGLang chooses", triton | NO_PREFILL_GRAPHS),
    ]


async def wave(chosen: list[Row], args: argparse.Namespace, shape: Shape, until: float) -> None:
    """Start some servers together, and measure them one after the other."""
    for row in chosen:
        launch(row, args)
        await asyncio.sleep(1.0)
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        up = await asyncio.gather(*(ready(session, row, args.start_limit) for row in chosen))
        for row, works in zip(chosen, up, strict=True):
            await one(session, row, args, shape, works=works, until=until)


async def one(
    session: aiohttp.ClientSession, row: Row, args: argparse.Namespace, shape: Shape, *, works: bool, until: float
) -> None:
    try:
        if not works:
            row.found["start s"] = "failed: " + reason(args.out / f"server-{row.port}.log")
        elif time.monotonic() > until:
            row.found["batch tok/s"] = "no time left"
        else:
            await asyncio.wait_for(measure(session, row, args, shape), args.row_limit)
    except Exception as error:
        row.found["failed"] = f"{type(error).__name__}: {error}"
        (args.out / f"error-{row.port}.txt").write_text(traceback.format_exc())
    finally:
        stop(row)
    console.print(f"{row.name}: {row.found}", highlight=False, soft_wrap=True)


def show(measured: list[Row]) -> None:
    table = Table(*COLUMNS)
    for row in measured:
        table.add_row(row.name, *(row.found.get(column, "") for column in COLUMNS[1:]))
    for row in measured:
        for name in ("limits", "graphs", "profile", "failed"):
            if name in row.found and (name != "limits" or row is measured[0]):
                console.print(f"{row.name}, {name}: {row.found[name]}", highlight=False, markup=False)
    console.print("prefill s: requests in the order of the groups, and first one of each group")
    console.print(table)


def fitting(device: str) -> int:
    """Servers that fit into the GPU's free memory together; three are as many as the CPU starts at once."""
    if device == "cpu":
        return 1
    import torch

    return min(3, max(1, torch.cuda.mem_get_info()[0] // (GIB_EACH << 30)))


def best_attention(device: str) -> str:
    """fa3 where its kernels are installed and the GPU is a Hopper, else triton."""
    if device == "cpu":
        return "torch_native"
    import torch

    spec = find_spec("sgl_kernel")
    folders = [Path(folder) for folder in (spec.submodule_search_locations if spec else None) or ()]
    there = any(list(folder.glob("flash_ops*.so")) for folder in folders)
    return "fa3" if there and torch.cuda.get_device_capability()[0] == 9 else "triton"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="large", help="a folder; large: Qwen3-1.7B's shape")
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "sweep")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the engine")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--budget", type=float, default=200, help="seconds in all")
    parser.add_argument("--start-limit", type=float, default=100)
    parser.add_argument("--row-limit", type=float, default=60)
    parser.add_argument("--together", type=int, help="servers that start together; otherwise as many as fit")
    parser.add_argument("--concurrent", type=int, default=512)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--new", type=int, default=512)
    parser.add_argument("--turn", type=int, default=128)
    parser.add_argument("--kv-tokens", type=int, default=KV_TOKENS)
    parser.add_argument("--bandwidth", type=float, default=4.3e12, help="bytes/s that a large read reaches")
    parser.add_argument("--flops", type=float, default=750e12)
    parser.add_argument("--parts", nargs="*", default=["batch", "short", "few", "turns"])
    parser.add_argument("--only", nargs="*", type=int, help="numbers of rows, from 0")
    parser.add_argument("--plain", action="store_true", help="without the memory saver")
    args = parser.parse_args()
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    asyncio.run(sweep(args))


async def sweep(args: argparse.Namespace) -> None:
    until = time.monotonic() + args.budget
    together = args.together or fitting(args.device)
    if args.model == "large":
        args.model = str(args.out)
        (args.out / "config.json").write_text(json.dumps(LARGE))
    shape = shape_of(Path(args.model))
    chosen = rows(best_attention(args.device), args.concurrent)
    chosen = chosen if args.only is None else [chosen[i] for i in args.only]
    done: list[Row] = []
    base = random.SystemRandom().randrange(200, 300) * 100
    try:
        while len(done) < len(chosen) and time.monotonic() < until - 40:
            some = chosen[len(done) : len(done) + together]
            for i, row in enumerate(some, len(done)):
                row.port = base + 300 * i  # a server takes ports near its own
            done += some
            await wave(some, args, shape, until)
            if any(row.found.get("start s", "").startswith("failed") for row in some) and args.device == "cuda":
                names = {row.name for row in done}
                chosen = done + [row for row in rows("triton", args.concurrent) if row.name not in names]
    finally:
        for row in done:
            stop(row)
        show(done)


if __name__ == "__main__":
    main()
