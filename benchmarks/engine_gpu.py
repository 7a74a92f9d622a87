"""An engine's server: throughput with and without agentrl's loop, weight sync, memory, log-probs.

    python benchmarks/engine_gpu.py --model MODEL [--engine vllm] [--parts load,lockstep,weights,memory,gap]
    python benchmarks/engine_gpu.py --model large --tokenizer MODEL --set rollout.tensor_model_parallel_size=2

`load` and `lockstep` run agentrl's multi-turn loop (tools without latency), then the same requests without the loop; in
`lockstep` all turns have the same length, so all conversations wait at the same moment. `weights` changes the policy,
and shows that the server follows only after the sync. `--model large` has the shape of Qwen3-1.7B, with random weights.
With several GPUs the server has its own, and weights are sent by NCCL.
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from scripted_load import TEMPLATE, TOOL, compare

from agentrl.config import compose
from agentrl.engines.engine import Generation, Sampling
from agentrl.engines.servers.weights import PolicyWeights
from agentrl.runtime import LocalRuntime

# The kernels of other back ends are compiled at first use, for minutes.
SGLANG = ("attention_backend=triton", "sampling_backend=pytorch", "cuda_graph_backend_prefill=disabled")
console = Console(width=160)
ROWS: list[tuple[str, str]] = []


def report(what: str, value: str) -> None:
    """Store a figure for the table, and print it."""
    ROWS.append((what, value))
    console.print(f"{what}: {value}", highlight=False)


@torch.no_grad()
def weights(runtime: LocalRuntime) -> None:
    """Time a sync, and show by log-probs that it arrives."""
    engine, module = runtime.engine, runtime.learner.module
    size = PolicyWeights(module, dtype=torch.bfloat16 if runtime.device.type == "cuda" else None).num_bytes
    engine.check, check = None, engine.check  # type: ignore[attr-defined]
    times = []
    for i in range(6):
        start = time.perf_counter()
        runtime.publish_weights(i)
        times.append(time.perf_counter() - start)
    best = sorted(times)[len(times) // 2]
    way = engine.transport.name  # type: ignore[attr-defined]
    report(f"sync by {way}, {size / 1e9:.2f} GB", f"{best:.3f} s = {size / best / 1e9:.1f} GB/s; first {times[0]:.3f}")
    flat = torch.empty(size, dtype=torch.uint8, device=runtime.device)
    report("one copy of it on the device", f"{copied(flat):.4f} s")
    gaps = [gap(runtime)]
    kept = [p.clone() for p in module.parameters()]
    for parameter in module.parameters():
        parameter.mul_(1 + 0.2 * torch.randn_like(parameter))
    gaps.append(gap(runtime))
    runtime.publish_weights(7)
    gaps.append(gap(runtime))
    for parameter, value in zip(module.parameters(), kept, strict=True):
        parameter.copy_(value)
    engine.check = check  # type: ignore[attr-defined]
    runtime.publish_weights(8)
    text = "{:.4f}, policy changed {:.4f}, after the sync {:.4f}".format(*(float(g.mean()) for g in gaps))
    report("log-probs from the policy's, mean", text)


def copied(flat: torch.Tensor) -> float:
    """Seconds of one copy."""
    for _ in range(2):
        settle()
        start = time.perf_counter()
        flat.clone()
        settle()
    return time.perf_counter() - start


def gap(runtime: LocalRuntime, count: int = 32, new: int = 64) -> torch.Tensor:
    """|engine's log-prob - trainer's| of sampled tokens."""
    return differences(runtime, count, new).abs()


def differences(runtime: LocalRuntime, count: int, new: int) -> torch.Tensor:
    prompts = [runtime.tokenizer.encode(f"Tell me a story about the number {i}.") for i in range(count)]

    async def draw() -> list[Generation]:
        sampling = Sampling(new, ignore_eos=True)
        return await asyncio.gather(*(runtime.engine.generate(p, sampling, key=str(i)) for i, p in enumerate(prompts)))

    drawn = runtime.runner.run(draw())
    scored = [runtime.learner.score(p + g.token_ids)[len(p) :] for p, g in zip(prompts, drawn, strict=True)]
    return torch.cat(scored) - torch.tensor([value for g in drawn for value in g.logprobs])


def memory(runtime: LocalRuntime) -> None:
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    start = time.perf_counter()
    runtime.runner.run(runtime.engine.sleep())
    asleep, freed = time.perf_counter() - start, torch.cuda.mem_get_info()[0] - free
    start = time.perf_counter()
    runtime.runner.run(runtime.engine.wake())
    awake = time.perf_counter() - start
    left = (torch.cuda.mem_get_info()[0] - free) / 2**20
    report("sleep, wake with weights", f"{asleep:.3f} s, {awake:.3f} s")
    report(
        "memory free",
        f"{free / 2**30:.1f} GiB, asleep {(free + freed) / 2**30:.1f}, after waking {left:+.0f} MiB",
    )


def show(title: str) -> None:
    """All figures in one table."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    table = Table("figure", "value", title=f"{title}, {device}")
    for row in ROWS:
        table.add_row(*row)
    console.print(table)


def settle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def large_model(folder: Path, tokenizer: Path) -> Path:
    """A model of Qwen3-1.7B's shape with random weights, and another model's tokenizer."""
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
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(out)
    return out


def measure(args: argparse.Namespace, folder: Path) -> None:
    """Start the engine beside the trainer, and run the parts."""
    (folder / "note.py").write_text(TOOL)
    model = large_model(folder, args.tokenizer) if args.model == "large" else Path(args.model)
    flags = SGLANG if args.engine == "sglang" and args.device == "cuda" else ()
    settings = [
        f"trainer.device={args.device}",
        f"trainer.default_local_dir={folder / 'run'}",
        f"rollout.name={args.engine}",
        "rollout.deterministic=false",
        f"rollout.gpu_memory_utilization={args.memory}",
        *(f"+rollout.engine_kwargs.{args.engine}.{flag}" for flag in (*flags, *args.server)),
        f"model.path={model}",
        f"model.chat_template={TEMPLATE}",
        f"model.dtype={'bfloat16' if args.device == 'cuda' else 'float32'}",
        "data.max_prompt_length=512",
        f"data.max_response_length={args.turns * (args.new * 3 // 2 + 64)}",
        "rollout.multi_turn.enable=true",
        f"rollout.multi_turn.function_tool_path={folder / 'note.py'}",
        f"rollout.max_num_seqs={args.concurrent}",
        "rollout.weight_check=always",
        *args.set,
    ]
    start = time.perf_counter()
    runtime = LocalRuntime(compose(settings, checks=()))
    try:
        runtime.publish_weights(0)
        report("start: model loaded, server ready, weights checked", f"{time.perf_counter() - start:.1f} s")
        run_parts(runtime, args)
    finally:
        runtime.close()


def run_parts(runtime: LocalRuntime, args: argparse.Namespace) -> None:
    parts = args.parts.split(",")
    for part, vary in (("load", True), ("lockstep", False)):
        if part in parts:
            for what, value in compare(runtime, args, vary=vary):
                report(what, value)
    if "weights" in parts:
        weights(runtime)
    if "memory" in parts and runtime.sleeps:
        memory(runtime)
    if "gap" in parts:
        change = differences(runtime, 64, 128)
        p99 = change.abs().quantile(0.99)
        k3 = (change.exp() - 1 - change).mean()
        report("log-probs from the trainer's", f"mean {change.abs().mean():.4f}, p99 {p99:.3f}, k3 {k3:.5f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a folder, or large")
    parser.add_argument("--tokenizer", type=Path, help="for --model large: a model whose tokenizer serves")
    parser.add_argument("--engine", default="sglang", choices=("sglang", "vllm"))
    parser.add_argument("--parts", default="load,lockstep,weights,memory,gap")
    parser.add_argument("--folder", type=Path, help="where runs and logs go (default: a temporary folder)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--memory", type=float, default=0.4)
    parser.add_argument("--concurrent", type=int, default=256)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--new", type=int, default=64, help="tokens of a turn")
    parser.add_argument("--waves", type=int, default=3, help="trajectories, as a multiple of --concurrent")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--server", nargs="*", default=[], help="more flags of the server")
    parser.add_argument("--set", nargs="*", default=[], help="more settings")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = args.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        measure(args, folder)
    show(f"{args.engine}, {args.model}")


if __name__ == "__main__":
    main()
