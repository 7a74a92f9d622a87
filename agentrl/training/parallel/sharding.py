"""Load a model on one process, or sharded over many."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from agentrl.config.schema.fsdp import Sharding
from agentrl.core.dtypes import torch_dtype
from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.lazy_tensors import lazy_loading
from agentrl.training.model.packing_probe import pack_where_exact
from agentrl.training.parallel.experts import shard_experts, split_layers
from agentrl.training.parallel.ranks import Ranks
from agentrl.training.parallel.ulysses import check_heads
from agentrl.training.perf.compiled_block import compile_blocks

ROOM = 0.2
"""Largest share of GPU memory for a sharded model that stays gathered between micro-batches."""

Load = Callable[[torch.device], ModelHandle]
"""Loads the model on a device."""


def load_on_ranks(
    load: Load, ranks: Ranks, fsdp_config: Sharding, *, device: torch.device, compiled: bool = False
) -> ModelHandle:
    """The model on `device`: whole in a single process, else sharded over `ranks`; it packs sequences where that is
    exact.

    `compiled`: compile every block. Raises UserError where the model cannot be loaded.
    """
    if ranks.mesh is None:
        model = load(device)
        model.compute_in(compute_dtype(fsdp_config, device))
        pack_where_exact(model, device)
        if compiled:
            model.compiled = compile_blocks(block for _, block in model.blocks())
        return model
    with lazy_loading(first=ranks.first):
        whole = load(torch.device("cpu"))
    if compiled:
        whole.compiled = compile_blocks(block for _, block in whole.blocks())
    model = shard(whole, ranks, fsdp_config, device=device)
    packed = pack_where_exact(model, device)
    if ranks.seq_world > 1:
        check_heads(model.config, packed, ranks.seq_world)
    return model


def shard(whole: ModelHandle, ranks: Ranks, fsdp_config: Sharding, *, device: torch.device) -> ModelHandle:
    """Shard a model in CPU memory, unit by unit; of its lazy tensors each rank reads its shards."""
    from agentrl.training.parallel import fsdp

    module, layers = whole.module, split_layers(whole, ranks)
    loader = fsdp.WeightLoader(module, ranks, device)
    dtypes = compute_dtype(fsdp_config, device), torch_dtype(fsdp_config.mixed_precision.reduce_dtype)
    resharded = reshards_after_forward(fsdp_config, module, dtypes, ranks, device)
    fsdp_config = replace(fsdp_config, reshard_after_forward=resharded)
    offload = fsdp_config.offload_policy and device.type == "cuda"
    wrap = fsdp.wrapper(fsdp_config, ranks.mesh, dtypes, offload=offload)
    units = []
    for layer in layers:
        names = loader.fill(layer)
        mesh = ranks.expert_mesh[("shard",) if ranks.mesh.ndim == 1 else ("replicate", "shard")]
        inner = fsdp.wrapper(fsdp_config, mesh, dtypes, offload=offload, casts=False)  # ranks with the same experts
        unit = shard_experts(layer, ranks, inner)
        loader.read(unit, names, part=ranks.expert_rank)
        units.append((unit, names))
    split = [name for _, names in units for name in names]
    for unit in (*(block for _, block in whole.blocks()), fsdp.FsdpRoot(module)):
        names = loader.fill(unit)
        sharded = wrap(unit)
        loader.read(sharded, names)
        sharded.set_modules_to_forward_prefetch([part for part in unit.modules() if part in layers])
        units.append((sharded, names))
    shapes, dtype = loader.shapes, dtypes[0]
    return fsdp.ShardedModel(whole, sharded, units, shapes, ranks, split, dtype, keeps_gathered=not resharded)


def reshards_after_forward(
    fsdp_config: Sharding,
    module: nn.Module,
    dtypes: tuple[torch.dtype | None, torch.dtype],
    ranks: Ranks,
    device: torch.device,
) -> bool:
    """`reshard_after_forward`; null: decided by memory. `dtypes`: of computation (None: as stored), of reduction."""
    if ranks.world == 1:  # a single rank has all shards
        return False
    if fsdp_config.reshard_after_forward is not None:
        return fsdp_config.reshard_after_forward
    if device.type != "cuda" or fsdp_config.offload_policy:
        return True
    whole = sum(p.numel() * (dtypes[0] or p.dtype).itemsize for p in module.parameters())
    whole += sum(p.numel() * dtypes[1].itemsize for p in module.parameters() if p.requires_grad)
    return whole > ROOM * torch.cuda.get_device_properties(device).total_memory


def steps_on_cpu(fsdp_config: Sharding, ranks: Ranks) -> bool:
    """Whether the optimizer steps on copies of the parameters in CPU memory. Sharded parameters that are there
    themselves need no copies; a single process keeps its parameters on the GPU."""
    return ranks.mesh is None if fsdp_config.offload_policy else fsdp_config.optimizer_offload


def compute_dtype(fsdp_config: Sharding, device: torch.device) -> torch.dtype | None:
    """The dtype that layers compute in; None: the dtype of the parameters."""
    param_dtype = fsdp_config.mixed_precision.param_dtype
    if param_dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else None
    return torch_dtype(param_dtype)


def match_trained_precision(model: ModelHandle) -> ModelHandle:
    """Make a frozen half-precision model compute as one with float32 parameters of the same values: the sum over layers
    is in float32, as autocast leaves it. Returns the model; a sharded one computes so already."""
    dtypes = {p.dtype for p in model.module.parameters()}
    if not model.sharded and dtypes == {model.compute_dtype}:
        model.base.get_input_embeddings().register_forward_hook(lambda _, arguments, output: output.float())
    return model
