"""What the benchmarks on GPUs share: figures, random models, mixed batches, the memory's bandwidth."""

import argparse
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

# The kernels of other back ends are compiled at first use, for minutes.
SGLANG = ("attention_backend=triton", "sampling_backend=pytorch", "cuda_graph_backend_prefill=disabled")
REWARD = "def score(data_source, solution_str, ground_truth, **_):\n    return sum(map(ord, solution_str)) % 11 / 10\n"
"""A reward that differs between the answers of a model with random weights."""
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-1.7b": {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
        "rope_theta": 1e6,
        "max_position_embeddings": 40960,
    },
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 500,
        "tie_word_embeddings": True,
    },
}
console = Console(width=160)
ROWS: list[tuple[str, str]] = []


def report(what: str, value: str) -> None:
    """Store a figure for the table, and print it."""
    ROWS.append((what, value))
    console.print(f"{what}: {value}", highlight=False)


def show(title: str) -> None:
    """All figures in one table."""
    table = Table("figure", "value", title=f"{title}, {device_name()}")
    for row in ROWS:
        table.add_row(*row)
    console.print(table)


def device_name() -> str:
    """The first GPU's name, or CPU."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


def mean(values: Iterable[float]) -> float:
    """0 where there are none."""
    values = list(values)
    return sum(values) / max(len(values), 1)


def median(values: Iterable[float]) -> float:
    """The upper one of an even number; 0 where there are none."""
    values = sorted(values)
    return values[len(values) // 2] if values else 0.0


def run_arguments(parser: argparse.ArgumentParser, *, steps: int) -> None:
    """The arguments of every benchmark that trains: task, folder, size, settings."""
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--folder", type=Path, help="where runs and logs go (default: a temporary folder)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--memory", type=float, default=0.4)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--set", nargs="*", default=[], help="more settings")


def random_model(folder: Path, tokenizer: Any, shape: str = "qwen3-1.7b") -> Path:
    """A model of this shape with random bfloat16 weights; `tokenizer`: another model's."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    out, sizes = folder / f"{shape}-random", SHAPES[shape]
    vocabulary = max(sizes["vocab_size"], len(tokenizer))
    config = Qwen3Config(**sizes | {"vocab_size": vocabulary}, bos_token_id=1, eos_token_id=2)
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


def large_model(folder: Path, tokenizer: Path) -> Path:
    """A model of Qwen3-1.7B's shape with random weights, and the tokenizer of the model in folder `tokenizer`."""
    from transformers import AutoTokenizer

    return random_model(folder, AutoTokenizer.from_pretrained(tokenizer))


def mixed_batch(tokens: int, lengths: tuple[int, int], vocabulary: int) -> Any:
    """At least so many tokens in random sequences of `lengths`."""
    draw = torch.Generator().manual_seed(0)

    def drawn() -> Iterator[int]:
        made = 0
        while made < tokens:
            made += (length := int(torch.randint(lengths[0], lengths[1] + 1, (), generator=draw)))
            yield length

    return random_batch(drawn(), vocabulary, draw)


def grouped_batch(prompts: int, group: int, prompt_tokens: int, new_tokens: int, vocabulary: int) -> Any:
    """Random answers, `group` to each of so many random prompts."""
    draw = torch.Generator().manual_seed(0)
    asked = [random_ids(prompt_tokens, vocabulary, draw) for _ in range(prompts)]
    owners = [number for number in range(prompts) for _ in range(group)]
    return _packed([(asked[owner], random_ids(new_tokens, vocabulary, draw)) for owner in owners], owners, draw)


def random_batch(lengths: Iterable[int], vocabulary: int, draw: torch.Generator) -> Any:
    """Random sequences, half prompt and half model tokens, with random advantages."""
    drawn = [(random_ids(length, vocabulary, draw), length // 2) for length in lengths]
    return _packed([(ids[:prompt], ids[prompt:]) for ids, prompt in drawn], [0] * len(drawn), draw)


def random_ids(count: int, vocabulary: int, draw: torch.Generator) -> list[int]:
    """So many token ids."""
    ids: list[int] = torch.randint(vocabulary, (count,), generator=draw).tolist()
    return ids


def _packed(sequences: list[tuple[list[int], list[int]]], owners: list[int], draw: torch.Generator) -> Any:
    """Prompts and answers with random advantages."""
    from agentrl.training import pack_ledgers
    from agentrl.trajectory.ledger import Ledger

    ledgers: list[Ledger] = []
    for prompt, answer in sequences:
        ledger = Ledger()
        ledger.append_prompt(prompt)
        ledger.append_model(answer, [-1.0] * len(answer), turn=0, version=0)
        ledgers.append(ledger)
    batch = pack_ledgers(ledgers, group=owners)
    batch.advantages = torch.randn(batch.num_tokens, generator=draw) * batch.mask
    return batch


def copy_seconds(flat: torch.Tensor) -> float:
    """Seconds of one copy of a tensor on its device: the least of five."""
    return min(_timed_copy(flat) for _ in range(5))


def _timed_copy(flat: torch.Tensor) -> float:
    _settle()
    start = time.perf_counter()
    flat.clone()
    _settle()
    return time.perf_counter() - start


def _settle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def bandwidth(device: torch.device) -> float:
    """Bytes per second that a copy in the device's memory reads and writes."""
    flat = torch.empty(1 << (30 if device.type == "cuda" else 26), dtype=torch.uint8, device=device)
    return 2 * flat.nbytes / copy_seconds(flat)


def model_bytes(config: Any) -> tuple[int, int]:
    """Bytes that a decode step in bfloat16 reads: of weights, and of the KV cache for each token of context."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(config)
    weights = 2 * sum(p.numel() for p in module.parameters())
    if not config.tie_word_embeddings:
        weights -= 2 * module.get_input_embeddings().weight.numel()  # a step reads a row of it for each sequence
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return weights, 2 * 2 * config.num_hidden_layers * config.num_key_value_heads * width


Chain = Sequence[tuple[int, int]]
"""The requests of a conversation, one after the other: tokens of the prompt, new tokens."""


def least_seconds(chains: Sequence[Chain], slots: int, weights: int, kv: int, speed: float) -> float:
    """Seconds in which memory of `speed` bytes/s can be read as often as decoding all `chains` must read it.

    Every decode step reads the weights once for at most `slots` sequences, and for each token that it draws the keys
    and values of the sequence so far: `weights` bytes, and `kv` bytes for each token of context. Prefill, sampling and
    activations cost nothing here, so no server reaches the limit.
    """
    drawn = sum(new for chain in chains for _, new in chain)
    longest = max(sum(new for _, new in chain) for chain in chains)
    context = sum(new * prompt + new * (new + 1) // 2 for chain in chains for prompt, new in chain)
    return (max(drawn / slots, longest) * weights + context * kv) / speed


def estimate(text: str) -> float:
    """GiB in what the doctor says: of the training, and of a server that stays awake beside it; 0: it says none."""
    found = re.findall(r"(?:about|the server keeps) ([\d.]+) (GiB|MiB)", text)
    return sum(float(number) / (1024 if unit == "MiB" else 1) for number, unit in found)
