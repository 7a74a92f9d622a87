"""Load a model of random weights on several ranks: seconds, and the most memory that it takes.

    python benchmarks/loading.py                                       # 1.2B parameters on 2 CPU processes
    python benchmarks/loading.py --shape experts --layers 12 48 --device cuda   # Qwen3-30B-A3B on 2 GPUs

The probe that follows, of packed sequences, is left out: it computes with gathered blocks, as training does.
Files are as on the hub: bfloat16, each expert's weights apart. Parameters become float32, as for training. `host`: the
largest sum over ranks of memory that is not a file's, less what the process had before; `of the model`: divided by the
bytes of the parameters that ranks keep in this memory (on a GPU by those of the files). `files`: pages of mapped files,
which the system takes back where memory is short. Each line is printed when its run ends.
"""

import argparse
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as multiprocessing
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3MoeConfig

from agentrl.config.schema import Model
from agentrl.config.schema.fsdp import FsdpConfig
from agentrl.training import load_model
from agentrl.training.model.loading import float32_masters
from agentrl.training.parallel import sharding
from agentrl.training.parallel.process_group import join_ranks

GIB = 2**30
HEADS = {"num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "hidden_size": 2048}
TINY = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 128, "hidden_size": 1024}
EXPERTS = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": True}
SHAPES: dict[str, Any] = {
    "dense": lambda n: Qwen3Config(**HEADS, num_hidden_layers=n, intermediate_size=6144, vocab_size=65536),
    "experts": lambda n: Qwen3MoeConfig(**HEADS, **EXPERTS, num_hidden_layers=n, vocab_size=151936),
    "small": lambda n: Qwen3Config(**TINY, num_hidden_layers=n, intermediate_size=3072, vocab_size=65536),
    "few-experts": lambda n: Qwen3MoeConfig(
        **TINY, **EXPERTS | {"num_experts": 32}, num_hidden_layers=n, vocab_size=65536
    ),
}
COLUMNS = "{:12} {:>6} {:>9} {:>9} {:>6} {:>6} {:>9} {:>9} {:>13} {:>9} {:>9}"


def write_files(config: Any, folder: Path, device: torch.device) -> int:
    """Write a model of random weights as the hub has it, a file for each block; returns its bytes."""
    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    blocks: dict[str, dict[str, Any]] = {}
    for name, parameter in module.named_parameters():
        number = next((part for part in name.split(".") if part.isdigit()), "rest")
        blocks.setdefault(number, {})[name] = parameter.shape
    config.architectures = [type(module).__name__]
    config.save_pretrained(folder)
    weight_map: dict[str, str] = {}
    for number, shapes in blocks.items():
        tensors = dict(
            as_on_the_hub({n: torch.empty(s, device=device, dtype=torch.bfloat16) for n, s in shapes.items()})
        )
        file = f"model-{number}.safetensors"
        save_file({name: t.normal_(0, 0.02).cpu() for name, t in tensors.items()}, folder / file, {"format": "pt"})
        weight_map |= dict.fromkeys(tensors, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def as_on_the_hub(tensors: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Stacked weights of experts, one by one."""
    for name, tensor in tensors.items():
        before, _, last = name.rpartition(".")
        kinds = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}.get(last, ())
        if not before.endswith("experts"):
            yield name, tensor
        for expert, weight in enumerate(tensor if kinds and before.endswith("experts") else ()):
            for kind, part in zip(kinds, weight.chunk(len(kinds)), strict=True):
                yield f"{before}.{expert}.{kind}.weight", part.contiguous()


class Memory:
    """The most memory of this process while it is watched, in bytes: its own, and mapped files."""

    def __init__(self) -> None:
        self.first = self.own = self._now()[0]
        self.files = 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        done = threading.Event()
        thread = threading.Thread(target=self._watch, args=(done,))
        thread.start()
        yield
        done.set()
        thread.join()

    def _watch(self, done: threading.Event) -> None:
        while not done.wait(0.02):
            own, files = self._now()
            self.own, self.files = max(self.own, own), max(self.files, files)

    @staticmethod
    def _now() -> tuple[int, int]:
        lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
        sizes = {fields[0]: int(fields[1]) * 1024 for fields in lines if fields and fields[0].startswith("Rss")}
        return sizes["RssAnon:"] + sizes["RssShmem:"], sizes["RssFile:"]


def rank(index: int, world: int, port: int, folder: Path, device_type: str, results: Path) -> None:
    """Load the model as one rank."""
    local = {"RANK": index, "LOCAL_RANK": index, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in local.items()}
    device = torch.device(device_type, index) if device_type == "cuda" else torch.device("cpu")
    ranks = join_ranks(device)
    load_model(Model(path=str(folder)), device=torch.device("meta"), seed=0)  # imports
    torch.zeros(1, device=device)
    sharding.pack_where_exact = lambda *_: False
    memory, begin = Memory(), time.perf_counter()
    with memory.watched():
        model = sharding.load_on_ranks(
            lambda d: float32_masters(load_model(Model(path=str(folder)), device=d, seed=0)),
            ranks,
            FsdpConfig(),
            device=device,
        )
        ranks.attempt(lambda: None)
    found = {
        "seconds": time.perf_counter() - begin,
        "own": memory.own - memory.first,
        "files": memory.files,
        "parameters": sum(shard.parameter.to_local().nbytes for shard in model.shards().values()),
        "gpu": torch.cuda.max_memory_allocated() if device_type == "cuda" else 0,
    }
    (results / f"{index}.json").write_text(json.dumps(found))


def run(shape: str, layers: int, args: argparse.Namespace) -> None:
    """Print the line of one model."""
    with tempfile.TemporaryDirectory(dir=args.folder) as place:
        folder, results = Path(place) / "model", Path(place) / "results"
        results.mkdir()
        begin = time.perf_counter()
        stored = write_files(SHAPES[shape](layers), folder, torch.device(args.device))
        written = time.perf_counter() - begin
        torch.cuda.empty_cache()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        given = (args.ranks, port, folder, args.device, results)
        multiprocessing.start_processes(rank, given, nprocs=args.ranks, start_method="spawn")
        found = [json.loads((results / f"{i}.json").read_text()) for i in range(args.ranks)]
    own, most = sum(f["own"] for f in found), max(f["own"] for f in found)
    kept = stored if args.device == "cuda" else sum(f["parameters"] for f in found)
    figures = [stored, written, max(f["seconds"] for f in found), most, own, own / kept * GIB]
    figures += [max(f[key] for f in found) for key in ("files", "parameters", "gpu")]
    units = [GIB, 1, 1, GIB, GIB, GIB, GIB, GIB, GIB]
    shown = [f"{figure / unit:.2f}" for figure, unit in zip(figures, units, strict=True)]
    print(COLUMNS.format(shape, layers, *shown), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=["dense", "few-experts"])
    parser.add_argument("--layers", nargs="+", type=int, default=[16])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--folder", help="where files are written; default: the system's temporary folder")
    args = parser.parse_args()
    names = "model layers files:GiB write:s load:s most:GiB host:GiB of-the-model files:GiB kept:GiB gpu:GiB"
    print(COLUMNS.format(*names.split()), flush=True)
    for shape in args.shape:
        for layers in args.layers:
            try:
                run(shape, layers, args)
            except Exception as error:  # the other lines are of use
                print(f"{shape} {layers}: {error}", flush=True)


if __name__ == "__main__":
    main()
