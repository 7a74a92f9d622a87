"""The base of policy, critic and SFT model: optimizer steps over packed batches.

Invariants:
- a batch is this rank's share of one, and a mini-batch the share's part of it;
- neither shares nor micro-batches change the loss: token weights are those of the whole mini-batch;
- sequences without a gradient get no backward pass, but count in the loss's denominator;
- an optimizer step whose passes do not fit into the GPU's memory is taken again with smaller ones, from the start (on
  several ranks, which may be within a collective, by a restart of the run); one whose backward pass cannot be compiled,
  uncompiled;
- the module is in eval mode outside `train_on`.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, NotRequired, TypedDict, TypeVar, Unpack

import torch
from torch import Tensor, nn

from agentrl.algorithms.aggregate import token_weights
from agentrl.config.schema.actor import Actor, Router
from agentrl.core.errors import UserError
from agentrl.training.batches.batch import Batch
from agentrl.training.batches.outline import BatchOutline, moves_policy, prompts_of
from agentrl.training.batches.splitting import assign_shares, mini_batches
from agentrl.training.model.adapter import adapter_names
from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.head.logprobs import TokenLogprobs
from agentrl.training.model.value_model import TokenValues
from agentrl.training.parallel.ranks import ALONE, Ranks
from agentrl.training.perf.compiled_block import BackwardFailed, backward
from agentrl.training.update.expert_load import ExpertLoad
from agentrl.training.update.micro_batches import (
    MicroBatching,
    fits,
    for_ranks,
    micro_batching_of,
    sequences_or_dummy,
)
from agentrl.training.update.optimizer import Optimizer
from agentrl.training.update.report import StepReport

MIXED = "rows with and without images cannot be trained together on several ranks: use separate runs"

SHUFFLING = 42
"""Added to the run's seed to shuffle sequences."""

log = logging.getLogger(__name__)

Split = tuple[list[int], list[int]]
"""(sequences whose loss has a gradient, the others)"""


Scorer = TokenLogprobs | TokenValues
"""Computes columns f32 [T] of a micro-batch's tokens."""
R = TypeVar("R", bound=StepReport)
"""A report of an update."""


@dataclass(frozen=True)
class Steps:
    """The optimizer steps of one batch."""

    prompts: int
    """Prompts of a mini-batch."""
    epochs: int
    shuffle: bool
    seed: int
    """`trainer.seed`."""


class RunFacts(TypedDict):
    """The part of a run that actor and critic share."""

    device: torch.device
    total_steps: int
    """Training steps of the whole run, for the schedule."""
    ranks: NotRequired[Ranks]
    """`model` is sharded over them; by default there is one."""
    seed: NotRequired[int]
    """`trainer.seed`; by default 0."""


def settled(actor: Actor, name: str, model: ModelHandle, **run: Unpack[RunFacts]) -> dict[str, Any]:
    """Keywords of `Trainable` by a section of the settings: that of the `name` actor, or critic."""
    ranks, device = run.get("ranks", ALONE), run["device"]
    optimizer = Optimizer.of(model, actor, total_steps=run["total_steps"], key=f"{name}.optim", ranks=ranks)
    sizes = for_ranks(micro_batching_of(actor, device), model, ranks=ranks)
    steps = Steps(actor.ppo_mini_batch_size, actor.ppo_epochs, actor.shuffle, run.get("seed", 0))
    return {"optimizer": optimizer, "micro_batching": sizes, "steps": steps, "device": device}


class Trainable:
    """Base class; subclasses define `loss_weights` and `loss`."""

    score: Scorer
    by_advantage = False
    """Whether the loss of a sequence of advantage 0 has no gradient."""

    def __init__(
        self,
        model: nn.Module | ModelHandle,
        *,
        optimizer: Optimizer,
        micro_batching: MicroBatching,
        steps: Steps,
        device: torch.device,
        router: Router | None = None,
    ) -> None:
        self.model = ModelHandle.of(model)
        self.optimizer = optimizer
        self.micro_batching = micro_batching
        self.steps = steps
        self.device = device
        self.model.use_compute_copies()
        self.load = ExpertLoad(self.model, router, device, micro_batching.ranks)
        self.shuffling = torch.Generator().manual_seed(SHUFFLING + steps.seed)
        self.taken, self.fullest, self._fullest = 0, 0, 0
        """Most bytes that passes took on a GPU, and the tokens of the fullest of them."""

    def assign_shares(self, outline: BatchOutline) -> list[list[int]]:
        """The sequences of each share: equal work in every mini-batch of the first epoch. Raises UserError."""
        steps, sizes = self.steps, self.micro_batching
        if outline.mixed and sizes.ranks.data_world > 1:
            raise UserError(MIXED)
        generator = torch.Generator().set_state(self.shuffling.get_state()) if steps.shuffle else None
        minis = mini_batches(outline.group, steps.prompts, generator=generator)
        # Sequences that get a backward pass, and the others: each rank has about as many passes of each kind.
        left = [[i for i in mini if i not in outline.accumulated] for mini in minis]
        idle = outline.zero_advantage if self.by_advantage else [False] * len(outline.lengths)
        parts = [[i for i in mini if idle[i] is without] for mini in left for without in (False, True)]
        parts += [sorted(outline.accumulated)] * bool(outline.accumulated)
        ranks = sizes.ranks.data_world
        return assign_shares(outline.lengths, parts, ranks, hidden=sizes.hidden, prompts=outline.shared)

    def prepare_mini_batch(self, mini: Batch) -> Batch:
        """Complete a mini-batch under the weights before its optimizer step."""
        return mini

    def loss_weights(self, mini: Batch) -> Tensor:
        """Each token's weight in the loss of a mini-batch: f32 [T]. Collective."""
        raise NotImplementedError

    def token_weights(self, mini: Batch, mode: str, norm: float = 1.0, *, relative: bool = False) -> Tensor:
        """Weights by `algorithms.token_weights`, over the whole mini-batch. Collective."""
        ranks, owner = self.micro_batching.ranks, mini.trajectory
        n = ranks.max_over_ranks(max(owner.tolist(), default=-1) + 1)
        own: Any = {"trajectory": owner, "trajectories": n, "total": ranks.sum_over_ranks}
        return token_weights(mini.mask, mini.cu_seqlens, mode, norm=norm, relative=relative, **own)

    def loss(self, micro: Batch, report: Any) -> Tensor:
        """The micro-batch's part of its mini-batch's loss: a scalar."""
        raise NotImplementedError

    def split_by_gradient(self, mini: Batch) -> Split:
        """(sequences whose loss has a gradient, the others)."""
        has = moves_policy(mini) if self.by_advantage else [True] * mini.num_sequences
        return [i for i, one in enumerate(has) if one], [i for i, one in enumerate(has) if not one]

    def remaining_sequences(self, mini: Batch, whole: Split, report: Any) -> Split:
        """Sequences that still need a pass. Adds the metrics of finished ones to `report`."""
        return whole

    def train_on(self, batch: Batch, report: R) -> R:
        """Take all optimizer steps of one batch; the schedule advances by one. Returns `report` with their figures."""
        steps, group = self.steps, batch.group.tolist()
        order = prompts_of(batch, self.micro_batching.ranks)
        with self.training():
            for _ in range(steps.epochs):
                generator = self.shuffling if steps.shuffle else None
                for rows in mini_batches(group, steps.prompts, order=order, generator=generator):
                    report = self.forward_backward(sequences_or_dummy(batch, rows), report)
                    self.optim_step(report)
        self.optimizer.advance()
        return report

    @contextmanager
    def training(self) -> Iterator[None]:
        """Within the body the module is ready for passes with a gradient."""
        self.model.train()
        with self.model.computing():
            yield
        self.model.module.eval()

    def clear_gradients(self) -> None:
        """Forget the gradients so far."""
        self.optimizer.clear()
        self.model.clear_copies()
        self.load.clear()

    def state_dict(self) -> dict[str, Any]:
        """This rank's chunks of the model and the optimizer, schedule, shuffling, and the adapter's names in files."""
        model = self.model
        return {
            "parameters": {name: shard.local_chunk() for name, shard in self.optimizer.shards.items()},
            "fixed": {name: shard.local_chunk() for name, shard in model.fixed_shards().items()},
            "adapter": adapter_names(model.module) if model.adapted else {},
            "optimizer": self.optimizer.state_dict(),
            "shuffling": self.shuffling.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the parts that a checkpoint has; parameters are written in place.

        Raises UserError when it is of another model.
        """
        shards, saved = self.optimizer.shards, state.get("parameters")
        if saved is not None:
            fixed = state.get("fixed", {})  # missing in checkpoints of older versions
            shards = shards | {name: shard for name, shard in self.model.fixed_shards().items() if name in fixed}
            saved = saved | fixed
            if {n: s.shape for n, s in shards.items()} != {n: tuple(s.shape) for n, s in saved.items()}:
                raise UserError("another model or rank was saved: use one like it, or set trainer.resume_mode=disable")
            for name, shard in shards.items():
                shard.fill(shard.parameter, saved[name])
        if "optimizer" in state:
            self.optimizer.load_state_dict(state["optimizer"])
        if "shuffling" in state:
            self.shuffling.set_state(state["shuffling"])

    def forward_backward(self, mini: Batch, report: R, *, backward: bool = True) -> R:
        """Compute the gradients of a mini-batch, without `backward` its loss alone; returns `report` with the figures
        of its passes. Collective."""
        mini = self.prepare_mini_batch(mini)
        mini.weights = self.loss_weights(mini)
        whole = self.split_by_gradient(mini) if backward else ([], list(range(mini.num_sequences)))
        made = copy(report)
        left = self.remaining_sequences(mini, whole, made)
        while not self.run_passes(mini, *left, made):
            left, made = whole, copy(report)  # no gradient is there any more
        made.has_gradient = self.micro_batching.ranks.max_over_ranks(len(whole[0])) > 0
        return made

    def optim_step(self, report: StepReport) -> None:
        """Take an optimizer step with the gradients, if any sequence of the mini-batch had one. Collective."""
        report.mini_batch(self.optimizer.step() if report.has_gradient else None)
        self.load.step()

    def run_passes(self, mini: Batch, trained: list[int], others: list[int], report: StepReport) -> bool:
        """Whether all passes ran. If not, there are no gradients, and the next passes are smaller or uncompiled."""
        cuda, sizes = self.device.type == "cuda", self.micro_batching
        before = torch.cuda.memory_allocated(self.device) if cuda else 0
        try:
            if fits(partial(self._passes, mini, trained, others, report), sizes.ranks, sizes.half(mini)):
                taken = torch.cuda.max_memory_allocated(self.device) - before if cuda and trained else 0
                self.taken, self.fullest = max((self.taken, self.fullest), (taken, self._fullest))
                return True
        except BackwardFailed:
            self.clear_gradients()
            return False
        self.clear_gradients()
        self._need_less(mini, trained or others)
        return False

    def _passes(self, mini: Batch, trained: list[int], others: list[int], report: StepReport) -> None:
        """Add up the gradients of `trained` sequences; compute the metrics of the `others`."""
        frozen, parts = self._micro_batches(mini, others), self._micro_batches(mini, trained)
        for number, micro in enumerate(parts, start=1):
            self.model.set_no_sync(number < len(parts))
            loss = self.loss(micro, report) * self.optimizer.scale.value
            backward(self.model.compiled, loss, self.micro_batching.ranks)
        with torch.no_grad():
            for micro in frozen:
                self.loss(micro, report)

    def _need_less(self, mini: Batch, sequences: list[int]) -> None:
        """Have passes need less memory from now on: they keep no logits, or are smaller. Raises UserError."""
        if self.score.keep > 0:
            self.score.keep = 0
            return
        self.micro_batching = self.micro_batching.halved(mini, sequences)
        log.warning("out of GPU memory: passes have at most %d tokens from now on", self.micro_batching.max_tokens)

    def _micro_batches(self, mini: Batch, sequences: list[int]) -> list[Batch]:
        # All before the first pass: the device computes without waiting for what is read here.
        sizes = self.micro_batching
        parts = sizes.split(mini, sequences)
        self._fullest = max(map(partial(sizes.tokens, mini), parts), default=0) // sizes.ranks.seq_world
        return [sizes.micro_batch(mini, rows) for rows in parts]
