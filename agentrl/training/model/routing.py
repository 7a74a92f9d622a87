"""Records the experts that tokens meet, and replays them: one hook for every mixture of experts in transformers.

A router chooses by `topk` over the scores of all experts. Within its forward pass that call is answered with given ids
and their own scores; everything else is the router's own code, so weights and gradients of the router follow. A probe
on the loaded model finds the routers, and proves the replay.

R2 replays the routing of the pass that computed old log-probs (GSPO, arXiv 2507.18071), R3 that of the engine (Ma et
al., "Stabilizing MoE reinforcement learning by aligning training and inference routers", arXiv 2510.11370).

Others can share the hook: within `Routing.replay(...)`, `Routing.seen` has the experts of each token after the pass.
"""

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from agentrl.core.errors import UserError
from agentrl.core.replaced import replaced
from agentrl.training.parallel.ranks import ALONE, Ranks

LAYER = re.compile(r"\.(\d+)\.")
TOPK = (torch.topk, torch.Tensor.topk)


class Routing:
    """The routers of a model, in the order of its forward pass: L of them choose `width` of `experts` experts.

    A plan, uint8 or int16 [T, L, width], has the experts of T tokens. A token whose ids are none of the experts, or
    twice the same, has no known routing: it is routed as always.
    """

    def __init__(self, routers: dict[str, nn.Module], *, experts: int, width: int, device: torch.device) -> None:
        self.routers, self.experts, self.width = routers, experts, width
        numbers = [int(found[1]) if (found := LAYER.search(name)) else i for i, name in enumerate(routers)]
        self.layers = torch.tensor(numbers, device=device)
        """Layer of each router: engines count those without experts too."""
        self.places, self.deepest = torch.arange(len(numbers), device=device), max(numbers)
        self.plan: Tensor | None = None
        """The plan of the present pass; None: nothing is replayed or recorded."""
        self.seen = torch.empty(0)
        """The experts that its tokens met, as a plan."""
        self.counted: Tensor | None = None
        """Tokens of the pass that metrics count, bool [T]; None: no token."""
        self.counts = torch.zeros(3, dtype=torch.long, device=device)
        """Choices, those that were replayed, and those of them that the router would have made otherwise."""
        for place, router in enumerate(routers.values()):
            attributes: Any = router
            attributes.routing, attributes.place = self, self.places[place : place + 1]
            kind: Any = type(router)
            router.__class__ = _routed(kind)

    def unknown(self, tokens: int) -> Tensor:
        """A plan of tokens without known routing."""
        dtype = torch.uint8 if self.experts <= 256 else torch.int16
        shape = tokens, len(self.routers), self.width
        return torch.full(shape, 255 if dtype is torch.uint8 else -1, dtype=dtype, device=self.counts.device)

    @contextmanager
    def replay(self, plan: Tensor, counted: Tensor | None = None) -> Iterator[Tensor]:
        """In the body, the tokens of a pass meet the experts of the plan; yields the plan that it fills with all that
        they meet. Plan: of the routers, or of all layers. `counted`: tokens that metrics count, bool [T]. Raises
        UserError for a plan of another model."""
        layers, count = (self.layers if plan.shape[1] > len(self.places) else self.places), len(self.places)
        if plan.shape[2] != self.width or plan.shape[1] <= (self.deepest if layers is self.layers else count - 1):
            mine = f"{count} routers choose {self.width} experts"
            raise UserError(f"the engine returned {list(plan.shape[1:])} experts a token, the model's {mine}")
        found, seen = plan.clone(), self.unknown(len(plan)).to(plan.dtype)
        with self._present(plan.index_select(1, layers), seen, counted):
            yield found
        found.index_copy_(1, layers, seen)

    def _present(self, plan: Tensor, seen: Tensor, counted: Tensor | None = None) -> AbstractContextManager[None]:
        own = vars(self)
        return replaced([(own, "plan", plan), (own, "seen", seen), (own, "counted", counted)])

    @contextmanager
    def recording(self, network: nn.Module) -> Iterator[None]:
        """In the body, after each pass of `network` over `input_ids`, `seen` has the experts of its tokens."""

        def begin(_: nn.Module, args: Any, inputs: Any) -> None:
            ids = inputs["input_ids"] if "input_ids" in inputs else args[0]
            self.plan = self.unknown(ids.numel())
            self.seen = self.plan.clone()

        hook = network.register_forward_pre_hook(begin, with_kwargs=True)
        try:
            yield
        finally:
            hook.remove()
            self.plan = None

    def choose(self, place: Tensor, scores: Tensor, k: int, *args: Any, **kwargs: Any) -> Any:
        """The answer to a router's `topk`; `place`: the router's index, int64 [1]."""
        chosen = torch.topk(scores, k, *args, **kwargs)
        plan, sizes = self.plan, (scores.shape[-1], k, scores.numel())
        if plan is None or sizes != (self.experts, self.width, len(plan) * self.experts):
            return chosen  # another topk, such as that over groups of experts
        own = chosen.indices.reshape(-1, k)
        given = plan.index_select(1, place).squeeze(1).long()
        known = ((given >= 0) & (given < self.experts)).all(-1, keepdim=True)
        if k > 1:
            known = known & (given[:, :1] != given[:, 1:2])
        ids = torch.where(known, given, own)
        values = scores.gather(-1, ids.view(chosen.indices.shape))
        worse = values.detach().reshape(-1, k).amin(-1) < chosen.values.detach().reshape(-1, k).amin(-1)
        if self.counted is not None:
            self.counts.add_((torch.stack([self.counted, known[:, 0], worse]) & self.counted).sum(1))
        self.seen.index_copy_(1, place, ids[:, None].to(plan.dtype))
        return torch.return_types.topk((values, ids.view(chosen.indices.shape)))

    def recomputing(self) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        """Contexts of a checkpointed pass and of its recomputation, which replays the same experts."""
        return nullcontext(), nullcontext() if self.plan is None else self._present(self.plan, self.seen)

    def take_metrics(self, ranks: Ranks = ALONE) -> dict[str, float]:
        """Share of replayed choices, and of those that would have been others, since the last call. Collective."""
        counts = self.counts.clone()
        self.counts.zero_()
        if ranks.world > 1:  # ranks that split a share's tokens each count their own
            torch.distributed.all_reduce(counts)
        total, known, other = counts.tolist()
        if not total:
            return {}
        return {"routing/replayed": known / total, "routing/differs": other / max(known, 1)}


def routing_in(network: nn.Module) -> Routing | None:
    """The routing that replays in a model; None: none was prepared."""
    found: Any = (vars(part).get("routing") for part in network.modules())
    return next((routing for routing in found if isinstance(routing, Routing)), None)


class _Answer(TorchFunctionMode):
    """Answers the calls of `topk` within a router."""

    def __init__(self, router: Any) -> None:
        super().__init__()
        self.router = router

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.topk or func is torch.Tensor.topk:
            return self.router.routing.choose(self.router.place, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


@cache
def _routed(kind: Any) -> Any:
    """The class of a router whose choices can be replayed. One for all of its kind, which share their compiled code."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.routing.plan is None:
            return kind.forward(self, *args, **kwargs)
        with _Answer(self):
            return kind.forward(self, *args, **kwargs)

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})
