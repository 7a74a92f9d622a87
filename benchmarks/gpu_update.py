"""Updates on one GPU, with all other settings as they are by default: a part of one_gpu.py.

    python benchmarks/gpu_update.py SPEC.json

Sequences of mixed lengths in passes of several sizes; then groups of answers to the same prompts, where the tokens that
are computed, losses and gradient norm of a column with `actor.share_prompts=true` stand beside those of one without.
The spec names the settings, the pass sizes (null: agentrl's default), the tokens of a step, the lengths of sequences,
the groups (prompts, answers to each, tokens of both) and the file for the figures. MFU is the necessary arithmetic
(agentrl/training/perf/flops.py) over the GPU's dense bf16 peak.
"""

import gc
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpu_parts import grouped_batch, median, mixed_batch

from agentrl.config import compose
from agentrl.training.learner import Learner


def measure(spec: dict[str, Any], tokens: int | None) -> dict[str, float]:
    """Figures of updates over mixed lengths, in passes of so many tokens."""
    limit = [f"actor.ppo_max_token_len_per_gpu={tokens}"] if tokens else []
    return updates(spec, limit, lambda vocabulary: mixed_batch(spec["tokens"], tuple(spec["lengths"]), vocabulary))


def measure_groups(spec: dict[str, Any]) -> dict[str, float]:
    """Figures of updates over several answers to each prompt, in passes of the default size."""
    one_update = [f"actor.ppo_mini_batch_size={spec['groups'][0]}"]
    return updates(spec, one_update, partial(grouped_batch, *spec["groups"]))


def updates(spec: dict[str, Any], settings: list[str], batch_of: Callable[[int], Any]) -> dict[str, float]:
    """Figures of updates of one batch: losses of the first, seconds by the median of all but the first."""
    start = time.perf_counter()
    learner = Learner(compose([*spec["settings"], *settings], checks=()))
    learner.prepare(100)
    batch = batch_of(learner.model.config.vocab_size).to(learner.device)
    steps = []
    for _ in range(1 + spec["steps"]):
        begun = time.perf_counter()
        figures = learner.update(batch)
        steps.append(figures | {"seconds": time.perf_counter() - begun})
    usual = steps[1:]
    seconds = median(step["seconds"] for step in usual)
    found = {"update, s": seconds, "tokens/s": batch.num_tokens / seconds}
    found |= {"tokens": batch.num_tokens, "tokens computed": computed_tokens(learner.actor, batch)}
    found |= {name: steps[0][f"actor/{name.replace(' ', '_')}"] for name in ("pg loss", "entropy", "grad norm")}
    found |= {"first step, s": steps[0]["seconds"], "all, s": time.perf_counter() - start}
    for name, key in (("MFU", "perf/update_mfu"), ("peak GiB", "perf/update_peak_cuda_gb")):
        if key in usual[0]:
            found[name] = median(step[key] for step in usual)
    return found


def computed_tokens(actor: Any, batch: Any) -> int:
    """Tokens that go through the layers in the passes of an update."""
    sizes = actor.micro_batching
    passes = [sizes.micro_batch(batch, rows) for rows in sizes.split(batch)]
    return sum(part.shared.kept.numel() if part.shared else part.num_tokens for part in passes)


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text())
    named = {
        f"{tokens // 1024}k" if tokens and tokens >= 1024 else str(tokens or "default"): tokens
        for tokens in spec["passes"]
    }
    works = {name: partial(measure, spec, tokens) for name, tokens in named.items()}
    found: dict[str, Any] = {}
    for name, work in (works | {"groups": partial(measure_groups, spec)}).items():
        try:
            figures: dict[str, Any] = work()
        except Exception as error:  # out of memory, say: the others go on
            figures = {"failed": f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]}
        found |= {f"{name} {figure}": value for figure, value in figures.items()}
        Path(spec["out"]).write_text(json.dumps(found))
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
