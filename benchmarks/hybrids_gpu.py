"""Hybrid models on a GPU: packed rows beside one sequence a pass, with and without flash-linear-attention.

    python benchmarks/hybrids_gpu.py
    python benchmarks/hybrids_gpu.py --kinds qwen3_5_text --tiny     # to see that it runs, on a CPU too

Random models with the layer shapes of Qwen3.5 and Qwen3-Next, four layers; each column is a process. `differs` is the
mean difference of a log-prob from the same model's, one sequence a pass, in nats; `mixers` says which take a whole row.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from typing import Any

COLUMNS = ("alone", "packed", "alone, no fla", "packed, no fla", "shared prompts")
PEAK = 989e12
LAYERS = ["linear_attention"] * 3 + ["full_attention"]
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3_5_text": {"hidden_size": 2560, "intermediate_size": 9216, "num_attention_heads": 16, "head_dim": 256}
    | {"num_key_value_heads": 4, "linear_num_value_heads": 32, "linear_num_key_heads": 16},
    "qwen3_next": {"hidden_size": 2048, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 512}
    | {"shared_expert_intermediate_size": 512, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256},
    "gpt_oss": {"hidden_size": 2880, "intermediate_size": 2880, "num_local_experts": 32, "num_experts_per_tok": 4}
    | {"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128},
}
TINY = {"hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "num_experts": 4, "head_dim": 16}


def main() -> None:
    """Print a line a column as it comes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--tokens", type=int, default=16384, help="of a pass")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--column", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.column:
        print("RESULT " + json.dumps(measured(args.kinds[0], args.column, args)))
        return
    for kind in args.kinds:
        for column in COLUMNS if kind != "gpt_oss" else COLUMNS[:2]:
            words = ["--kinds", kind, "--column", column, "--tokens", str(args.tokens), *["--tiny"] * args.tiny]
            try:
                done = subprocess.run(
                    [sys.executable, "-W", "ignore", __file__, *words], capture_output=True, text=True, timeout=110
                )
                found = [line[7:] for line in done.stdout.splitlines() if line.startswith("RESULT ")]
                said = found[0] if found else (done.stdout + done.stderr)[-600:]
            except subprocess.TimeoutExpired:
                said = "took longer than 110 s"
            print(f"{kind} | {column} | {said}", flush=True)


def measured(kind: str, column: str, args: argparse.Namespace) -> dict[str, Any]:
    """Speed and memory of forward and backward passes, and the difference of log-probs from sequences alone."""
    if column.endswith("no fla"):
        sys.modules["fla"] = None  # type: ignore[assignment]
    import torch

    from agentrl.training.model.head.logprobs import TokenLogprobs
    from agentrl.training.model.packing_probe import pack_where_exact

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch = rows(args, shared=column == "shared prompts").to(device)
    model = hybrid(kind, args.tiny, device)
    with torch.no_grad():
        exact = torch.cat([TokenLogprobs(model)(batch.select([i]))[0] for i in range(batch.num_sequences)])
    packs = pack_where_exact(model, device) if not column.startswith("alone") else None
    parts = batch if packs else None
    passes = [parts] if parts is not None else [batch.select([i]) for i in range(batch.num_sequences)]
    passes = [part.share_prompts() if column == "shared prompts" else part for part in passes]
    score, seconds = TokenLogprobs(model), []
    for _ in range(4):
        start = time.perf_counter()
        found = [score(part)[0] for part in passes] if packs else []
        for part in passes if not packs else []:
            score(part)[0].sum().backward()
        if packs:
            found[0].sum().backward()
            difference = (found[0].detach() - exact).abs()[batch.mask].mean().item()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        model.module.zero_grad()
    speed = batch.num_tokens / statistics.median(seconds[1:])
    bounds = {name.split(".")[-1]: p.packs for name, p in model.module.named_modules() if hasattr(p, "packs")}
    return {
        "packs": packs,
        "tokens/s": round(speed),
        "MFU": round(6 * active(model.module) * speed / PEAK, 3),
        "peak GiB": round(torch.cuda.max_memory_allocated() / 2**30, 1) if device.type == "cuda" else None,
        "differs": round(difference, 6) if packs else None,
        "mixers": bounds,
    }


def rows(args: argparse.Namespace, *, shared: bool) -> Any:
    """Sequences of 256 to 2048 tokens, of which `shared` ones begin with the same 128."""
    import torch

    from agentrl.training import pack_ledgers
    from agentrl.trajectory.ledger import Ledger

    draw, ledgers, left = torch.Generator().manual_seed(0), [], args.tokens // (16 if args.tiny else 1)
    while left > 0:
        length = min(left, int(torch.randint(256, 2048, (), generator=draw)) // (16 if args.tiny else 1))
        ids = torch.randint(3, 97, (length + 130,), generator=draw).tolist()
        ledger = Ledger()
        ledger.append_prompt([5] * 128 if shared else ids[:128])
        ledger.append_model(ids[128:], [-4.0] * (length + 2), turn=0, version=0)
        ledgers.append(ledger)
        left -= length + 130
    return pack_ledgers(ledgers, group=[0] * len(ledgers))


def hybrid(kind: str, tiny: bool, device: Any) -> Any:
    """A random model that computes in bfloat16 on a GPU."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    from agentrl.training.model.handle import ModelHandle

    layers = LAYERS if kind != "gpt_oss" else ["sliding_attention", "full_attention"] * 2
    fields = (
        SHAPES[kind] | (TINY if tiny else {}) | {"num_hidden_layers": 4, "layer_types": layers, "vocab_size": 32000}
    )
    torch.manual_seed(0)
    with device:
        module = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**fields))
    model = ModelHandle(module, compute_dtype=torch.bfloat16 if device.type == "cuda" else None)
    model.use_compute_copies()
    return model


def active(module: Any) -> float:
    """Parameters that a token meets, without the embedding."""
    share = 1.0
    config = module.config
    if experts := getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None):
        share = config.num_experts_per_tok / experts
    named = [(name, p.numel()) for name, p in module.named_parameters() if "embed" not in name]
    return sum(n * (share if ".experts." in name else 1.0) for name, n in named)


if __name__ == "__main__":
    main()
