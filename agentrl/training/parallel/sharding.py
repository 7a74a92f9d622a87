"""From a way to load a model to the model on one process, or sharded over many."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from agentrl.config.schema.fsdp import Sharding
from agentrl.training.model.attention import is_packed
from agentrl.training.parallel.ranks import Ranks
from agentrl.training.parallel.ulysses import check_heads
from agentrl.training.perf.device import DTYPES

ROOM = 0.2
"""Share of a GPU's memory that may be spent on keeping a sharded model whole between the passes of a step."""

Load = Callable[[torch.device], Any]
"""Gives the model on a device; on the meta device, without its weights."""


def load_on_ranks(
    load: Load,
    ranks: Ranks,
    fsdp_config: Sharding,
    *,
    device: torch.device,
    compiled: bool = False,
) -> Any:
    """The model on `device`: whole where this process is alone, else sharded over `ranks`, by which it is first read.

    `compiled`: every block is compiled. Raises UserError where the model cannot be had.
    """
    if ranks.mesh is None:
        module = load(device)
        set_compute_dtype(module, compute_dtype(fsdp_config, device))
        return compile_blocks(module) if compiled else module
    skeleton = load(torch.device("meta"))
    source = load(torch.device("cpu")) if ranks.first else None
    if compiled:
        compile_blocks(skeleton)
    return shard(skeleton, source, ranks, fsdp_config, device=device)


def shard(
    skeleton: nn.Module,
    source: nn.Module | None,
    ranks: Ranks,
    fsdp_config: Sharding,
    *,
    device: torch.device,
) -> Any:
    """Shard a model on the meta device, unit by unit, with the weights of `source`, which the first rank has."""
    from agentrl.training.parallel import fsdp

    if ranks.seq_world > 1:
        check_heads(skeleton.config, is_packed(skeleton), ranks.seq_world)
    filler = fsdp.WeightLoader(skeleton, source, ranks, device)
    dtypes = compute_dtype(fsdp_config, device), DTYPES[fsdp_config.mixed_precision.reduce_dtype]
    lets_go = reshards_after_forward(fsdp_config, skeleton, dtypes, ranks, device)
    fsdp_config = replace(fsdp_config, reshard_after_forward=lets_go)
    offload = fsdp_config.offload_policy and device.type == "cuda"
    wrap = fsdp.wrapper(fsdp_config, ranks.mesh, dtypes, offload=offload)
    units = []
    for _, block in fsdp.blocks(skeleton, fsdp_config.wrap_policy.min_num_params):
        names = filler.fill(block)
        units.append((wrap(block), names))
    outer = fsdp.FsdpRoot(skeleton)
    names = filler.fill(outer)
    root = wrap(outer)
    units.append((root, names))
    if fsdp_config.forward_prefetch:
        fsdp.prefetch([unit for unit, _ in reversed(units[:-1])])
    sharded = fsdp.ShardedModel(skeleton, root, units, filler.shapes, ranks)
    sharded.keeps_gathered = not lets_go
    sharded.compute_dtype = dtypes[0]
    return sharded


def reshards_after_forward(
    fsdp_config: Sharding,
    module: nn.Module,
    dtypes: tuple[torch.dtype | None, torch.dtype],
    ranks: Ranks,
    device: torch.device,
) -> bool:
    """`reshard_after_forward`, with null told. `dtypes`: of computation (None: as stored), of gradients' sums."""
    if ranks.world == 1:  # nothing is won by letting go of what nobody else has
        return False
    if fsdp_config.reshard_after_forward is not None:
        return fsdp_config.reshard_after_forward
    if device.type != "cuda" or fsdp_config.offload_policy:
        return True
    whole = sum(p.numel() * (dtypes[0] or p.dtype).itemsize for p in module.parameters())
    whole += sum(p.numel() * dtypes[1].itemsize for p in module.parameters() if p.requires_grad)
    return whole > ROOM * torch.cuda.get_device_properties(device).total_memory


def compute_dtype(fsdp_config: Sharding, device: torch.device) -> torch.dtype | None:
    """What layers compute in; None: in what parameters are stored in."""
    param_dtype = fsdp_config.mixed_precision.param_dtype
    if param_dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else None
    return DTYPES[param_dtype]


def set_compute_dtype(module: Any, dtype: torch.dtype | None) -> None:
    """Have a model that one process holds whole compute in `dtype` wherever `inside` runs it."""
    module.compute_dtype = dtype
    if dtype == torch.float32:
        module.float()  # autocast narrows, it does not widen


def match_trained_precision(module: Any) -> Any:
    """A frozen model in half precision computes what one with float32 parameters of the same values would: a sum over
    layers that autocast leaves in float32. Returns the module; one that is sharded does so already."""
    dtypes = {p.dtype for p in module.parameters()}
    if not hasattr(module, "run_gathered") and dtypes == {getattr(module, "compute_dtype", None)}:
        module.get_input_embeddings().register_forward_hook(lambda _, arguments, output: output.float())
    return module


def compile_blocks(module: Any) -> Any:
    """Compile each transformer block by itself; returns the module."""
    from agentrl.training.parallel.fsdp import blocks

    for _, block in blocks(module, 0):
        block.compile(dynamic=True)
    return module
