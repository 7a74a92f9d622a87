"""Policy updates on GPUs: tokens/s, MFU and peak memory of agentrl beside a plain padded loop, and over several GPUs.

    python benchmarks/update_gpu.py                     # one GPU: agentrl, and transformers + FSDP2 with padding
    python benchmarks/update_gpu.py --gpus 1 2 4        # scaling: as many tokens for each GPU
    python benchmarks/update_gpu.py --tiny --gpus 1 2   # the same on a CPU with a small model, to see that it runs

A random model of Qwen3-1.7B's shape takes PPO updates over random sequences, half prompt and half model tokens, in
passes of 8k tokens; float32 parameters and AdamW, bf16 arithmetic. The plain loop is the usual first version: right
padding, an attention mask, all logits. Each runs in its own processes; the gradient norms of the first step are printed
for all, and must agree. Tokens/s count real tokens; MFU is the necessary arithmetic (agentrl/training/perf/flops.py)
over the GPU's dense bf16 peak.
"""

import argparse
import json
import os
import socket
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from gpu_parts import SHAPES, mixed_batch
from rich.console import Console
from rich.table import Table
from torch import multiprocessing

from agentrl.config.schema import Actor, Optim
from agentrl.config.schema.fsdp import FsdpConfig
from agentrl.training import Batch, PolicyActor
from agentrl.training.batches.outline import BatchOutline
from agentrl.training.model.attention.choosing import use_packed_attention
from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.loading import use_liger_kernels
from agentrl.training.parallel.process_group import join_ranks
from agentrl.training.parallel.ranks import Ranks
from agentrl.training.parallel.sharding import load_on_ranks
from agentrl.training.perf.flops import model_flops, peak_flops


def main() -> None:
    """Measure every way at every number of GPUs; a table, or JSON."""
    args = arguments()
    results = [measured(way, gpus, args) for gpus in args.gpus for way in args.ways]
    if args.json:
        print(json.dumps(results))
        return
    table = Table("", "GPUs", "tokens/s", "MFU", "s a step", "peak GiB", "gradient norm", "scaling", title=title(args))
    alone = {r["way"]: r["speed"] for r in results if r["gpus"] == 1 and "speed" in r}
    for r in results:
        table.add_row(r["way"], str(r["gpus"]), *figures(r, alone.get(r["way"])))
    Console(width=120).print(table)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1])
    parser.add_argument("--ways", nargs="+", default=["agentrl", "plain"], choices=list(WAYS))
    parser.add_argument("--tiny", action="store_true", help="a small model on CPU processes")
    parser.add_argument("--pass-tokens", type=int, default=8192, help="token budget of a forward pass")
    parser.add_argument("--step-tokens", type=int, default=65536, help="tokens of a step for each GPU")
    parser.add_argument("--min-tokens", type=int, default=256, help="of a sequence")
    parser.add_argument("--max-tokens", type=int, default=4096)
    parser.add_argument(
        "--checkpointing", nargs="+", default=[], choices=list(WAYS), help="these recompute activations"
    )
    parser.add_argument("--reshard", choices=list(RESHARD), default="auto", help="reshard_after_forward")
    parser.add_argument("--steps", type=int, default=3, help="timed steps, after one that warms up")
    parser.add_argument("--profile", help="folder for a table of the kernels of one step")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.tiny:
        args.pass_tokens, args.step_tokens, args.min_tokens, args.max_tokens = 512, 2048, 16, 128
    return args


def title(args: argparse.Namespace) -> str:
    """The title of the measurement."""
    place = "CPU" if args.tiny else torch.cuda.get_device_name(0)
    return f"{place}: {args.step_tokens} tokens a step and GPU, sequences of {args.min_tokens} to {args.max_tokens}"


def figures(result: dict[str, Any], alone: float | None) -> list[str]:
    """A row of the table."""
    if "speed" not in result:
        return [result["error"]]
    mfu = f"{result['mfu']:.3f}" if result["mfu"] else ""
    scaling = f"{result['speed'] / alone / result['gpus']:.3f}" if alone else ""
    middle = [f"{result['speed']:.0f}", mfu, f"{result['seconds']:.3f}", f"{result['memory']:.1f}"]
    return [*middle, f"{result['norm']:.4f}", scaling]


def measured(way: str, gpus: int, args: argparse.Namespace) -> dict[str, Any]:
    """Run one way in `gpus` fresh processes; returns the result of the first."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    found = context.SimpleQueue()
    try:
        multiprocessing.spawn(member, (way, gpus, port, args, found), nprocs=gpus)
    except Exception as error:  # out of memory, say: the other ways go on
        lines = str(error).strip().splitlines()
        return {"way": way, "gpus": gpus, "error": (lines[-1] if lines else repr(error))[:200]}
    result: dict[str, Any] = found.get()
    return result


def member(rank: int, way: str, gpus: int, port: int, args: argparse.Namespace, found: Any) -> None:
    """One process of a way."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(gpus)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    args.way = way
    device = torch.device("cpu") if args.tiny else torch.device("cuda", rank)
    ranks = join_ranks(torch.device(device.type))
    if args.tiny:
        torch.set_num_threads(1)
    result = measure(way, ranks, device, args)
    if rank == 0:
        found.put({"way": way, "gpus": gpus} | result)
    torch.distributed.destroy_process_group()


def measure(way: str, ranks: Ranks, device: torch.device, args: argparse.Namespace) -> dict[str, Any]:
    """Median seconds of a step, tokens/s, MFU, peak memory, and the first step's gradient norm."""
    config = model_config(args)
    lengths = args.min_tokens, args.max_tokens
    batch = mixed_batch(args.step_tokens * ranks.world, lengths, config.vocab_size).to(device)
    step = WAYS[way](config, batch, ranks, device, args)
    norm = step()
    seconds = [timed(step, device) for _ in range(args.steps)]
    if args.profile and ranks.first:
        profiled(step, f"{args.profile}/{way}.txt")
    middle = statistics.median(seconds)
    skeleton = model(config, torch.device("meta"), args)
    cost = model_flops({name: tuple(p.shape) for name, p in skeleton.named_parameters()}, config)
    needed = cost.update(batch.lengths, int(batch.mask.sum()))
    peak = peak_flops(device)
    return {
        "seconds": middle,
        "speed": batch.num_tokens / middle,
        "memory": torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0,
        "norm": norm,
        "mfu": needed / middle / peak / ranks.world if peak else None,
    }


def timed(step: Callable[[], float], device: torch.device) -> float:
    """Seconds of one step."""
    start = time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def profiled(step: Callable[[], float], file: str) -> None:
    """Write a step's time by kernel."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
        step()
        torch.cuda.synchronize()
    with open(file, "w") as stream:
        stream.write(prof.key_averages().table(sort_by="self_cuda_time_total", row_limit=60, max_name_column_width=90))


def model_config(args: argparse.Namespace) -> Any:
    """The model's shape."""
    from transformers import Qwen3Config

    return Qwen3Config(**SHAPES["tiny" if args.tiny else "qwen3-1.7b"])


def model(config: Any, device: torch.device, args: argparse.Namespace) -> Any:
    """A random float32 model, the same on every rank and in every way; on the meta device without weights."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    with device:
        module = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    if args.way in args.checkpointing:
        module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return module.eval()


def agentrl_step(
    config: Any, batch: Batch, ranks: Ranks, device: torch.device, args: argparse.Namespace
) -> Callable[[], float]:
    """agentrl's update of a model sharded over the ranks."""

    def load(where: torch.device) -> ModelHandle:
        # Drawn where the plain loop's is: the same weights, and soon there.
        module = model(config, where if where.type == "meta" else device, args).to(where)
        assert use_packed_attention(module)
        if args.way == "liger":
            use_liger_kernels(module, "model")
        return ModelHandle(module)

    compiled = args.way in ("compiled", "alone")

    module = load_on_ranks(
        load, ranks, FsdpConfig(reshard_after_forward=RESHARD[args.reshard]), device=device, compiled=compiled
    )
    actor = Actor(ppo_max_token_len_per_gpu=args.pass_tokens, optim=Optim(lr=1e-6))
    policy = PolicyActor(module, actor=actor, temperature=1.0, device=device, total_steps=100, ranks=ranks)
    own = batch.share(policy.assign_shares(BatchOutline.of(batch))[ranks.data_rank])
    return lambda: policy.update(own)["actor/grad_norm"]


def alone_step(
    config: Any, batch: Batch, ranks: Ranks, device: torch.device, args: argparse.Namespace
) -> Callable[[], float]:
    """The same on one GPU without sharding, as a run of one process trains."""
    return agentrl_step(config, batch, Ranks(), device, args)


def plain_step(
    config: Any, batch: Batch, ranks: Ranks, device: torch.device, args: argparse.Namespace
) -> Callable[[], float]:
    """The same update as a plain loop over padded micro-batches of a transformers model under FSDP2."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    module = model(config, device, args)
    module.set_attn_implementation("sdpa")
    half = torch.float32 if args.tiny else torch.bfloat16
    policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32)
    for part in (*module.model.layers, module):
        fully_shard(part, mesh=ranks.mesh, mp_policy=policy)
    parameters = list(module.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-6, weight_decay=0.01, fused=True)
    assert batch.advantages is not None
    rows = [x.split(batch.lengths)[ranks.rank :: ranks.world] for x in (batch.ids, batch.mask, batch.advantages)]
    size = max(args.pass_tokens // args.max_tokens, 1)
    most = max((len(batch.lengths) - r + ranks.world - 1) // ranks.world for r in range(ranks.world))
    pad = torch.nn.utils.rnn.pad_sequence
    total = batch.mask.sum()

    def step() -> float:
        module.train()
        for i in range(0, most, size):
            part = slice(min(i, len(rows[0]) - 1), i + size)
            ids, mask, advantages = (pad(list(column[part]), batch_first=True) for column in rows)
            attention = pad([torch.ones_like(x) for x in rows[0][part]], batch_first=True)
            logits = module(input_ids=ids, attention_mask=attention, use_cache=False).logits[:, :-1].float()
            logprobs = logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
            ratio = (logprobs - logprobs.detach()).exp()
            advantage = advantages[:, 1:]
            loss = torch.max(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2))
            share = (loss * mask[:, 1:]).sum().div(total) * (i < len(rows[0]))  # or only in step with the others
            (share * ranks.world).backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)

    return step


RESHARD = {"auto": None, "yes": True, "no": False}
WAYS = {
    "agentrl": agentrl_step,
    "compiled": agentrl_step,  # actor.use_torch_compile
    "liger": agentrl_step,  # model.use_liger
    "alone": alone_step,
    "plain": plain_step,
}


if __name__ == "__main__":
    main()
