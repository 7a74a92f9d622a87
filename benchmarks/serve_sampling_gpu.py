"""Samplers of `agentrl serve` on one GPU: tokens/s of the base, of one adapter and of eight, beside a run's engine.

    python benchmarks/serve_sampling_gpu.py --set rollout.name=sglang ...   # Qwen3-1.7B's shape with random weights
    python benchmarks/serve_sampling_gpu.py --tiny                          # hf on a CPU, to see that it runs

Each row draws all requests at once, after a warm-up. "of the run's" compares with a server of `agentrl train` without
adapters. The gaps are mean and largest distance of log-probs, in nats, from those of peft and transformers in float32
over the same tokens: of drawn tokens, and of scored prompts; bf16 makes about 0.03, another adapter far more than 0.5.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from gpu_parts import SHAPES, device_name, mean
from peft import LoraConfig, PeftModel, get_peft_model
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from agentrl.config import compose
from agentrl.config.schema import Config
from agentrl.engines.engine import Sampling
from agentrl.engines.launching import launch
from agentrl.engines.servers import RemoteEngine
from agentrl.serve.samplers import Samplers, open_samplers
from agentrl.training import load_model

LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CHECKED = 4
console = Console(width=140)


def main() -> None:
    """Measure, and print the table."""
    args = arguments()
    with tempfile.TemporaryDirectory() as folder:
        adapters = written(Path(folder), args)
        table = Table("way", "tokens/s", "of the run's", "gap, drawn", "gap, scored", title=device_name())
        for row in asyncio.run(measured(config(Path(folder), args), adapters, args)):
            table.add_row(*row)
        console.print(table)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a small model and the hf engine on the CPU")
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=512, help="new tokens of a request")
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--no-head", action="store_true", help="adapters without the output layer")
    parser.add_argument("--set", nargs="*", default=[], help="settings, such as those of the engine")
    args = parser.parse_args()
    if args.tiny:
        args.requests, args.tokens = 16, 24
    return args


def written(folder: Path, args: argparse.Namespace) -> list[Path]:
    """A model with random weights, and adapters of rank 32 that change what it says."""
    torch.manual_seed(0)
    with torch.device("cpu" if args.tiny else "cuda"):
        network = Qwen3ForCausalLM(Qwen3Config(**SHAPES["tiny" if args.tiny else "qwen3-1.7b"]))
        network.to(torch.float32 if args.tiny else torch.bfloat16).save_pretrained(folder / "base")
        layers = LAYERS if args.no_head else [*LAYERS, "lm_head"]
        model = get_peft_model(network, LoraConfig(r=32, lora_alpha=32, target_modules=layers, task_type="CAUSAL_LM"))
        for number in range(args.adapters):
            torch.manual_seed(number)
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    torch.nn.init.normal_(parameter, std=0.02)
            model.save_pretrained(folder / f"adapter-{number}", save_embedding_layers=False)
    return [folder / f"adapter-{number}" for number in range(args.adapters)]


def config(folder: Path, args: argparse.Namespace) -> Config:
    """The settings of the samplers and of the run."""
    names = [f"model.path={folder / 'base'}", f"model.dtype={'float32' if args.tiny else 'bfloat16'}"]
    names += [f"trainer.device={'cpu' if args.tiny else 'cuda'}", f"trainer.default_local_dir={folder / 'run'}"]
    names += [f"rollout.max_model_len={256 + args.tokens}", f"rollout.max_num_seqs={args.requests}"]
    names += ["rollout.load_format=auto", *(["rollout.name=hf"] if args.tiny else [])]
    return compose([*names, *args.set], checks=())


async def measured(settings: Config, adapters: Sequence[Path], args: argparse.Namespace) -> list[list[str]]:
    """The rows."""
    device = torch.device("cpu" if args.tiny else "cuda")
    rows, alone = list[list[str]](), await run_speed(settings, args)
    if alone:
        rows.append(["a run's server, no adapters", f"{alone:,.0f}", "1.000", "", ""])
    model = load_model(settings.model, device=device, seed=0)
    models = SimpleNamespace(base=model, kind=device.type, launch=launch)
    samplers = await open_samplers(settings, models, None)
    try:
        ways = {"base": [None], "one adapter": adapters[:1], f"{len(adapters)} adapters": list(adapters)}
        for way, weights in ways.items():
            try:
                rows.append([way, *await served(samplers, weights, alone, settings, args)])
            except Exception as error:  # the other ways go on
                rows.append([way, f"{type(error).__name__}: {str(error).strip()[:60]}"])
    finally:
        await samplers.close()
    return rows


async def run_speed(settings: Config, args: argparse.Namespace) -> float:
    """Tokens/s of the server of a run; 0 for an engine in process."""
    servers = launch(settings, "cpu" if args.tiny else "cuda")
    if servers is None:
        return 0.0
    engine = RemoteEngine(servers.backend, servers.replicas, None, scratch=servers.scratch)
    await engine.start()
    try:
        jobs = [(prompt(number, settings), sampling(number, args)) for number in range(args.requests)]
        return await speed([lambda j=job, i=i: engine.generate(*j, key=f"run/{i}") for i, job in enumerate(jobs)])
    finally:
        await engine.close()


async def served(
    samplers: Samplers, weights: Sequence[Path | None], alone: float, settings: Config, args: argparse.Namespace
) -> list[str]:
    """The cells of one way: adapters in turn, request by request."""
    jobs = [(weights[i % len(weights)], prompt(i, settings), sampling(i, args)) for i in range(args.requests)]
    drawn: dict[int, Any] = {}

    async def ask(number: int) -> Any:
        drawn[number] = await samplers.generate(*jobs[number])
        return drawn[number]

    found = await speed([lambda i=i: ask(i) for i in range(args.requests)])
    checked = range(min(CHECKED, len(jobs)))
    scores = [await samplers.score(jobs[i][0], jobs[i][1], 5) for i in checked]
    gaps = []
    for i, score in zip(checked, scores, strict=True):
        own = logprobs(settings, jobs[i][0], jobs[i][1] + drawn[i].token_ids)
        begin = len(jobs[i][1])
        gaps.append((own[begin:] - torch.tensor(drawn[i].logprobs)).abs())
        gaps.append((own[1:begin] - torch.from_numpy(score.logprobs[1:])).abs())
    cells = [
        f"{mean(g.mean().item() for g in gaps[k::2]):.4f} / {max(g.max() for g in gaps[k::2]):.3f}" for k in (0, 1)
    ]
    return [f"{found:,.0f}", f"{found / alone:.3f}" if alone else "", *cells]


async def speed(calls: Sequence[Any]) -> float:
    """Tokens/s of all calls at once, after one of each fourth."""
    await asyncio.gather(*(call() for call in calls[::4]))
    begun = time.perf_counter()
    drawn = await asyncio.gather(*(call() for call in calls))
    return sum(len(one.token_ids) for one in drawn) / (time.perf_counter() - begun)


def prompt(number: int, settings: Config) -> list[int]:
    """128 random tokens."""
    draw = torch.Generator().manual_seed(number)
    words = Qwen3Config.from_pretrained(str(settings.model.path)).vocab_size
    return torch.randint(words, (128,), generator=draw).tolist()


def sampling(number: int, args: argparse.Namespace) -> Sampling:
    """Draws all tokens."""
    return Sampling(args.tokens, ignore_eos=True, seed=number)


def logprobs(settings: Config, weights: Path | None, ids: list[int]) -> torch.Tensor:
    """Of each token but the first, by peft and transformers in float32; 0 for the first."""
    model = AutoModelForCausalLM.from_pretrained(str(settings.model.path), dtype=torch.float32)
    model = model if weights is None else PeftModel.from_pretrained(model, str(weights))
    with torch.no_grad():
        logits = model.to(settings.trainer.device)(torch.tensor([ids], device=settings.trainer.device)).logits[0]
        found = logits.log_softmax(-1)[:-1].gather(1, torch.tensor(ids[1:], device=logits.device)[:, None])[:, 0]
    return torch.cat([torch.zeros(1), found.cpu()])


if __name__ == "__main__":
    main()
