"""Makes the model of one_gpu.py, where none is given, and measures the GPU's memory.

    python benchmarks/gpu_prepare.py SPEC

Writes the model's folder and `costs`: bytes of weights in a decode step, of the KV cache for each token, bytes/s.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from gpu_parts import bandwidth, model_bytes, random_model
from transformers import AutoConfig, AutoTokenizer
from transformers.utils import logging

TEXTS = ["Take notes, please, as many as you can. That is all. so so so so 0123456789 noted one text"] * 4
TEMPLATE = "configs/templates/chatml_tools_terse.jinja"


def tokenizer_of(folder: str) -> Any:
    """The tokenizer there, or a new one."""
    if folder:
        return AutoTokenizer.from_pretrained(folder)
    from agentrl.core.resources import share
    from agentrl.tasks.models.tiny import train_tokenizer

    return train_tokenizer(TEXTS, 1024, (share() / TEMPLATE).read_text())


def main() -> None:
    spec = json.loads(sys.argv[1])
    out = Path(spec["out"])
    logging.disable_progress_bar()
    model = spec["model"] or random_model(out.parent, tokenizer_of(spec["tokenizer"]), spec["shape"])
    costs = [*model_bytes(AutoConfig.from_pretrained(model)), bandwidth(torch.device(spec["device"]))]
    out.write_text(json.dumps({"model": str(model), "costs": costs}))


if __name__ == "__main__":
    main()
