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
import gzip
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console
from rich.table import Table

from agentrl.engines.servers.graphs import graph_sizes

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


@dataclass
class Row:
    """A set of flags, and what was measured with it."""

    name: str
    flags: dict[str, Any]
    profiled: bool = False
    port: int = 0
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    found: dict[str, str] = field(default_factory=dict)


@dataclass
class Shape:
    """Sizes of the model that the limits follow from."""

    parameters: int
    kv_bytes: int
    """Of one token."""
    vocabulary: int


def shape_of(model: Path) -> Shape:
    """Read from the model's configuration."""
    c = json.loads((model / "config.json").read_text())
    heads, layers, hidden = c["num_attention_heads"], c["num_hidden_layers"], c["hidden_size"]
    width = c.get("head_dim") or hidden // heads
    keys = c.get("num_key_value_heads") or heads
    block = hidden * width * (2 * heads + 2 * keys) + 3 * hidden * c["intermediate_size"]
    tables = 1 if c.get("tie_word_embeddings") else 2
    return Shape(layers * block + tables * c["vocab_size"] * hidden, layers * 2 * keys * width * 2, c["vocab_size"])


def rows(best: str, concurrent: int) -> list[Row]:
    """The sets of flags; `best`: the fastest attention that is installed."""
    triton = {"attention_backend": "triton", "sampling_backend": "pytorch"}
    fast = {"attention_backend": best, "sampling_backend": "flashinfer" if find_spec("flashinfer") else "pytorch"}
    fast |= {"cuda_graph_bs_decode": graph_sizes(concurrent, 0)}
    short = {"cuda_graph_bs_prefill": [32, 64, 128, 256, 512]}
    return [
        Row(f"{best}, agentrl's choice", fast | short, profiled=True),
        Row(f"{best}, requests read every 8 steps", fast | short | {"scheduler_recv_interval": 8}),
        Row(f"{best}, no prefill graphs", fast | NO_PREFILL_GRAPHS),
        Row(f"{best}, no prefill graphs, every 8", fast | NO_PREFILL_GRAPHS | {"scheduler_recv_interval": 8}),
        Row("triton, graphs as SGLang chooses", triton | NO_PREFILL_GRAPHS),
    ]


def launch(row: Row, args: argparse.Namespace) -> None:
    """Start its server; returns at once."""
    common: dict[str, Any] = {
        "model_path": args.model,
        "host": "127.0.0.1",
        "port": row.port,
        "dtype": "bfloat16",
        "context_length": 2048,
        "max_running_requests": args.concurrent,
        "skip_tokenizer_init": True,
        "grammar_backend": "none",
        "load_format": "dummy",
        "log_level": "info",
        "max_total_tokens": args.kv_tokens,
    }
    gpu = {"mem_fraction_static": 0.95, "enable_memory_saver": not args.plain}
    cpu = {
        "device": "cpu",
        "attention_backend": "torch_native",
        "sampling_backend": "pytorch",
        "disable_cuda_graph": True,
        "sleep_on_idle": True,
    }
    flags = common | (gpu | row.flags if args.device == "cuda" else cpu)
    words = [word for name, value in flags.items() for word in flag(name, value)]
    environment = dict(os.environ, SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION="false")
    if args.device == "cpu":
        shim = Path("agentrl/engines/sglang/cpu_shim").resolve()
        environment |= {"PYTHONPATH": str(shim), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    log = (args.out / f"server-{row.port}.log").open("wb")
    log.write(f"# {row.name}\n# {' '.join(words)}\n".encode())
    log.flush()
    row.started = time.monotonic()
    command = [args.python, "-m", "sglang.launch_server", *words]
    row.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment, process_group=0)


def flag(name: str, value: Any) -> list[str]:
    word = "--" + name.replace("_", "-")
    if value is False:
        return []
    if isinstance(value, list):
        return [word, *map(str, value)]
    return [word] if value is True else [word, str(value)]


def stop(row: Row) -> None:
    """Kill the server and its children."""
    if row.process is not None:
        with suppress(ProcessLookupError):
            os.killpg(row.process.pid, signal.SIGKILL)
        row.process.wait()


async def ready(session: aiohttp.ClientSession, row: Row, limit: float) -> bool:
    """Wait for it; False when it ended or the limit has passed."""
    assert row.process is not None
    while row.process.poll() is None and time.monotonic() - row.started < limit:
        if await healthy(session, row.port):
            row.found["start s"] = f"{time.monotonic() - row.started:.0f}"
            return True
        await asyncio.sleep(0.25)
    return False


async def healthy(session: aiohttp.ClientSession, port: int) -> bool:
    try:
        async with session.get(f"http://127.0.0.1:{port}/health", timeout=aiohttp.ClientTimeout(5)) as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


class Client:
    """Requests to one server."""

    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self.session, self.url = session, f"http://127.0.0.1:{port}"

    async def draw(self, ids: list[int], new: int) -> list[int]:
        """So many new tokens, exactly."""
        sampling = {"max_new_tokens": new, "ignore_eos": True, "temperature": 1.0, "sampling_seed": 1}
        body = {"input_ids": ids, "return_logprob": True, "sampling_params": sampling}
        async with self.session.post(self.url + "/generate", json=body) as response:
            answer = await response.json()
        drawn = [entry[1] for entry in answer["meta_info"]["output_token_logprobs"]]
        assert len(drawn) == new, f"{len(drawn)} of {new} tokens"
        return drawn

    async def post(self, path: str, body: dict[str, Any] | None = None) -> None:
        async with self.session.post(self.url + path, json=body or {}) as response:
            await response.read()


async def batch(client: Client, args: argparse.Namespace, shape: Shape, new: int, *, spread: bool = False) -> float:
    """Seconds for one answer of `new` tokens to each prompt, 8 times; `spread`: first one of each group."""
    rng = random.Random(1)
    groups = max(1, args.concurrent // 8)
    prompts = [[rng.randrange(10, shape.vocabulary - 10) for _ in range(args.prompt)] for _ in range(groups)]
    order = [p for _ in range(8) for p in prompts] if spread else [p for p in prompts for _ in range(8)]
    await client.post("/flush_cache")
    start = time.perf_counter()
    await asyncio.gather(*(client.draw(ids, new) for ids in order))
    return time.perf_counter() - start


async def turns(client: Client, shape: Shape, conversations: int, count: int, low: int, high: int) -> float:
    """Tokens/s of conversations whose next turn follows 24 tokens of a tool at once."""
    rng = random.Random(2)
    tokens = 0

    async def one(seed: int) -> int:
        own = random.Random(seed)
        ids = [own.randrange(10, shape.vocabulary - 10) for _ in range(200)]
        made = 0
        for _ in range(count):
            new = own.randint(low, high)
            ids = ids + await client.draw(ids, new) + [own.randrange(10, shape.vocabulary - 10) for _ in range(24)]
            made += new
        return made

    await client.post("/flush_cache")
    start = time.perf_counter()
    tokens = sum(await asyncio.gather(*(one(rng.randrange(1 << 30)) for _ in range(conversations))))
    return tokens / (time.perf_counter() - start)


async def measure(session: aiohttp.ClientSession, row: Row, args: argparse.Namespace, shape: Shape) -> None:
    """All workloads of one server."""
    client, n = Client(session, row.port), args.concurrent
    row.found["graphs"] = captured(args.out / f"server-{row.port}.log")
    if "batch" in args.parts:
        await measure_batch(client, row, args, shape)
    quarter, half, low, high = max(n // 4, 1), max(n // 2, 1), args.turn // 4, args.turn * 3 // 4
    if "short" in args.parts:
        await turns(client, shape, half, 1, low, high)  # warms up
        row.found["short"] = f"{await turns(client, shape, half, 6, low, high):,.0f}"
    if "few" in args.parts:
        row.found["few"] = f"{await turns(client, shape, 8, 6, low, high):,.0f}"
    if "turns" in args.parts:
        row.found["turns"] = f"{await turns(client, shape, quarter, 4, args.turn, args.turn):,.0f}"
    if row.profiled and args.device == "cuda":
        await profile(client, row, args, shape)


async def measure_batch(client: Client, row: Row, args: argparse.Namespace, shape: Shape) -> None:
    """Prefill in two orders, and a whole batch beside its limits."""
    n, new = args.concurrent, args.new
    await batch(client, args, shape, 8)  # warms up
    prefill, spread = await batch(client, args, shape, 1), await batch(client, args, shape, 1, spread=True)
    row.found["prefill s"] = f"{prefill:.2f}, {spread:.2f}"
    whole = await batch(client, args, shape, new, spread=True)
    step = (whole - spread) / (new - 1)
    kv = n * (args.prompt + new / 2) * shape.kv_bytes / args.bandwidth
    weights, products = 2 * shape.parameters / args.bandwidth, 2 * shape.parameters * n / args.flops
    row.found["batch tok/s"] = f"{n * new / whole:,.0f}"
    row.found["ms/step"] = f"{step * 1e3:.2f}"
    row.found["of limit"] = f"{(kv + weights) / step:.2f}"
    row.found["KV+GEMM"] = f"{(kv + max(products, weights)) / step:.2f}"
    limits = f"limit {1e3 * (kv + weights):.2f} ms = KV {1e3 * kv:.2f} + weights {1e3 * weights:.2f}"
    row.found["limits"] = f"{limits}; GEMM {1e3 * products:.2f} ms"


async def profile(client: Client, row: Row, args: argparse.Namespace, shape: Shape) -> None:
    """The kernels of ten decode steps."""
    folder = args.out / f"profile-{row.port}"
    folder.mkdir(exist_ok=True)
    running = asyncio.create_task(batch(client, args, shape, args.new * 3 // 4))
    await asyncio.sleep(2.0)
    steps = 10
    await client.post("/start_profile", {"output_dir": str(folder), "num_steps": steps, "activities": ["GPU"]})
    found: list[Path] = []
    for _ in range(40):
        if found := list(folder.glob("**/*.trace.json.gz")):
            break
        await asyncio.sleep(0.5)
    await asyncio.sleep(1.0)  # until it is whole
    running.cancel()
    row.found["profile"] = kernels(found[0], steps) if found else "no trace came"


def kernels(trace: Path, steps: int) -> str:
    """Milliseconds of a step by kernel, and the idle share between first and last."""
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    spans = [e for e in events if e.get("ph") == "X" and e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    total: dict[str, list[float]] = defaultdict(list)
    for span in spans:
        total[span["name"]].append(span["dur"])
    length = max(s["ts"] + s["dur"] for s in spans) - min(s["ts"] for s in spans)
    busy = sum(sum(durations) for durations in total.values())
    lines = [f"{length / steps / 1e3:.2f} ms a step, kernels {busy / steps / 1e3:.2f} ms"]
    for name, durations in sorted(total.items(), key=lambda item: -sum(item[1]))[:16]:
        lines.append(f"  {sum(durations) / steps / 1e3:6.3f} ms  {len(durations) / steps:6.1f} x  {name[:110]}")
    return "\n".join(lines)


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


def captured(log: Path) -> str:
    """What the server says about the capture of its graphs: seconds and memory."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if "elapsed" in line]
    return "; ".join(line.partition("] ")[2][:110] for line in lines)


def reason(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if "Error" in line]
    return lines[-1][-120:] if lines else "too late"


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
