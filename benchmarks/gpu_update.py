"""Updates of several pass sizes on one GPU, with all other settings as they are by default: a part of one_gpu.py.

    python benchmarks/gpu_update.py SPEC.json

The spec names the settings, the pass sizes (null: agentrl's default), the tokens of a step, the lengths of sequences
and the file for the figures. MFU is the necessary arithmetic (agentrl/training/perf/flops.py) over the GPU's dense bf16
peak.
"""

import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from gpu_parts import median, mixed_batch

from agentrl.config import compose
from agentrl.training.learner import Learner


def measure(spec: dict[str, Any], tokens: int | None) -> dict[str, float]:
    """Figures of updates in passes of so many tokens: the median of all but the first."""
    settings = [*spec["settings"], *([f"actor.ppo_max_token_len_per_gpu={tokens}"] if tokens else [])]
    start = time.perf_counter()
    learner = Learner(compose(settings, checks=()))
    learner.prepare(100)
    batch = mixed_batch(spec["tokens"], tuple(spec["lengths"]), learner.module.config.vocab_size).to(learner.device)
    steps = []
    for _ in range(1 + spec["steps"]):
        begun = time.perf_counter()
        figures = learner.update(batch)
        steps.append(figures | {"seconds": time.perf_counter() - begun})
    usual = steps[1:]
    found = {
        "tokens/s": batch.num_tokens / median(step["seconds"] for step in usual),
        "grad norm": steps[0]["actor/grad_norm"],
        "first step, s": steps[0]["seconds"],
        "all, s": time.perf_counter() - start,
    }
    for name, key in (("MFU", "perf/update_mfu"), ("peak GiB", "perf/update_peak_cuda_gb")):
        if key in usual[0]:
            found[name] = median(step[key] for step in usual)
    return found


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text())
    found: dict[str, Any] = {}
    for tokens in spec["passes"]:
        name = f"{tokens // 1024}k" if tokens and tokens >= 1024 else str(tokens or "default")
        try:
            figures: dict[str, Any] = measure(spec, tokens)
        except Exception as error:  # out of memory, say: the other sizes go on
            figures = {"failed": f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]}
        found |= {f"{name} {figure}": value for figure, value in figures.items()}
        Path(spec["out"]).write_text(json.dumps(found))
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
