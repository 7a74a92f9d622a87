"""Makes the backend of a server engine from the settings."""

import sys
from dataclasses import replace
from typing import Any

from agentrl.chat.media.loading import takes_images
from agentrl.config.derived import records_experts
from agentrl.config.schema import Config, Rollout
from agentrl.core.errors import UserError
from agentrl.core.paths import expanded
from agentrl.core.points import ENGINES
from agentrl.engines.servers import ServerBackend
from agentrl.engines.servers.installation import engine_python
from agentrl.engines.servers.settings import AdapterSpec, ServerSettings
from agentrl.engines.sharing import Sharing, model_length, sequences, server_bytes, trainer_bytes
from agentrl.training.model.adapter import base_and_adapter


def server_dtype(config: Config, kind: str) -> str:
    """`rollout.dtype`, with auto resolved. `kind`: of the servers' device, cpu or cuda."""
    dtype = config.rollout.dtype
    return dtype if dtype != "auto" else "bfloat16" if kind == "cuda" else config.model.dtype


def kwargs_of(rollout: Rollout, name: str) -> dict[str, Any]:
    """`rollout.engine_kwargs` of an engine; an engine given by a path has the last part of it as its name."""
    return rollout.engine_kwargs.get(name.rpartition(":")[2].rpartition(".")[2], {})


def server_python(name: str, rollout: Rollout) -> str:
    """The interpreter that starts a server; a backend of the user's own may choose another. Raises UserError."""
    if rollout.base_url:
        return ""
    if name in ENGINES.declared:
        return engine_python(name, name, rollout.engine_python)
    return rollout.engine_python or sys.executable


def server_backend(name: str, config: Config, kind: str, sharing: Sharing) -> ServerBackend:
    """The backend of the engine `name`; `kind`: of its device, cpu or cuda; `sharing`: where its servers are. Raises
    UserError."""
    rollout, model = config.rollout, config.model
    if rollout.deterministic and kind == "cpu":
        raise UserError(f"rollout.deterministic: {name} cannot promise it on a CPU; set rollout.name=hf")
    if kind == "cpu" and (rollout.quantization or rollout.speculative_algorithm):
        raise UserError("rollout.quantization and rollout.speculative_algorithm are for servers on a GPU; remove them")
    place = str(expanded(model.path)) if model.path and expanded(model.path).is_dir() else model.path
    base, saved = base_and_adapter(str(place), model.lora_rank)
    merges = model.lora_merge and not model.policies
    adapter = sent_adapter(config) if (model.lora_rank or saved) and not merges else None
    dtype = server_dtype(config, kind)
    settings = ServerSettings(
        python=server_python(name, rollout),
        model=base,
        device=kind,
        dtype=dtype,
        max_model_len=model_length(config),
        max_num_seqs=sequences(config, sharing),
        rollout=replace(rollout, load_format="auto") if adapter and rollout.load_format == "dummy" else rollout,
        policy=model,
        seed=config.trainer.seed,
        trainer_bytes=trainer_bytes(config, sharing),
        needed_bytes=server_bytes(config, sharing, model_length(config), dtype),
        servers_per_gpu=sharing.per_gpu,
        sleeps=sharing.sleeps,
        ahead=config.trainer.max_staleness > 0,
        adapter=adapter,
        experts=recorded_experts(config, base),
        takes_images=takes_images(base, trust_remote_code=model.trust_remote_code),
        extra=kwargs_of(rollout, name),
    )
    return ENGINES.make(name, "rollout.name", settings)


def recorded_experts(config: Config, base: str) -> tuple[int, int, int] | None:
    """The numbers of a model whose routing is recorded, see ServerSettings; None where it is not. Raises UserError."""
    if not records_experts(config):
        return None
    from transformers import AutoConfig  # takes seconds to import

    from agentrl.training.model.sizes import sizes_of

    sizes = sizes_of(AutoConfig.from_pretrained(base, trust_remote_code=config.model.trust_remote_code))
    if sizes.experts < 2:
        raise UserError("actor.router_replay.mode=R3: the model has no experts; set it to disabled")
    return sizes.experts, sizes.layers, round(sizes.experts * sizes.active_experts)


def sent_adapter(config: Config) -> AdapterSpec:
    """Rank and layers of the policy's adapter, read from a model without weights. Raises UserError for one that
    engines do not serve."""
    import torch  # these take seconds to import

    from agentrl.engines.servers.weights.adapter import AdapterWeights
    from agentrl.training.model.loading import load_model

    weight_sync = config.rollout.weight_sync
    if weight_sync not in ("auto", "files"):
        raise UserError(f"rollout.weight_sync={weight_sync} sends whole weights, model.lora_merge=false none: drop one")
    return AdapterWeights(load_model(config.model, device=torch.device("meta"), seed=0)).shape
