"""An engine's server beside the trainer: weight sync, memory, log-probs. one_gpu.py measures its throughput.

    python benchmarks/engine_gpu.py --model MODEL [--engine vllm] [--parts weights,memory,gap]
    python benchmarks/engine_gpu.py --model large --tokenizer MODEL --set rollout.tensor_model_parallel_size=2

`weights` changes the policy, and shows that the server follows only after the sync. `--model large` has the shape of
Qwen3-1.7B, with random weights. With several GPUs the server has its own, and weights are sent by NCCL.
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

import torch
from gpu_parts import REWARD, SGLANG, copy_seconds, large_model, median, report, show

from agentrl.config import compose
from agentrl.engines.engine import Generation, Sampling
from agentrl.engines.servers.weights import PolicyWeights
from agentrl.runtime.local import LocalRuntime


@torch.no_grad()
def weights(runtime: LocalRuntime) -> None:
    """Time a sync, and show by log-probs that it arrives."""
    engine, model = runtime.rollouts.engine, runtime.learner.model
    size = PolicyWeights(model, dtype=torch.bfloat16 if runtime.device.type == "cuda" else None).num_bytes
    engine.check, check = None, engine.check  # type: ignore[attr-defined]
    times = []
    for i in range(6):
        start = time.perf_counter()
        runtime.publish_weights(i)
        times.append(time.perf_counter() - start)
    best = median(times)
    way = engine.transport.name  # type: ignore[attr-defined]
    report(f"sync by {way}, {size / 1e9:.2f} GB", f"{best:.3f} s = {size / best / 1e9:.1f} GB/s; first {times[0]:.3f}")
    flat = torch.empty(size, dtype=torch.uint8, device=runtime.device)
    report("one copy of it on the device", f"{copy_seconds(flat):.4f} s")
    gaps = [gap(runtime)]
    kept = [p.clone() for p in model.module.parameters()]
    for parameter in model.module.parameters():
        parameter.mul_(1 + 0.2 * torch.randn_like(parameter))
    gaps.append(gap(runtime))
    runtime.publish_weights(7)
    gaps.append(gap(runtime))
    for parameter, value in zip(model.module.parameters(), kept, strict=True):
        parameter.copy_(value)
    engine.check = check  # type: ignore[attr-defined]
    runtime.publish_weights(8)
    text = "{:.4f}, policy changed {:.4f}, after the sync {:.4f}".format(*(float(g.mean()) for g in gaps))
    report("log-probs from the policy's, mean", text)


def gap(runtime: LocalRuntime, count: int = 32, new: int = 64) -> torch.Tensor:
    """|engine's log-prob - trainer's| of sampled tokens."""
    return differences(runtime, count, new).abs()


def differences(runtime: LocalRuntime, count: int, new: int) -> torch.Tensor:
    prompts = [runtime.tokenizer.encode(f"Tell me a story about the number {i}.") for i in range(count)]

    async def draw() -> list[Generation]:
        sampling = Sampling(new, ignore_eos=True)
        return await asyncio.gather(
            *(runtime.rollouts.engine.generate(p, sampling, key=str(i)) for i, p in enumerate(prompts))
        )

    drawn = runtime.runner.run(draw())
    scored = [runtime.learner.score(p + g.token_ids)[len(p) :] for p, g in zip(prompts, drawn, strict=True)]
    return torch.cat(scored) - torch.tensor([value for g in drawn for value in g.logprobs])


def memory(runtime: LocalRuntime) -> None:
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    start = time.perf_counter()
    runtime.runner.run(runtime.rollouts.engine.sleep())
    asleep, freed = time.perf_counter() - start, torch.cuda.mem_get_info()[0] - free
    start = time.perf_counter()
    runtime.runner.run(runtime.rollouts.engine.wake())
    awake = time.perf_counter() - start
    left = (torch.cuda.mem_get_info()[0] - free) / 2**20
    report("sleep, wake with weights", f"{asleep:.3f} s, {awake:.3f} s")
    report(
        "memory free",
        f"{free / 2**30:.1f} GiB, asleep {(free + freed) / 2**30:.1f}, after waking {left:+.0f} MiB",
    )


def measure(args: argparse.Namespace, folder: Path) -> None:
    """Start the engine beside the trainer, and run the parts."""
    model = large_model(folder, args.tokenizer) if args.model == "large" else Path(args.model)
    flags = SGLANG if args.engine == "sglang" and args.device == "cuda" else ()
    settings = [
        f"trainer.device={args.device}",
        f"trainer.default_local_dir={folder / 'run'}",
        f"rollout.name={args.engine}",
        f"rollout.gpu_memory_utilization={args.memory}",
        *(f"+rollout.engine_kwargs.{args.engine}.{flag}" for flag in (*flags, *args.server)),
        f"model.path={model}",
        f"model.dtype={'bfloat16' if args.device == 'cuda' else 'float32'}",
        "data.max_prompt_length=512",
        "data.max_response_length=512",
        f"reward.custom_reward_function.path={folder / 'reward.py'}",
        "reward.custom_reward_function.name=score",
        f"rollout.max_num_seqs={args.concurrent}",
        "rollout.weight_check=always",
        *args.set,
    ]
    (folder / "reward.py").write_text(REWARD)
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
    parser.add_argument("--parts", default="weights,memory,gap")
    parser.add_argument("--folder", type=Path, help="where runs and logs go (default: a temporary folder)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--memory", type=float, default=0.4)
    parser.add_argument("--concurrent", type=int, default=256)
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
