"""The optimizers of `optim.optimizer`: each makes the update rule of parameter groups.

A group is a dict of torch: `params`, `weight_decay` (0 for norms and biases), and `matrices`, whether it has the
matrices of the transformer blocks. A maker returns a `torch.optim.Optimizer`, or several that share the groups.
"""

from collections.abc import Sequence
from importlib import import_module
from inspect import signature
from typing import Any

import torch
from torch import nn

from agentrl.config.derived import optimizer_name
from agentrl.config.schema import Optim
from agentrl.core.errors import UserError
from agentrl.core.points import OPTIMIZERS, optimizer
from agentrl.core.user_errors import one_line
from agentrl.training.update.adamw_16bit import AdamW16bit

Groups = list[dict[str, Any]]
Rule = torch.optim.Optimizer
BETAS = (0.9, 0.999)
WITH_BETAS = ("adam", "ademamix")
"""Parts of the names of classes that get `optim.betas`, as in verl."""


@optimizer("adamw", "AdamW", state_bytes=8)
def adamw(params: Groups, *, lr: float, betas: tuple[float, float] = BETAS, **options: Any) -> Rule:
    """PyTorch's AdamW (arXiv 1711.05101)."""
    return torch.optim.AdamW(params, lr=lr, betas=betas, **{"fused": True} | options)


@optimizer("adamw_16bit", state_bytes=4)
def adamw_16bit(params: Groups, *, lr: float, betas: tuple[float, float] = BETAS, **options: Any) -> Rule:
    """AdamW whose moments are bfloat16, rounded at random."""
    return AdamW16bit(params, lr=lr, betas=betas, **options)


@optimizer("adamw_8bit", state_bytes=2)
def adamw_8bit(params: Groups, *, lr: float, betas: tuple[float, float] = BETAS, **options: Any) -> Rule:
    """AdamW whose moments have 8 bits (arXiv 2110.02861): torchao's. Raises UserError where that is not installed."""
    try:
        made: Rule = import_module("torchao.optim").AdamW8bit(params, lr=lr, betas=betas, **options)
    except ImportError as error:
        raise UserError(f'torchao is needed ({one_line(error)}): run pip install "agentrl[torchao]"') from None
    return made


@optimizer("muon", "Muon", state_bytes=5)
def muon(params: Groups, *, lr: float, betas: tuple[float, float] = BETAS, **options: Any) -> list[Rule]:
    """Muon for the matrices of the blocks, with updates as large as AdamW's (arXiv 2502.16982), so one learning rate
    serves both; AdamW for embeddings, head, norms, biases and what has more dimensions, such as stacked experts."""
    options = {"adjust_lr_fn": "match_rms_adamw"} | options
    matrices = [group for group in params if group["matrices"]]
    rest = [group for group in params if not group["matrices"]]
    return [torch.optim.Muon(matrices, lr=lr, **options), adamw(rest, lr=lr, betas=betas)]


@optimizer("sgd", "SGD", state_bytes=4)
def sgd(params: Groups, *, lr: float, **options: Any) -> Rule:
    """Stochastic gradient descent; `momentum` is among its options."""
    return torch.optim.SGD(params, lr=lr, **options)


def make_rules(groups: Groups, optim: Optim, key: str) -> list[Rule]:
    """The update rules of the optimizer that `optim` names; `key`: its section, for messages. Raises UserError."""
    name, where = optimizer_name(optim), f"{key}.optimizer"
    maker: Any = OPTIMIZERS.get(name, where)
    if isinstance(maker, Rule):
        raise UserError(f"{where}={name} is made already: give its class, or a function of (params, lr)")
    options = dict(optim.override_optimizer_config or {})
    if "weight_decay" in options:
        decay = options.pop("weight_decay")
        groups = [group | ({"weight_decay": decay} if group["weight_decay"] else {}) for group in groups]
    if _takes_betas(maker):
        options = {"betas": (optim.betas[0], optim.betas[1])} | options
    try:
        made = maker(groups, lr=optim.lr, **options)
    except Exception as error:
        own = optim.override_optimizer_config
        given = f" with {key}.override_optimizer_config={own}" if own else ""
        raise UserError(f"{where}={name}{given}: {one_line(error)}") from error
    return list(made) if isinstance(made, Sequence) else [made]


def try_optimizer(optim: Optim, key: str) -> None:
    """Make the optimizer for two small weights. Raises UserError."""
    groups = [{"params": [nn.Parameter(torch.zeros(2, 2))], "weight_decay": 0.1, "matrices": m} for m in (True, False)]
    make_rules(groups, optim, key)


def _takes_betas(maker: Any) -> bool:
    if isinstance(maker, type):
        return any(part in maker.__name__.lower() for part in WITH_BETAS)
    return "betas" in signature(maker).parameters
