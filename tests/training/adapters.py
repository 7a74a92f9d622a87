"""Adapters of every kind, as peft saves them, and what each command writes of them, on one process and on two."""

import json
import os
import traceback
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from agentrl.config.schema import Actor, Model
from agentrl.config.schema.fsdp import FsdpConfig
from agentrl.engines.servers.weights.policy import PolicyWeights
from agentrl.training import PolicyActor, load_model, save_pretrained
from agentrl.training.model.export import write_model
from agentrl.training.model.loading import float32_masters
from agentrl.training.parallel.process_group import join_ranks
from agentrl.training.parallel.ranks import Ranks
from agentrl.training.parallel.sharding import load_on_ranks
from tests.training.saved import save_checkpoint
from tests.training.test_model import tokenizer
from tests.training.tiny import CPU, tiny

IDS = torch.arange(3, 40)[None]
ATTENTION = ["q_proj", "v_proj"]
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "attention": ("llama", {"target_modules": ATTENTION}),
    "read-embeddings": ("llama", {"target_modules": ["embed_tokens", "q_proj"]}),
    "output-layer": ("llama", {"target_modules": ["lm_head"]}),
    "norms": ("llama", {"target_modules": ATTENTION, "modules_to_save": ["norm", "input_layernorm"]}),
    "whole-output-layer": ("llama", {"target_modules": ATTENTION, "modules_to_save": ["lm_head"]}),
    "whole-embeddings": ("llama", {"target_modules": ATTENTION, "modules_to_save": ["embed_tokens"]}),
    "both-tied": ("llama", {"target_modules": ["embed_tokens"], "ensure_weight_tying": True}),
    "dora": ("llama", {"target_modules": ATTENTION, "use_dora": True}),
    "biases": ("qwen2", {"target_modules": ATTENTION, "bias": "all"}),
    "experts": ("qwen3_moe", {"target_modules": ["q_proj", "gate_proj", "up_proj", "down_proj"]}),
    "one-parameter": ("qwen3_moe", {"target_modules": ["q_proj"], "target_parameters": ["experts.down_proj"]}),
}
"""Model and settings; llama's embeddings are tied."""
FIELDS: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "qwen2": {},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
}
TIED = ("read-embeddings", "output-layer", "whole-output-layer", "whole-embeddings", "both-tied")
"""Kinds that change embeddings which are tied."""
TWO_RANKS = ("attention", "read-embeddings", "norms", "whole-output-layer", "experts")


def make(folder: Path, name: str) -> torch.Tensor:
    """Write a base model and an adapter whose tensors have no neutral values; returns the logits of both together."""
    kind, settings = KINDS[name]
    base = folder / kind
    if not base.exists():
        tiny(kind, packed=False, **FIELDS[kind]).save_pretrained(base)
    module = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base), LoraConfig(r=4, task_type="CAUSAL_LM", **settings)
    )
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape) * 0.05)
    module.save_pretrained(folder / name)
    return logits(module)


@torch.no_grad()
def logits(module: Any) -> torch.Tensor:
    return module.eval()(input_ids=IDS, use_cache=False).logits


def read(folder: Path) -> torch.Tensor:
    """The logits of an adapter's folder, as peft reads it, or of a model's."""
    if (folder / "adapter_config.json").exists():
        base = json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"]
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="Found missing adapter keys")
            return logits(PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder))
    return logits(AutoModelForCausalLM.from_pretrained(folder))


def write(folder: Path, name: str, out: Path, ranks: Ranks) -> dict[str, Any]:
    """Load the adapter and write it as runs do: in a checkpoint, and at the end, merged. Returns what servers get."""
    out.mkdir(parents=True, exist_ok=True)
    model = Model(path=str(folder / name))
    module = load_on_ranks(
        lambda device: float32_masters(load_model(model, device=device, seed=0)), ranks, FsdpConfig(), device=CPU
    )
    trainable = PolicyActor(module, actor=Actor(), temperature=1.0, device=CPU, total_steps=9, ranks=ranks)
    for weights, state in ((True, {}), (False, {"policy": trainable.state_dict()})):
        words = partial(write_model, module, tokenizer(), weights=weights)
        save_checkpoint(out / f"weights-{weights}", 1, state, words, ranks=ranks)
    sent = {} if name in TIED else {n: t.clone() for n, t in PolicyWeights(module).tensors()}
    save_pretrained(module, tokenizer(), out / "end", merge=True)
    return sent


def rank(index: int, port: int, folder: Path) -> None:
    """One of two processes: everything that `write` does, of all kinds in TWO_RANKS."""
    os.environ |= {"RANK": str(index), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    ranks = join_ranks(CPU)
    for name in TWO_RANKS:
        try:
            found = write(folder, name, folder / f"{name}-2", ranks)
        except Exception:
            found = {"error": traceback.format_exc()}
        torch.save(found, folder / f"{name}-2" / f"sent-{index}.pt")
    torch.distributed.destroy_process_group()
