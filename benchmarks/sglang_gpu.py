"""SGLang beside the trainer on one GPU: what it costs, and what a killed server costs.

    python benchmarks/sglang_gpu.py --data DATA --small MODEL [--warm MODEL] [--parts demo,small,large]

`demo` trains MODEL on the rows in DATA (`agentrl data arithmetic`) and kills the server in the middle of a step.
`small` and `large` load a server with agentrl's multi-turn loop (zero-latency tools) and then with the very same
requests and nothing around them; and they measure weights and memory. `large` has the shape of Qwen3-1.7B, with random
weights. One table at the end.
"""

import argparse
import asyncio
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import aiohttp
import torch
from rich.console import Console
from rich.table import Table

from agentrl.config import compose
from agentrl.data import Row
from agentrl.rollout.engine import Generation, Sampling
from agentrl.rollout.engines.remote.weights import PolicyWeights
from agentrl.runtime import LocalRuntime
from agentrl.tracking import read_metrics

TOOL = '''
from agentrl.tools import function_tool


@function_tool
def note(text: str) -> str:
    """Take a note.

    Args:
        text: What to note.
    """
    return "noted: " + text
'''
CALL = '<tool_call>{"name": "note", "arguments": {"text": "one"}}</tool_call><|im_end|>'
TEMPLATE = "configs/templates/chatml_tools_terse.jinja"
console = Console(width=160)
ROWS: list[tuple[str, str, str]] = []


def report(part: str, what: str, value: str) -> None:
    """Keep a figure for the table, and show it at once."""
    ROWS.append((part, what, value))
    console.print(f"{part}: {what}: {value}", highlight=False)


# What every server here gets; the kernels of other backends are compiled at first use, for minutes.
SERVER = ["attention_backend=triton", "sampling_backend=pytorch", "cuda_graph_backend_prefill=disabled"]


def common(args: argparse.Namespace, run: Path) -> list[str]:
    server = [f"rollout.engine_kwargs.sglang.{flag}" for flag in args.server]
    return [
        f"trainer.device={args.device}",
        f"trainer.default_local_dir={run}",
        "rollout.name=sglang",
        "rollout.deterministic=false",
        f"rollout.gpu_memory_utilization={args.memory}",
        *(f"+{flag}" for flag in server),
    ]


# --- the demo task ---------------------------------------------------------------------------------------------------


def demo(args: argparse.Namespace, folder: Path) -> None:
    """Train, kill the server in the middle of a step, and read what the run wrote."""
    run = folder / "demo"
    settings = [
        "--config-name=demo",
        *common(args, run),
        f"model.path={args.warm or args.small}",
        f"data.train_files={args.data}/train.parquet",
        f"data.val_files={args.data}/val.parquet",
        f"data.train_batch_size={args.prompts}",
        f"actor.ppo_mini_batch_size={args.prompts}",
        f"rollout.n={args.group}",
        f"trainer.total_training_steps={args.steps}",
        "trainer.save_freq=-1",
        "trainer.live=false",
        f"rollout.max_num_seqs={args.prompts * args.group}",
        "actor.ppo_max_token_len_per_gpu=16384",
        *args.set,
    ]
    start = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "agentrl", "train", *settings])
    first = killed = None
    while process.poll() is None:
        steps = [line["step"] for line in read_metrics(run / "metrics.jsonl")]
        if first is None and 1 in steps:
            first = time.monotonic() - start
        if killed is None and steps and max(steps) >= args.kill:
            time.sleep(args.kill_after)
            killed = max(steps) + 1
            kill_server()
        time.sleep(0.02)
    report("demo", "exit code", str(process.returncode))
    report("demo", "command to the end of step 1", f"{first or 0:.1f} s")
    read_demo(run, args, killed or -1)


def kill_server() -> None:
    """SIGKILL to the process that serves."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"sglang.launch_server" in command and not any(b"watchdog" in word for word in command):
            os.kill(int(entry.name), signal.SIGKILL)
            console.print(f"killed {entry.name}")
            return


def read_demo(run: Path, args: argparse.Namespace, killed: int) -> None:
    lines = read_metrics(run / "metrics.jsonl")
    success = [(line["step"], line["val/success"]) for line in lines if "val/success" in line]
    report("demo", "validation success", " -> ".join(f"{value:.3f} (step {step})" for step, value in success))
    train = [line for line in lines if "time/rollout" in line]
    report("demo", "training reward", " ".join(f"{line['rollout/reward_mean']:.2f}" for line in train))
    report("demo", "ledger violations", str(int(sum(line["rollout/ledger_violations"] for line in train))))
    usual = [line for line in train if line["step"] not in (1, killed)] or train
    for phase in ("rollout", "logprobs", "update", "sync", "step"):
        report(
            "demo",
            f"{phase}, s a step",
            f"{mean(line[f'time/{phase}'] for line in usual if f'time/{phase}' in line):.3f}",
        )
    report("demo", "sync, share of a step", f"{mean(line['time/sync'] / line['time/step'] for line in usual):.3f}")
    for name in ("mean", "p99", "k3"):
        report("demo", f"gap to the trainer, {name}", f"{mean(line[f'rollout_gap/{name}'] for line in usual):.4f}")
    hit = [line for line in train if line["step"] == killed]
    if hit:
        records = [json.loads(line) for line in (run / f"rollouts/{killed}.jsonl").read_text().splitlines()]
        keys = [(record.get("uid"), record.get("sample"), record.get("key")) for record in records]
        whole = f"{len(records)} of {args.prompts * args.group} trajectories, {len(set(map(str, keys)))} different"
        gap = f"gap {hit[0]['rollout_gap/mean']:.4f}, violations {hit[0]['rollout/ledger_violations']:.0f}"
        report("demo", f"step {killed}, server killed", f"{hit[0]['time/step']:.1f} s; {whole}; {gap}")


def mean(values: Any) -> float:
    values = list(values)
    return sum(values) / max(len(values), 1)


# --- load, weights, memory -------------------------------------------------------------------------------------------


class Scripted:
    """Draws on the real engine, and tells the loop that it drew a tool call of the same length.

    So the work is fixed beforehand, and every part of agentrl's loop still runs. Lengths vary around `new`, as they do
    in life; `asked` keeps the requests: prompt, new tokens.
    """

    def __init__(self, engine: Any, call: list[int], last: list[int], filler: int, turns: int, new: int) -> None:
        self.engine, self.call, self.last, self.filler, self.turns, self.new = engine, call, last, filler, turns, new
        self.asked: dict[str, list[tuple[list[int], int]]] = defaultdict(list)

    def open(self, key: str) -> None:
        self.engine.open(key)

    def release(self, key: str) -> None:
        self.engine.release(key)

    async def generate(self, ids: list[int], sampling: Sampling, *, key: str) -> Generation:
        length = random.Random(f"{key} {len(self.asked[key])}").randint(self.new // 2, self.new * 3 // 2)
        self.asked[key].append((ids, length))
        fixed = dataclasses.replace(sampling, max_new_tokens=length, ignore_eos=True)
        got = await self.engine.generate(ids, fixed, key=key)
        assert len(got.token_ids) == length
        said = self.call if len(self.asked[key]) < self.turns else self.last
        said = [self.filler] * (length - len(said)) + said
        return dataclasses.replace(got, token_ids=said, finish_reason="stop", versions=())


async def bare(url: str, chains: list[list[tuple[list[int], int]]], concurrent: int) -> float:
    """Seconds for the same requests with nothing around them, as many chains at once."""
    waiting = iter(chains)
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:

        async def lane() -> None:
            for chain in waiting:
                for ids, new in chain:
                    sampling = {"max_new_tokens": new, "ignore_eos": True, "temperature": 1.0}
                    body = {"input_ids": ids, "return_logprob": True, "sampling_params": sampling}
                    async with session.post(f"{url}/generate", json=body) as response:
                        assert len((await response.json())["output_ids"]) == new

        start = time.perf_counter()
        await asyncio.gather(*(lane() for _ in range(concurrent)))
        return time.perf_counter() - start


def load(args: argparse.Namespace, folder: Path, part: str, model: Path) -> None:
    """Throughput, weights and memory with one model."""
    tool = folder / "note.py"
    tool.write_text(TOOL)
    new, turns = args.new, args.turns
    settings = [
        *common(args, folder / part),
        f"model.path={model}",
        f"model.chat_template={TEMPLATE}",
        f"model.dtype={'bfloat16' if args.device == 'cuda' else 'float32'}",
        "data.max_prompt_length=512",
        f"data.max_response_length={turns * (new * 3 // 2 + 64)}",
        "rollout.multi_turn.enable=true",
        f"rollout.multi_turn.function_tool_path={tool}",
        f"rollout.max_num_seqs={args.concurrent}",
        "rollout.weight_check=always",
        *args.set,
    ]
    start = time.perf_counter()
    runtime = LocalRuntime(compose(settings, checks=()))
    try:
        runtime.sync(0)
        report(part, "start: model loaded, server ready, weights checked", f"{time.perf_counter() - start:.1f} s")
        throughput(runtime, args, part)
        weights(runtime, part)
        if args.device == "cuda":
            memory(runtime, part)
    finally:
        runtime.close()


def throughput(runtime: LocalRuntime, args: argparse.Namespace, part: str) -> None:
    encode = lambda text: runtime.tokenizer.encode(text, add_special_tokens=False)  # noqa: E731
    call, answer = encode(CALL), encode(" That is all.<|im_end|>")
    filler = encode(" so")[0]
    assert max(len(call), len(answer)) <= args.new // 2, "turns are too short for a tool call"
    story = "Take notes, please, as many as you can. " * 12
    rows = [
        Row(f"row:{i}", [{"role": "user", "content": f"Number {i}. {story}"}])
        for i in range(args.concurrent * args.waves)
    ]
    url = runtime.engine.pool.replicas[0].url  # type: ignore[attr-defined]
    what = f"{len(rows)} trajectories, {args.concurrent} at once, {args.turns} turns of about {args.new} tokens"
    for i in range(args.repeats + 1):
        runtime.sync(0)  # empties the server's cache
        engine = Scripted(runtime.engine, call, answer, filler, args.turns, args.new)
        runtime.rollouts.scheduler.env = dataclasses.replace(runtime.rollouts.env, engine=engine)  # type: ignore[arg-type]
        runtime.rollouts.scheduler.max_concurrent = args.concurrent
        start = time.perf_counter()
        runtime.runner.run(runtime.rollouts.scheduler.run(rows, n=1, sampling=Sampling(10_000), tag="load"))
        ours = time.perf_counter() - start
        chains = list(engine.asked.values())
        assert all(len(chain) == args.turns for chain in chains), "a trajectory went astray"
        runtime.sync(0)
        theirs = runtime.runner.run(bare(url, chains, args.concurrent))
        tokens = sum(new for chain in chains for _, new in chain)
        speeds = f"{tokens / ours:,.0f} tokens/s, the bare server {tokens / theirs:,.0f}: {theirs / ours:.3f}"
        report(part, what if i else "the same to warm up", speeds)


def weights(runtime: LocalRuntime, part: str) -> None:
    dtype = torch.bfloat16 if runtime.device.type == "cuda" else None
    size = PolicyWeights(runtime.learner.module, dtype=dtype).num_bytes
    engine: Any = runtime.engine
    engine.check = None
    times = []
    for i in range(6):
        start = time.perf_counter()
        runtime.sync(i)
        times.append(time.perf_counter() - start)
    best = sorted(times)[len(times) // 2]
    report(
        part, f"sync by {engine.transport.name}, {size / 1e9:.2f} GB", f"{best:.3f} s = {size / best / 1e9:.1f} GB/s"
    )
    flat = torch.empty(size, dtype=torch.uint8, device=runtime.device)
    flat.clone()
    settle()
    start = time.perf_counter()
    flat.clone()
    settle()
    report(part, "one copy of it on the device", f"{time.perf_counter() - start:.4f} s")


def memory(runtime: LocalRuntime, part: str) -> None:
    engine = runtime.engine
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    start = time.perf_counter()
    runtime.runner.run(engine.sleep())
    asleep, freed = time.perf_counter() - start, torch.cuda.mem_get_info()[0] - free
    start = time.perf_counter()
    runtime.runner.run(engine.wake())
    awake = time.perf_counter() - start
    left = (torch.cuda.mem_get_info()[0] - free) / 2**20
    report(part, "sleep, wake", f"{asleep:.3f} s, {awake:.3f} s (with weights)")
    report(
        part,
        "memory free",
        f"{free / 2**30:.1f} GiB, asleep {(free + freed) / 2**30:.1f}, after waking {left:+.0f} MiB",
    )


def settle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def large_model(folder: Path, small: Path) -> Path:
    """A model of Qwen3-1.7B's shape with random weights, and the small model's tokenizer."""
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    out = folder / "large-model"
    config = Qwen3Config(
        hidden_size=2048,
        intermediate_size=6144,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=151936,
        max_position_embeddings=40960,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(out)
    AutoTokenizer.from_pretrained(small).save_pretrained(out)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", type=Path, required=True, help="SmolLM2-135M-Instruct")
    parser.add_argument("--warm", type=Path, help="the same after `agentrl sft --config-name demo_sft`")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--folder", type=Path, help="where runs and logs go (default: a temporary folder)")
    parser.add_argument("--parts", default="demo,small,large")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--memory", type=float, default=0.4)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--kill", type=int, default=8, help="kill the server in the step after this one")
    parser.add_argument("--kill-after", type=float, default=0.3, help="seconds into that step")
    parser.add_argument("--concurrent", type=int, default=256)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--new", type=int, default=64, help="tokens of a turn")
    parser.add_argument("--waves", type=int, default=3, help="trajectories, as a multiple of --concurrent")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--server", nargs="*", default=SERVER, help="more flags of SGLang's server")
    parser.add_argument("--set", nargs="*", default=[], help="more settings")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, parts = args.folder or Path(name), args.parts.split(",")
        folder.mkdir(parents=True, exist_ok=True)
        if "demo" in parts:
            demo(args, folder)
        if "small" in parts:
            load(args, folder, "small", args.small)
        if "large" in parts:
            load(args, folder, "large", large_model(folder, args.small))
    table = Table("part", "figure", "value", title=device_name())
    for row in ROWS:
        table.add_row(*row)
    console.print(table)


def device_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


if __name__ == "__main__":
    main()
