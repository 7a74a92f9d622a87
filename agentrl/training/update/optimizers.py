"""The optimizers of `optim.optimizer`: each makes the update rule of parameter groups.

A group is a dict of torch: `params`, `weight_decay` (0 for norms and biases), and `matrices`, whether it has the
matrices of the transformer blocks. A maker returns a `torch.optim.Optimizer`, or several that share the groups.
"""

from collections.abc import Sequence
from importlib import import_module
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw as fused_adamw

from agentrl.config.derived import optimizer_name
from agentrl.config.schema import Optim
from agentrl.core.errors import UserError, one_line, reported_as
from agentrl.core.points import OPTIMIZERS, optimizer
from agentrl.training.parallel.shards import local

Groups = list[dict[str, Any]]
Rule = torch.optim.Optimizer
BETAS = (0.9, 0.999)
WIDE = 1 << 25
"""Most elements whose 16-bit moments are in float32 at one time."""
WITH_BETAS = ("adam", "ademamix")
"""Parts of the names of classes that get `optim.betas`, as in verl."""


@optimizer("adamw", "AdamW", state_bytes=8)
def adamw(params: Groups, *, lr: float, betas: tuple[float, float] = BETAS, **options: Any) -> Rule:
    """PyTorch's AdamW (arXiv 1711.05101)."""
    return torch.optim.AdamW(params, lr=lr, betas=betas, **{"fused": True} | options)


@optimizer("adamw_16bit", state_bytes=4)
class AdamW16bit(Rule):
    """AdamW with moments in bfloat16, rounded up or down at random (arXiv 2010.06192).

    A step changes the second moment by less than bfloat16 can show: rounded to the nearest, it would never fall. The
    random numbers follow from the step, so a resumed run repeats them.
    """

    def __init__(
        self, params: Groups, *, lr: float, betas: Any = BETAS, eps: float = 1e-8, weight_decay: float = 0.01
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update the parameters that have a gradient."""
        work = [(group, p) for group in self.param_groups for p in group["params"] if p.grad is not None]
        for number, (group, parameter) in enumerate(work):
            moments = {name: torch.zeros_like(parameter, dtype=torch.bfloat16) for name in ("exp_avg", "exp_avg_sq")}
            state = self.state[parameter] = self.state[parameter] or moments | {"step": torch.zeros(())}
            tensors = [local(tensor) for tensor in (parameter, parameter.grad, *(state[name] for name in moments))]
            draw = torch.Generator(tensors[0].device).manual_seed(int(state["step"]) * len(work) + number)
            for chunk in zip(*(tensor.view(-1).split(WIDE) for tensor in tensors), strict=True):
                _update([*chunk], state["step"].to(chunk[0].device, copy=True), draw, group)
            state["step"] += 1


def _update(tensors: list[Tensor], step: Tensor, draw: torch.Generator, group: dict[str, Any]) -> None:
    """Update a parameter and its moments, which are in float32 meanwhile; counts `step` up."""
    first, second = wide = [moment.float() for moment in tensors[2:]]
    numbers = {name: group[name] for name in ("lr", "eps", "weight_decay")}
    numbers |= {"beta1": group["betas"][0], "beta2": group["betas"][1], "amsgrad": False, "maximize": False}
    fused_adamw(tensors[:1], tensors[1:2], [first], [second], [], [step], fused=True, **numbers)
    for moment, values in zip(tensors[2:], wide, strict=True):
        moment.copy_(rounded_at_random(values, draw))


def rounded_at_random(values: Tensor, draw: torch.Generator) -> Tensor:
    """Values f32 as the bfloat16 above or below, the nearer the likelier: f32 of the same mean."""
    bits = values.view(torch.int32)
    noise = torch.randint(1 << 16, bits.shape, generator=draw, dtype=torch.int32, device=bits.device)
    return (noise.add_(bits) & -65536).view(torch.float32)


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
    own = optim.override_optimizer_config
    with reported_as(f"{where}={name}" + (f" with {key}.override_optimizer_config={own}" if own else "")):
        made = maker(groups, lr=optim.lr, **options)
    return list(made) if isinstance(made, Sequence) else [made]


def try_optimizer(optim: Optim, key: str) -> None:
    """Make the optimizer for two small weights. Raises UserError."""
    groups = [{"params": [nn.Parameter(torch.zeros(2, 2))], "weight_decay": 0.1, "matrices": m} for m in (True, False)]
    make_rules(groups, optim, key)


def _takes_betas(maker: Any) -> bool:
    if isinstance(maker, type):
        return any(part in maker.__name__.lower() for part in WITH_BETAS)
    return "betas" in signature(maker).parameters
