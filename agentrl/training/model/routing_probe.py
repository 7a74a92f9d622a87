"""Finds the routers of a loaded model, and proves that their choices can be replayed.

A few tokens pass through the model several times: as always, with the experts that they chose, and with random ones. A
router is the innermost module that calls `topk` over as many scores as the layer has experts.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.overrides import TorchFunctionMode

from agentrl.core.errors import UserError
from agentrl.training.model.experts import expert_layers
from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.routing import TOPK, Routing
from agentrl.training.perf.compiling import uncompiled

LENGTH = 29
"""Tokens: a prime, so that no number of experts is taken for it."""


class _Watch(TorchFunctionMode):
    """Notes each `topk` within a pass: the innermost module that called it, the scores' width, and k."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[nn.Module] = []
        self.calls: list[tuple[nn.Module, int, int]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in TOPK and self.stack:
            k = args[1] if len(args) > 1 else kwargs["k"]
            if args[0].numel() == LENGTH * args[0].shape[-1]:
                self.calls.append((self.stack[-1], args[0].shape[-1], k))
        return func(*args, **kwargs)

    @contextmanager
    def modules(self) -> Iterator[None]:
        """In the body, the modules that run are on the stack."""
        before = hooks.register_module_forward_pre_hook(lambda module, _: self.stack.append(module))
        after = hooks.register_module_forward_hook(self._left, always_call=True)
        with before, after:
            yield

    def _left(self, *_: Any) -> None:
        self.stack.pop()


def routing_of(model: ModelHandle, device: torch.device, key: str) -> Routing:
    """The routing of a loaded model, proved on it: a recording is replayed bit for bit, and so are random experts in
    every router. `key`: the setting that asks for it. Collective. Raises UserError where that is not so."""
    probe = Probe(model, device)
    with torch.no_grad(), uncompiled():
        routing = probe.find()
        reason = routing if isinstance(routing, str) else probe.refute(routing)
    if isinstance(routing, str) or reason is not None:
        raise UserError(f"{key}: {reason} of a {model.config.model_type} model; set it to disabled")
    if model.base.is_gradient_checkpointing:
        settings = {"use_reentrant": False, "context_fn": routing.recomputing}
        model.base.gradient_checkpointing_enable(gradient_checkpointing_kwargs=settings)
    return routing


class Probe:
    """A few random tokens, which meet experts of their own choice, again the same, and random ones."""

    def __init__(self, model: ModelHandle, device: torch.device) -> None:
        self.model, self.device = model, device
        vocabulary = model.config.get_text_config().vocab_size
        draw = torch.Generator().manual_seed(0)
        self.ids = torch.randint(vocabulary // 4, vocabulary // 2 + 1, (LENGTH,), generator=draw).to(self.device)

    def find(self) -> Routing | str:
        """The prepared routers, or what is missing."""
        watch, network = _Watch(), self.model.base
        with watch.modules(), watch:
            self._hidden()
        # Matrices of all experts of a layer.
        widths = {p.shape[0] for p in network.parameters() if p.ndim == 3}
        found = {module: (experts, k) for module, experts, k in watch.calls if experts in widths}
        names = {module: name for name, module in network.named_modules()}
        if len(set(found.values())) != 1:
            return "no router is found that chooses by topk" if not found else "the routers choose unlike numbers"
        experts, k = next(iter(found.values()))
        routers = {names[module]: module for module in found}
        return Routing(routers, experts=experts, width=k, device=self.device)

    def refute(self, routing: Routing) -> str | None:
        """What the replay does not keep."""
        alone = self._hidden()
        recorded, drawn = self._replayed(routing, routing.unknown(LENGTH))
        again, replayed = self._replayed(routing, drawn)
        scores = torch.rand(LENGTH, len(routing.routers), routing.experts, generator=torch.Generator().manual_seed(1))
        wanted = scores.argsort(-1)[..., : routing.width].to(drawn)
        with self._weights(routing.width) as weights:
            other, met = self._replayed(routing, wanted)
        reason = None
        if not (torch.equal(recorded, alone) and torch.equal(again, recorded) and torch.equal(drawn, replayed)):
            reason = "the routing cannot be repeated bit for bit"
        elif not torch.equal(met, wanted) or torch.equal(other, alone) or not other.isfinite().all():
            reason = "given experts do not take the place"
        elif any((given == 0).any() for given in weights):
            reason = "experts of groups that the router leaves out get no weight: they cannot be given to a router"
        return reason if self.model.ranks.max_over_ranks(int(reason is not None)) else None

    @contextmanager
    def _weights(self, width: int) -> Iterator[list[Tensor]]:
        """The weights [T, k] of experts that expert layers get in the body."""
        found: list[Tensor] = []

        def note(_: nn.Module, given: tuple[Any, ...]) -> None:
            found.extend(x for x in given if x.is_floating_point() and x.shape == (LENGTH, width))

        with ExitStack() as hooks:
            for part in expert_layers(self.model.base).values():
                hooks.enter_context(part.register_forward_pre_hook(note))
            yield found

    def _replayed(self, routing: Routing, plan: Tensor) -> tuple[Tensor, Tensor]:
        with routing.replay(plan) as met:
            hidden = self._hidden()
        return hidden, met

    def _hidden(self) -> Tensor:
        """Outputs of the backbone, f32 [LENGTH, H]."""
        positions = torch.arange(LENGTH, device=self.device)[None]
        return self.model.run_gathered(lambda: self.model.hidden(self.ids, positions, use_cache=False)).float()
