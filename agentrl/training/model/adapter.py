"""LoRA adapters (arXiv 2106.09685): new ones and saved ones."""

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.config.schema import Model
from agentrl.core.errors import UserError, reported_as

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

CONFIG = "adapter_config.json"


def base_and_adapter(path: str, lora_rank: int) -> tuple[str, str | None]:
    """(base model, adapter folder or None) of a model folder or hub id. Raises UserError where the ranks differ."""
    file = Path(path) / CONFIG
    if not file.is_file():
        return path, None
    try:
        saved = json.loads(file.read_text())
        base, rank = str(saved["base_model_name_or_path"]), int(saved["r"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"model.path: {file} is damaged: {first_line(error)}") from error
    if lora_rank not in (0, rank):
        raise UserError(f"model.lora_rank={lora_rank}, but {path} is an adapter of rank {rank}; leave lora_rank out")
    return base, path


def new_adapter(
    module: "PreTrainedModel | PeftModel", model: Model, task: str = "CAUSAL_LM", name: str = "default"
) -> "PeftModel":
    """Wrap a model with a new adapter, which does not change its output yet, or add it to those that a model has.

    `task`: peft's name of the model's task; `name`: of the adapter. Raises UserError when the target modules or
    parameters do not exist.
    """
    from peft import LoraConfig, PeftModel, get_peft_model  # takes seconds to import

    targets, excluded = model.target_modules, model.exclude_modules
    targets = linear_layers(module)[0] if targets == "all-linear" else targets
    parameters = _parameters(module, model.target_parameters) if model.target_parameters else None
    if parameters == []:
        raise UserError(f"model.target_parameters {model.target_parameters!r}: the model has none of these; remove it")
    lora = LoraConfig(
        r=model.lora_rank,
        lora_alpha=model.lora_alpha,
        target_modules=targets if isinstance(targets, str) else list(targets),
        exclude_modules=excluded if excluded is None or isinstance(excluded, str) else list(excluded),
        target_parameters=parameters,
        task_type=task,
    )
    try:
        with warnings.catch_warnings():  # peft uses an old name of transformers
            warnings.simplefilter("ignore", FutureWarning)
            warnings.filterwarnings("ignore", message=".*tie_word_embeddings=True")  # exports read them as they are
            if not isinstance(module, PeftModel):
                return get_peft_model(module, lora, adapter_name=name)
            lora.base_model_name_or_path = module.get_base_model().name_or_path
            module.add_adapter(name, lora)
            return module
    except ValueError as error:
        raise UserError(
            f"model.target_modules {model.target_modules!r} does not fit the model: {first_line(error)}"
        ) from error


def _parameters(module: "PreTrainedModel", targets: Any) -> list[str]:
    """The whole names of the parameters that get an adapter."""
    from agentrl.training.model.experts import expert_layers, stacked_weights  # PyTorch's import takes seconds

    if targets == "all-experts":
        routed = [f"{name}.{own}" for name, layer in expert_layers(module).items() for own in stacked_weights(layer)]
        return routed + [f"{name}.weight" for name in linear_layers(module)[1]]
    return [name for name, _ in module.named_parameters() if f".{name}".endswith(tuple(f".{end}" for end in targets))]


def linear_layers(module: "PreTrainedModel") -> tuple[list[str], list[str]]:
    """The names of all linear layers, except heads and routers; those that peft would read as names of routed experts
    apart: in some families shared experts, and the layers without experts."""
    from peft import LoraConfig
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers
    from torch.nn import Linear
    from transformers.pytorch_utils import Conv1D

    head, plain = module.get_output_embeddings(), (Linear.forward, Conv1D.forward)  # a router may have its own
    named = module.named_modules()
    names = [name for name, part in named if type(part).forward in plain and part is not head and "." in name]
    lora = LoraConfig(target_modules=[name for name in names if _takes_adapter(module, name)])
    fitting = set(lora.target_modules or ())
    convert_peft_config_for_transformers(lora, module, None)
    return sorted(lora.target_modules or ()), sorted(fitting - set(lora.target_modules or ()))


def _takes_adapter(module: "PreTrainedModel", name: str) -> bool:
    """Whether peft adapts a layer: kernels of Mamba read the weights of some, and would miss an adapter."""
    from peft import LoraConfig
    from peft.tuners.tuners_utils import _check_lora_target_modules_mamba

    try:
        _check_lora_target_modules_mamba(LoraConfig(), module, name.rpartition(".")[2])
    except ValueError:
        return False
    return True


def adapter_names(module: "PeftModel") -> dict[str, str]:
    """peft's name in files of each tensor of the adapter -> the tensor's own name."""
    from peft import get_peft_model_state_dict

    first: dict[int, str] = {}
    named = (*module.named_parameters(remove_duplicate=False), *module.named_buffers())
    own = {name: first.setdefault(id(tensor), name) for name, tensor in named}
    names: dict[str, str] = get_peft_model_state_dict(module, own, module.active_adapter, save_embedding_layers=False)
    return names


def place(module: "PeftModel", tensors: dict[str, Any]) -> None:
    """Have a model compute with the tensors of another adapter of the same shape."""
    for name, tensor in tensors.items():
        layer, _, own = name.rpartition(".")
        module.get_submodule(layer)._parameters[own] = tensor


def unties(base: "PreTrainedModel") -> bool:
    """Whether an adapter of a model changes one of its embeddings, which are tied."""
    parts = base.get_input_embeddings(), base.get_output_embeddings()
    trained = any(p.requires_grad for part in parts if part is not None for p in part.parameters())
    return trained and bool(base.config.get_text_config().tie_word_embeddings)


def merged(module: "PeftModel") -> "PreTrainedModel":
    """The base model with the adapter merged into it, in place; embeddings that differ then are not tied any more."""
    base = module.get_base_model()
    if unties(base):
        parts = base.get_input_embeddings(), base.get_output_embeddings()
        read, write = (part.get_base_layer() if hasattr(part, "get_base_layer") else part for part in parts)
        if write.weight is read.weight:
            write.weight = type(read.weight)(read.weight.detach().clone(), requires_grad=False)
        for config in (base.config, base.config.get_text_config()):
            config.tie_word_embeddings = False
    return module.merge_and_unload()


def saved_adapter(module: "PreTrainedModel", folder: str) -> "PeftModel":
    """Wrap a model with a trainable adapter from disk."""
    from peft import PeftModel

    with reported_as(f"model.path: the adapter in {folder} cannot be loaded"), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.filterwarnings("error", message="Found missing adapter keys")
        # A model on the meta device has no weights.
        warnings.filterwarnings("ignore", message=".*non-meta parameter.*")
        return PeftModel.from_pretrained(module, folder, is_trainable=True)


def first_line(error: Any) -> str:
    """The first line of an error's message."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
