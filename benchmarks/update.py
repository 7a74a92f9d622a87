"""Speed and memory of one policy update: agentrl's packed update beside a padded loop of plain transformers.

    python benchmarks/update.py --model models/smollm2
    python benchmarks/update.py --model models/smollm2 --lora-rank 16 --dtype bfloat16
    python benchmarks/update.py --min-tokens 200        # equal lengths: nothing to gain from padding itself

Both take the same sequences, model, loss and optimizer; each runs in its own process, for its own peak memory. The
padded loop is the usual first version: right padding, an attention mask, the logits of all tokens, a PPO loss per
token. The gradient norms of the first step are printed for both, and must agree. Tokens/s count real tokens only.
Speeds drift with the machine's load: read the ratio.
"""

import argparse
import json
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from gpu_parts import random_batch
from rich.console import Console
from rich.table import Table

from agentrl.config.schema import Actor, Model, Optim
from agentrl.training import Batch, PolicyActor, device_for, load_model, tune_cpu


def main() -> None:
    """Measure both ways and print a table, or JSON."""
    args = arguments()
    results = {way: in_own_process(way, args) for way in ("padded", "packed")}
    if args.json:
        print(json.dumps(results))
        return
    table = Table("", "tokens/s", "s a step", "peak memory GiB", "gradient norm", title=title(args))
    for way, result in results.items():
        figures = (
            f"{result['speed']:.0f}",
            f"{result['seconds']:.2f}",
            f"{result['memory']:.2f}",
            f"{result['norm']:.4f}",
        )
        table.add_row(way, *figures)
    padded, packed = results["padded"], results["packed"]
    table.add_row(
        "packed / padded",
        f"{packed['speed'] / padded['speed']:.2f}",
        "",
        f"{packed['memory'] / padded['memory']:.2f}",
        "",
    )
    Console().print(table)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder in Hugging Face format")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--lora-rank", type=int, default=0)
    parser.add_argument("--gradient-checkpointing", action="store_true")
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--min-tokens", type=int, default=50)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--micro-tokens", type=int, default=1600, help="token budget of a forward pass")
    parser.add_argument("--steps", type=int, default=3, help="timed steps, after one that warms up")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--threads", type=int, help="CPU threads; default: PyTorch's choice")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def title(args: argparse.Namespace) -> str:
    """The title of the measurement."""
    lora = f", LoRA rank {args.lora_rank}" if args.lora_rank else ""
    return f"{args.sequences} sequences of {args.min_tokens} to {args.max_tokens} tokens, {args.dtype}{lora}"


def in_own_process(way: str, args: argparse.Namespace) -> dict[str, float]:
    """Run one way in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, (way, args))


def measure(way: str, args: argparse.Namespace) -> dict[str, float]:
    """Median seconds of a step, tokens/s, peak memory, and the first step's gradient norm."""
    device = device_for(args.device)
    if device.type == "cpu":
        tune_cpu(args.threads)
    model = Model(
        path=args.model,
        dtype=args.dtype,
        lora_rank=args.lora_rank,
        enable_gradient_checkpointing=args.gradient_checkpointing,
    )
    module = load_model(model, device=device, seed=0).module
    batch = sequences(args, module.config.vocab_size).to(device)
    step = {"packed": packed_step, "padded": padded_step}[way](module, batch, args, device)
    norm = step()
    seconds = [timed(step, device) for _ in range(args.steps)]
    middle = statistics.median(seconds)
    return {"seconds": middle, "speed": batch.num_tokens / middle, "memory": peak_memory(device), "norm": norm}


def timed(step: Callable[[], float], device: torch.device) -> float:
    """Seconds of one step."""
    start = time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def peak_memory(device: torch.device) -> float:
    """GiB: allocated on the GPU, or resident in this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def sequences(args: argparse.Namespace, vocabulary: int) -> Batch:
    """Random sequences, half prompt and half model tokens, with random advantages."""
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(args.min_tokens, args.max_tokens + 1, (args.sequences,), generator=draw).tolist()
    return random_batch(lengths, vocabulary, draw)


def packed_step(module: Any, batch: Batch, args: argparse.Namespace, device: torch.device) -> Callable[[], float]:
    """agentrl's update."""
    actor = Actor(ppo_max_token_len_per_gpu=args.micro_tokens, optim=Optim(lr=1e-6))
    policy = PolicyActor(module, actor=actor, temperature=1.0, device=device, total_steps=100)
    return lambda: policy.update(batch)["actor/grad_norm"]


def padded_step(module: Any, batch: Batch, args: argparse.Namespace, device: torch.device) -> Callable[[], float]:
    """The same update as a plain loop over padded micro-batches."""
    module.set_attn_implementation("sdpa")
    parameters = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-6, weight_decay=0.01)
    assert batch.advantages is not None
    rows = [x.split(batch.lengths) for x in (batch.ids, batch.mask, batch.advantages)]
    pad = torch.nn.utils.rnn.pad_sequence
    ids, mask, advantages = (pad(list(column), batch_first=True) for column in rows)
    attention = pad([torch.ones_like(x) for x in rows[0]], batch_first=True)
    size = max(args.micro_tokens // ids.shape[1], 1)

    def step() -> float:
        module.train()
        for i in range(0, len(ids), size):
            part = slice(i, i + size)
            logits = module(input_ids=ids[part], attention_mask=attention[part], use_cache=False).logits[:, :-1].float()
            logprobs = logits.log_softmax(-1).gather(-1, ids[part, 1:, None]).squeeze(-1)
            ratio = (logprobs - logprobs.detach()).exp()
            advantage = advantages[part, 1:]
            loss = torch.max(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2))
            (loss * mask[part, 1:]).sum().div(mask.sum()).backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(norm)

    return step


if __name__ == "__main__":
    main()
