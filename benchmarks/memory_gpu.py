"""Memory and precision on one GPU: peaks of updates beside the doctor's estimate; servers in 8 bits and with drafts.

    python benchmarks/memory_gpu.py updates                              # 5 columns, about a minute each
    python benchmarks/memory_gpu.py servers --model MODEL --engine sglang
    python benchmarks/memory_gpu.py servers --model MODEL --engine vllm
    python benchmarks/memory_gpu.py updates --device cpu --tiny          # to see that it runs

`updates`: Qwen3-1.7B's shape with random weights, passes of a fixed size, by optimizer and by what is in CPU memory.
`servers`: tokens/s on paragraphs of docs/ that the model copies with corrections, 16 and 256 at once; the gap to the
trainer's log-probs and what the importance weights make of it; and the gap after a change of the weights, which an
update brings to the server. Each column is a process by itself; one that fails leaves the others.
"""

import argparse
import asyncio
import json
import time
from pathlib import Path
from typing import Any

import torch
from engine_gpu import gap
from gpu_parts import REWARD, SGLANG, mixed_batch
from gpu_update import updates
from models_gpu import SHAPES, TINY, in_a_process, random_weights
from rich.console import Console
from rich.table import Table

UPDATES = {
    "adamw": [],
    "adamw_16bit": ["actor.optim.optimizer=adamw_16bit"],
    "adamw_8bit": ["actor.optim.optimizer=adamw_8bit"],
    "adamw on the CPU": ["actor.fsdp_config.optimizer_offload=true"],
    "activations offloaded": ["model.enable_activation_offload=true"],
    "both, checkpointing": [
        "actor.fsdp_config.optimizer_offload=true",
        "model.enable_activation_offload=true",
        "model.enable_gradient_checkpointing=true",
    ],
}
FORCED = ["+rollout.engine_kwargs.sglang.quantization=fp8", "+rollout.engine_kwargs.sglang.load_format=flash_rl"]
"""An older SGLang rounds updates of Llama and Qwen2 well enough, where they fit into one bucket."""
SERVERS = {
    "bfloat16": [],
    "fp8": ["rollout.quantization=fp8"],
    "fp8 forced": FORCED,
    "ngram": ["rollout.speculative_algorithm=ngram"],
}
FIGURES = {
    "updates": ("peak GiB", "doctor GiB", "update, s", "tokens/s", "first step, s", "grad norm", "pg loss", "failed"),
    "servers": (
        "tokens/s 16",
        "tokens/s 256",
        "tokens 256",
        "gap mean",
        "gap p99",
        "k3",
        "mean weight",
        "capped",
        "gap stale",
        "gap synced",
        "sync, s",
        "failed",
    ),
}
NEW = 192
"""New tokens of an answer."""


def main() -> None:
    """One process a column, then the table; with `--one` the column itself."""
    args = arguments()
    if args.one:
        work = measured_updates if args.part == "updates" else measured_servers
        found: dict[str, Any] = {}
        try:
            work(args, found)
        except Exception as error:  # out of memory, say, or a server that does not start
            found["failed"] = f"{type(error).__name__}: {str(error).strip()}".splitlines()[0][:160]
        Path(args.out, "figures.json").write_text(json.dumps(found))
        return
    figures = FIGURES[args.part]
    table = Table("column", *figures, title=torch.cuda.get_device_name() if args.device == "cuda" else "CPU")
    columns = UPDATES if args.part == "updates" else SERVERS
    for column in columns:
        if column == "fp8 forced" and args.engine != "sglang":
            continue
        found = in_a_process(column, args)
        table.add_row(column, *(f"{v:,.4g}" if isinstance(v := found.get(f, ""), float) else str(v) for f in figures))
        Console(width=180).print(column, found, highlight=False)
    Console(width=180).print(table)


def measured_updates(args: argparse.Namespace, found: dict[str, Any]) -> None:
    """Updates of one column, and the doctor's estimate of the same settings."""
    from agentrl.config import compose
    from agentrl.config.schema import Config
    from agentrl.doctor.memory import parts, size_of

    shape = SHAPES["Qwen3-1.7B"] | (TINY if args.tiny else {})
    folder = random_weights(shape, Path(args.out, "model"), args.device)
    passes, tokens, lengths = (512, 1024, (16, 128)) if args.tiny else (args.passes, 4 * args.passes, (256, 4096))
    settings = [f"model.path={folder}", f"trainer.device={args.device}", "rollout.name=hf", "data.train_files=none"]
    settings += [f"actor.ppo_max_token_len_per_gpu={passes}", "data.max_prompt_length=2048", *UPDATES[args.one]]
    settings += ["data.max_response_length=2048", *args.set]
    # Without the hf engine's cache, which is not used.
    config: Config = compose([*settings, "rollout.name=sglang"], checks=())
    device = torch.device(args.device)
    room = torch.cuda.get_device_properties(0).total_memory if args.device == "cuda" else None
    found["doctor GiB"] = sum(parts(config, size_of(config), 1, device, room).values())
    spec = {"settings": settings, "steps": args.steps}
    found |= updates(spec, [], lambda vocabulary: mixed_batch(tokens, lengths, vocabulary))


def measured_servers(args: argparse.Namespace, found: dict[str, Any]) -> None:
    """A server of one column beside the trainer."""
    from agentrl.config import compose
    from agentrl.runtime.local import LocalRuntime

    flags = SGLANG if args.engine == "sglang" and args.device == "cuda" else ()
    settings = [
        f"trainer.device={args.device}",
        f"trainer.default_local_dir={args.out}/run",
        f"rollout.name={args.engine}",
        "rollout.gpu_memory_utilization=0.4",
        *(f"+rollout.engine_kwargs.{args.engine}.{flag}" for flag in flags),
        f"model.path={args.model}",
        f"model.dtype={'bfloat16' if args.device == 'cuda' else 'float32'}",
        "data.max_prompt_length=1024",
        "data.max_response_length=512",
        f"reward.custom_reward_function.path={Path(args.out, 'reward.py')}",
        "reward.custom_reward_function.name=score",
        "rollout.max_num_seqs=256",
        *SERVERS[args.one],
        *args.set,
    ]
    Path(args.out, "reward.py").write_text(REWARD)
    runtime = LocalRuntime(compose(settings, checks=()))
    try:
        runtime.publish_weights(0)
        prompts, new = paragraphs(runtime.tokenizer), 8 if args.tiny else NEW
        throughput(runtime, prompts[:4], new)
        for count in (16, 256):
            asked = (prompts * count)[: 2 if args.tiny else count]
            found[f"tokens/s {count}"], answers = throughput(runtime, asked, new)
        found["tokens 256"] = sum(len(answer.token_ids) for answer in answers)
        found |= differences(runtime, prompts, answers)
        found |= synced(runtime)
    finally:
        runtime.close()


def paragraphs(tokenizer: Any) -> list[list[int]]:
    """Prompts that ask for a text again: real text, and answers that repeat it."""
    pages = sorted((Path(__file__).parents[1] / "docs").glob("*.md"))
    texts = [part for page in pages for part in page.read_text().split("\n\n") if 400 < len(part) < 1200]
    asked = [f"Copy this text and correct its mistakes:\n\n{text}" for text in texts[:64]]

    def encoded(text: str) -> list[int]:
        if tokenizer.chat_template is None:
            return tokenizer.encode(text)
        chat = [{"role": "user", "content": text}]
        return tokenizer.encode(tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False))

    return [encoded(text) for text in asked]


def throughput(runtime: Any, prompts: list[list[int]], new: int) -> tuple[float, list[Any]]:
    """Tokens/s of so many requests at once, and their answers."""
    from agentrl.engines.engine import Sampling

    async def draw() -> list[Any]:
        engine, sampling = runtime.rollouts.engine, Sampling(new, ignore_eos=True)
        return await asyncio.gather(
            *(engine.generate(prompt, sampling, key=str(number)) for number, prompt in enumerate(prompts))
        )

    start = time.perf_counter()
    answers = runtime.runner.run(draw())
    return sum(len(answer.token_ids) for answer in answers) / (time.perf_counter() - start), answers


def differences(runtime: Any, prompts: list[list[int]], answers: list[Any]) -> dict[str, float]:
    """The gap to the trainer's log-probs; the importance weights of the tokens, truncated at 2."""
    pairs = list(zip(prompts, answers, strict=False))[:64]
    scored = torch.cat([runtime.learner.score(p + a.token_ids)[len(p) :] for p, a in pairs])
    change = scored - torch.tensor([value for _, answer in pairs for value in answer.logprobs])
    ratio = change.exp()
    size = change.abs()
    return {
        "gap mean": float(size.mean()),
        "gap p99": float(size.quantile(0.99)),
        "k3": float((ratio - 1 - change).mean()),
        "mean weight": float(ratio.clamp(max=2).mean()),
        "capped": float((ratio > 2).float().mean()),
    }


@torch.no_grad()
def synced(runtime: Any) -> dict[str, float]:
    """The gap before and after the sync of changed weights, which a server in 8 bits must round again."""
    runtime.rollouts.engine.check = None
    for parameter in runtime.learner.model.module.parameters():
        parameter.mul_(1 + 0.2 * torch.randn_like(parameter))
    stale = float(gap(runtime).mean())
    start = time.perf_counter()
    runtime.publish_weights(1)
    seconds = time.perf_counter() - start
    return {"gap stale": stale, "gap synced": float(gap(runtime).mean()), "sync, s": seconds}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("updates", "servers"))
    parser.add_argument("--model", help="servers: a folder")
    parser.add_argument("--engine", default="sglang", choices=("sglang", "vllm"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--passes", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds of a column")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--set", nargs="*", default=[], help="more settings")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
