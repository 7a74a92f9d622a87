"""Load models, tokenizers and processors."""

import logging
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch
from huggingface_hub import constants, try_to_load_from_cache
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
from transformers.utils import logging as transformers_logging

from agentrl.chat.media.loading import load_processor as processor_of
from agentrl.chat.media.processor import Processor
from agentrl.chat.template import template_text
from agentrl.config.schema import Model, Pretrained
from agentrl.core.dtypes import torch_dtype
from agentrl.core.errors import UserError, reported_as
from agentrl.core.model_files import language_config
from agentrl.core.paths import expanded
from agentrl.core.plugins import import_external
from agentrl.core.remote_files import in_shared_memory, local_copy
from agentrl.training.model.adapter import base_and_adapter, first_line, new_adapter, saved_adapter
from agentrl.training.model.grouped_experts import use_grouped_adapters, use_grouped_experts
from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.head.float32_head import in_float32
from agentrl.training.model.towers import leave_out_towers

log = logging.getLogger(__name__)


def load_tokenizer(model: Model) -> PreTrainedTokenizerBase:
    """The tokenizer; its chat template is `model.chat_template` where that is set. Raises UserError."""
    import_external(model.external_lib, "model")
    path, key = (model.tokenizer_path, "model.tokenizer_path") if model.tokenizer_path else (model.path, "model.path")
    tokenizer = load_tokenizer_from(path, key, trust_remote_code=model.trust_remote_code)
    _check_vocabulary(tokenizer, model, key)
    if model.chat_template is not None:
        tokenizer.chat_template = template_text(model.chat_template)
    return tokenizer


def _check_vocabulary(tokenizer: Any, model: Model, key: str) -> None:
    """Raises UserError for a tokenizer with more tokens than the model has embeddings; logs that it is another's."""
    known = language_config(model.path) | model.override_config
    size, last = known.get("vocab_size"), known.get("eos_token_id")
    over = [name for name in ("bos", "eos") if (getattr(tokenizer, f"{name}_token_id", None) or 0) >= (size or 1e9)]
    if isinstance(size, int) and (tokenizer.vocab_size > size or over):
        raise UserError(
            f"{key}: the tokenizer has {len(tokenizer)} tokens, and the model in {model.path} knows {size}: it is "
            "another model's; use the model's own"
        )
    if model.tokenizer_path and isinstance(last, int) and last not in tokenizer.all_special_ids:
        word = tokenizer.convert_ids_to_tokens(last)
        log.warning("%s: token %d ends the model's texts, and is %r there: is it another model's?", key, last, word)


def stop_token_ids(model: Model) -> tuple[int, ...]:
    """The end-of-turn tokens in the model's generation_config.json; empty where it is missing."""
    if not model.path:
        return ()
    source, _ = base_and_adapter(folder_or_id(model.path, "model.path"), model.lora_rank)
    try:
        found = GenerationConfig.from_pretrained(source).eos_token_id
    except (OSError, ValueError):
        return ()
    return () if found is None else tuple(found) if isinstance(found, list | tuple) else (int(found),)


def load_processor(model: Model, tokenizer: Any, kwargs: dict[str, Any] | None = None) -> Processor:
    """The image processor; for a text model, one that refuses images. `kwargs`: passed to each call."""
    if not model.path:
        return Processor()
    if model.text_only:
        return Processor(missing="model.text_only=true leaves out what reads it; set it to false, or use rows of text")
    source, _ = base_and_adapter(folder_or_id(model.path, "model.path"), model.lora_rank)
    return processor_of(source, tokenizer, trust_remote_code=model.trust_remote_code, kwargs=kwargs)


def load_tokenizer_from(path: str | None, key: str, *, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    """The tokenizer in a folder or hub id that `key` names. Raises UserError."""
    source = folder_or_id(path, key)
    if source == path and not Path(source).is_dir():
        _check_hub(path, key)
    if not Path(source, "tokenizer_config.json").is_file():  # an adapter may leave it to its base
        source, _ = base_and_adapter(source, 0)
    try:
        return AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
    except Exception as error:  # the hub's, the file's or the tokenizer's own code
        named = "" if Path(source).is_dir() else "; correct the name, or name a folder (HF_HUB_OFFLINE=1 asks no hub)"
        raise UserError(f"{key}: no tokenizer can be loaded from {path}: {first_line(error)}{named}") from error


def _check_hub(path: str, key: str) -> None:
    """Raises UserError where a hub id is not on this machine and its hub cannot be reached, without a retry."""
    if any(getproxies().get(kind) for kind in ("https", "all")) or constants.HF_HUB_OFFLINE:
        return
    if isinstance(try_to_load_from_cache(path, "config.json"), str):
        return
    host = urlsplit(constants.ENDPOINT).hostname
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        raise UserError(
            f"{key}: there is no folder {path} here, and {host} cannot be reached; name a model's folder, or a hub id "
            "that is downloaded (HF_HUB_OFFLINE=1 asks no hub)"
        ) from None


def load_model(
    model: Model,
    *,
    device: torch.device,
    seed: int,
    head: Any = AutoModelForCausalLM,
    task: str = "CAUSAL_LM",
    section: str = "model",
) -> ModelHandle:
    """The model on `device`, in eval mode, wrapped by peft where `model.lora_rank` > 0 or the folder is an adapter.

    `seed` initialises weights that are not in the files: a new adapter. `head`: the class whose `from_pretrained` loads
    it; `task`: peft's name of its task; `section`: of the keys in errors. Raises UserError when it cannot be loaded.
    """
    torch.manual_seed(seed)
    import_external(model.external_lib, "model")
    source, saved = base_and_adapter(model_source(model.path, section, use_shm=model.use_shm), model.lora_rank)
    module: Any = load_pretrained(model, source, head=head, section=section, weights=device.type != "meta")
    if model.text_only:
        leave_out_towers(module)
    if model.use_liger:
        use_liger_kernels(module, section)
    if model.enable_gradient_checkpointing:
        module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if saved is not None:
        module = saved_adapter(module, saved)
    elif model.lora_rank > 0:
        module = new_adapter(module, model, task)
    use_grouped_adapters(module)
    loaded = ModelHandle(
        (module if device.type == "cpu" else module.to(device)).eval(),  # a rank may have it on the meta device
        log_prob_kernels="triton" if model.use_fused_kernels else None,
        offloads_activations=model.enable_activation_offload,
    )
    if task == "CAUSAL_LM" and model.enable_fp32_lm_head:
        in_float32(loaded.base.get_output_embeddings())
    return loaded


def load_pretrained(
    model: Pretrained, source: str, *, head: Any, section: str, weights: bool = True
) -> PreTrainedModel:
    """The model in the folder or hub id `source`, on the CPU.

    Dropout is removed: with it the trained policy would differ from the sampling one. Without `weights` the model is on
    the meta device. Raises UserError.
    """
    transformers_logging.disable_progress_bar()  # it would overwrite the live view
    config = _model_config(model, source, section)
    head = language_head(config) if head is AutoModelForCausalLM else head
    given = {"trust_remote_code": model.trust_remote_code, "device_map": None if weights else "meta"}
    with reported_as(f"{section}.path: no model can be loaded from {model.path}"):
        module: PreTrainedModel = head.from_pretrained(source, config=config, dtype=torch_dtype(model.dtype), **given)
    _drop_dropout(module)
    use_grouped_experts(module)
    return module


def float32_masters(model: ModelHandle) -> ModelHandle:
    """Convert trainable parameters to float32; returns the model.

    AdamW's updates at a learning rate of 1e-6 are far below half a step of bfloat16, which would lose them. Frozen
    parameters, under LoRA the base model, keep their dtype; trainable layers among them cast their inputs.
    """
    parameters = list(model.module.parameters())
    narrow = {p for p in parameters if p.requires_grad and p.is_floating_point() and p.dtype != torch.float32}
    for parameter in narrow:
        parameter.data = parameter.data.float()
    if any(not p.requires_grad and p.dtype != torch.float32 for p in parameters):
        for owner in model.module.modules():
            if narrow & set(owner._parameters.values()) and "weight" in owner._parameters:
                owner.register_forward_pre_hook(_as_its_weight)
    return model


def _as_its_weight(owner: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    dtype = owner.weight.dtype
    return tuple(a.to(dtype) if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in arguments)


def freeze_vision_tower(model: ModelHandle) -> None:
    """Freeze the vision tower. Raises UserError where the model has none."""
    if model.vision_tower is None:
        raise UserError(f"actor.freeze_vision_tower: a {type(model.base).__name__} has no vision tower; remove it")
    model.vision_tower.requires_grad_(False)


def language_head(config: PretrainedConfig) -> Any:
    """The transformers class that loads a text-generating model whole, with what reads images where it has that."""
    reads_images = type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    reads_images |= AutoModelForImageTextToText.__name__ in (getattr(config, "auto_map", None) or {})
    return AutoModelForImageTextToText if reads_images else AutoModelForCausalLM


def _model_config(model: Pretrained, source: str, section: str) -> PretrainedConfig:
    with reported_as(f"{section}.path: {model.path} is no model"):
        config = AutoConfig.from_pretrained(source, trust_remote_code=model.trust_remote_code)
    for key, value in model.override_config.items():
        if not hasattr(config, key):
            raise UserError(f"{section}.override_config.{key} is no field of {type(config).__name__}; leave it out")
        present = getattr(config, key)
        setattr(config, key, present | value if isinstance(present, dict) and isinstance(value, dict) else value)
    return config


def model_source(path: str | None, section: str, *, use_shm: bool) -> str:
    """The folder or hub id of a model's files; with `use_shm` a copy in /dev/shm. Raises UserError."""
    source = folder_or_id(path, f"{section}.path")
    return in_shared_memory(source, "model.use_shm") if use_shm else source


def folder_or_id(path: str | None, key: str) -> str:
    """A local folder, or a hub id unchanged. Raises UserError for anything else."""
    if not path:
        raise UserError(f"{key} is not set; name a folder in Hugging Face format, or a hub id")
    folder = expanded(local_copy(path, key))
    if folder.is_dir():
        return str(folder)
    looks_local = folder.is_absolute() or path.startswith((".", "~")) or path.count("/") != 1
    if looks_local:
        raise UserError(f"{key}: there is no folder {path}; `agentrl model` prepares one")
    return path


def _drop_dropout(module: PreTrainedModel) -> None:
    """Set dropout to 0 in Dropout layers, in attributes of other layers, and in the configuration."""
    config: Any = module.config
    for part in (*module.modules(), config, config.get_text_config()):
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        for name in [name for name, value in vars(part).items() if "drop" in name and isinstance(value, float)]:
            setattr(part, name, 0.0)


def use_liger_kernels(module: PreTrainedModel, section: str) -> None:
    """Use Liger's kernels for norms, rotary embeddings and MLPs; unknown architectures stay unchanged.

    Raises UserError where they cannot run. Its fused losses are not used: log-probs are computed in chunks already.
    """
    if not torch.cuda.is_available():
        raise UserError(f"{section}.use_liger=true: Liger's kernels need a GPU; leave it out on a CPU")
    try:
        from liger_kernel.transformers import _apply_liger_kernel_to_instance
    except ImportError as error:
        raise UserError(f"{section}.use_liger=true: Liger is not installed; pip install liger-kernel") from error
    apply: Any = _apply_liger_kernel_to_instance
    apply(model=module, cross_entropy=False, fused_linear_cross_entropy=False)
