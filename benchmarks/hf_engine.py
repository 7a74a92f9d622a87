"""Tokens per second of the hf engine beside transformers' own generation: same model, same prompts, one run.

    python benchmarks/hf_engine.py --model PATH [--dtype float32] [--threads 2] [--concurrency 1,8,32] [--vllm PYTHON]

Each of n requests continues a random 150-token prompt by exactly 64 tokens, at temperature 1, with log-probs.
`generate` takes the n prompts as one batch; `generate_batch` is transformers' continuous batching; `vllm` is agentrl's
vLLM engine over HTTP, its server under the given interpreter, eager on a CPU. Engines take turns within a round, and
the best of `--rounds` counts, so that a busy machine affects all of them.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from agentrl.config.schema import Rollout
from agentrl.engines.engine import Engine, Sampling
from agentrl.engines.hf import HFEngine, configure_torch
from agentrl.engines.servers import RemoteEngine, Replica, ServerProcess
from agentrl.engines.servers.process import free_port
from agentrl.engines.servers.settings import ServerSettings
from agentrl.engines.servers.weights import PolicyWeights
from agentrl.engines.servers.weights.files import FilesTransport
from agentrl.engines.servers.weights.transport import Link
from agentrl.engines.vllm import VLLM

PROMPT, NEW = 150, 64


def prompts(n: int, groups: int, vocabulary: int) -> list[list[int]]:
    """n random prompts, of which only `groups` are distinct (0: all)."""
    generator = torch.Generator().manual_seed(n)
    distinct = torch.randint(10, vocabulary, (groups or n, PROMPT), generator=generator).tolist()
    return [distinct[i * len(distinct) // n] for i in range(n)]


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def run_engine(runner: asyncio.Runner, engine: Engine, ids: list[list[int]]) -> None:
    async def all_of_them() -> None:
        sampling = Sampling(NEW, seed=0, ignore_eos=True)
        results = await asyncio.gather(*(engine.generate(p, sampling, key=str(i)) for i, p in enumerate(ids)))
        assert all(len(got.logprobs) == NEW for got in results)
        for i in range(len(ids)):
            engine.release(str(i))

    runner.run(all_of_them())


def run_generate(model: Any, ids: list[list[int]]) -> None:
    out = model.generate(
        torch.tensor(ids, device=model.device),
        attention_mask=torch.ones(len(ids), PROMPT, dtype=torch.long, device=model.device),
        do_sample=True,
        top_k=0,
        min_new_tokens=NEW,
        max_new_tokens=NEW,
        output_logits=True,
        return_dict_in_generate=True,
        pad_token_id=0,
    )
    scores = torch.stack(out.logits, 1).float().log_softmax(-1)
    scores.gather(-1, out.sequences[:, PROMPT:, None])


def run_generate_batch(model: Any, ids: list[list[int]]) -> None:
    from transformers import ContinuousBatchingConfig

    config = GenerationConfig(max_new_tokens=NEW, do_sample=True, top_k=0, eos_token_id=-1, pad_token_id=0)
    batching = ContinuousBatchingConfig(
        page_size=32, num_blocks=512, max_batch_tokens=512, return_logprobs=True, use_cuda_graph=False
    )
    out = model.generate_batch(ids, generation_config=config, continuous_batching_config=batching, progress_bar=False)
    assert all(len(result.generated_tokens) == NEW for result in out.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder in Hugging Face format")
    parser.add_argument("--random", action="store_true", help="random weights: the folder needs its config.json only")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--matmul-precision")
    parser.add_argument("--concurrency", default="1,8,32")
    parser.add_argument("--groups", type=int, default=0, help="distinct prompts; 0: as many as requests")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--without", default="", help="comma list: generate, generate_batch")
    parser.add_argument("--vllm", metavar="PYTHON", help="interpreter with vLLM: a column for it")
    args = parser.parse_args()
    configure_torch(threads=args.threads, matmul_precision=args.matmul_precision)
    model = load(args)
    engine = HFEngine(model, max_num_seqs=256, max_model_len=PROMPT + NEW)
    with asyncio.Runner() as runner:
        runner.run(engine.start())
        works: dict[str, Callable[[list[list[int]]], None]] = {
            "hf engine": lambda ids: run_engine(runner, engine, ids),
            "generate": lambda ids: run_generate(model, ids),
            "generate_batch": lambda ids: run_generate_batch(model, ids),
        }
        for name in filter(None, args.without.split(",")):
            del works[name]
        vllm = vllm_engine(args, model) if args.vllm else None
        if vllm is not None:
            runner.run(vllm.start())
            works["vllm"] = lambda ids: run_engine(runner, vllm, ids)
        table = measure(works, args, model.config.vocab_size)
        runner.run(engine.close())
        if vllm is not None:
            runner.run(vllm.close())
    show(table, args)


def load(args: argparse.Namespace) -> Any:
    dtype = getattr(torch, args.dtype)
    if args.random:
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(args.model), dtype=dtype)
    else:
        model = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype)
    return model.to(args.device).eval()


def vllm_engine(args: argparse.Namespace, model: Any) -> RemoteEngine:
    """A server that reads the weights itself: none are sent."""
    settings = ServerSettings(
        python=args.vllm,
        model=args.model,
        device=args.device,
        dtype=args.dtype,
        max_model_len=PROMPT + NEW,
        max_num_seqs=256,
        rollout=Rollout(load_format="dummy" if args.random else "auto"),
    )
    backend, port, folder = VLLM(settings), free_port(), Path(tempfile.mkdtemp())
    server = ServerProcess(backend.command(port), backend.environment(), folder / "vllm.log")
    replica = Replica(backend, f"http://127.0.0.1:{port}", server)
    files = FilesTransport(Link(PolicyWeights(model), model.config, folder, 1 << 29))
    return RemoteEngine(backend, [replica], files)


def measure(works: dict[str, Any], args: argparse.Namespace, vocabulary: int) -> dict[int, dict[str, float]]:
    """Tokens per second by concurrency and engine: the best round."""
    table: dict[int, dict[str, float]] = {}
    for work in works.values():
        work(prompts(1, 0, vocabulary))  # what happens once only: imports, kernels' choices
    for n in map(int, args.concurrency.split(",")):
        ids = prompts(n, args.groups, vocabulary)
        best = dict.fromkeys(works, float("inf"))
        for _ in range(args.rounds):
            for name, work in works.items():
                best[name] = min(best[name], seconds(partial(work, ids)))
        table[n] = {name: n * NEW / best[name] for name in works}
        print(f"{n} requests: {', '.join(f'{name} {speed:.0f}' for name, speed in table[n].items())}", flush=True)
    return table


def show(table: dict[int, dict[str, float]], args: argparse.Namespace) -> None:
    print(f"\n{args.dtype} on {args.device}, {torch.get_num_threads()} threads, {args.groups or 'no'} shared prompts\n")
    names = list(next(iter(table.values())))
    ratios = [f"hf engine / {name}" for name in names[1:]]
    print("| requests | " + " | ".join([f"{name}, tok/s" for name in names] + ratios) + " |")
    print("| ---: " * (1 + len(names) + len(ratios)) + "|")
    for n, row in table.items():
        cells = [f"{row[name]:.0f}" for name in names] + [f"{row[names[0]] / row[name]:.2f}" for name in names[1:]]
        print(f"| {n} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
