"""The base of policy, critic and SFT model: optimizer steps over packed batches.

Invariants:
- a batch is this rank's share of one, and a mini-batch the share's part of it;
- neither shares nor micro-batches change the loss: token weights are those of the whole mini-batch;
- sequences without a gradient get no backward pass, but count in the loss's denominator;
- an optimizer step whose passes do not fit into the GPU's memory is taken again with smaller ones, from the start; one
  whose backward pass cannot be compiled, uncompiled;
- the module is in eval mode outside `train_on`.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.algorithms import token_weights
from agentrl.core.errors import UserError
from agentrl.training.batches.batch import Batch
from agentrl.training.batches.dealing import Layout, prompts_of
from agentrl.training.batches.shared_prompts import repeated
from agentrl.training.batches.splitting import deal, mini_batches
from agentrl.training.model.adapter import adapter_names
from agentrl.training.model.compute_copies import clear_copies, computing, use_compute_copies
from agentrl.training.parallel.shards import fixed_shards, same_shapes, set_no_sync, unwrapped
from agentrl.training.perf.compiled_block import BackwardFailed, backward
from agentrl.training.perf.flops import flops_of_module
from agentrl.training.update.micro_batches import NO_ROOM, MicroBatching, fits, sequences_or_dummy
from agentrl.training.update.optimizer import Optimizer
from agentrl.training.update.report import Report

MIXED = "rows with and without images cannot be trained together on several ranks: use separate runs"

SHUFFLING = 42
"""Added to the run's seed to shuffle sequences."""

log = logging.getLogger(__name__)

Split = tuple[list[int], list[int]]
"""(sequences whose loss has a gradient, the others)"""


@dataclass(frozen=True)
class Steps:
    """The optimizer steps of one batch."""

    prompts: int
    """Prompts of a mini-batch."""
    epochs: int
    shuffle: bool
    seed: int
    """`trainer.seed`."""


class Trainable:
    """Base class; subclasses define `loss_weights` and `loss`."""

    score: Any
    """Computes the columns of a micro-batch's tokens: `TokenLogprobs`, or values."""

    def __init__(
        self,
        module: nn.Module,
        *,
        optimizer: Optimizer,
        micro_batching: MicroBatching,
        steps: Steps,
        device: torch.device,
    ) -> None:
        self.module: Any = module
        self.optimizer = optimizer
        self.micro_batching = micro_batching
        self.steps = steps
        self.device = device
        self.cost = flops_of_module(module)
        use_compute_copies(module)
        self.shuffling = torch.Generator().manual_seed(SHUFFLING + steps.seed)

    def deal(self, layout: Layout) -> list[list[int]]:
        """The sequences of each share: equal work in every mini-batch of the first epoch. Raises UserError."""
        steps, sizes = self.steps, self.micro_batching
        if layout.mixed and sizes.ranks.data_world > 1:
            raise UserError(MIXED)
        generator = torch.Generator().set_state(self.shuffling.get_state()) if steps.shuffle else None
        minis = mini_batches(layout.group, steps.prompts, generator=generator)
        # Sequences that get a backward pass, and the others: each rank has about as many passes of each kind.
        left = [[i for i in mini if i not in layout.begun] for mini in minis]
        parts = [[i for i in mini if self.moves(layout, i) is moves] for mini in left for moves in (True, False)]
        parts += [sorted(layout.begun)] * bool(layout.begun)
        return deal(layout.lengths, parts, sizes.ranks.data_world, hidden=sizes.hidden, prompts=layout.shared)

    def moves(self, layout: Layout, sequence: int) -> bool:
        """Whether the loss of a sequence has a gradient, as far as its advantages say."""
        return True

    def prepare_mini_batch(self, mini: Batch) -> Batch:
        """Complete a mini-batch under the weights before its optimizer step."""
        return mini

    def loss_weights(self, mini: Batch) -> Tensor:
        """Each token's weight in the loss of a mini-batch: f32 [T]. Collective."""
        raise NotImplementedError

    def token_weights(self, mini: Batch, mode: str, norm: float = 1.0) -> Tensor:
        """As `algorithms.token_weights`, over the whole mini-batch. Collective."""
        ranks = self.micro_batching.ranks
        return token_weights(
            mini.mask,
            mini.cu_seqlens,
            mode,
            trajectory=mini.trajectory,
            trajectories=ranks.most(max(mini.trajectory.tolist(), default=-1) + 1),
            norm=norm,
            total=ranks.total,
        )

    def loss(self, micro: Batch, report: Any) -> Tensor:
        """The micro-batch's part of its mini-batch's loss: a scalar."""
        raise NotImplementedError

    def split_by_gradient(self, mini: Batch) -> Split:
        """(sequences whose loss has a gradient, the others)."""
        return list(range(mini.num_sequences)), []

    def left(self, mini: Batch, whole: Split, report: Any) -> Split:
        """Those of the sequences whose passes have not run yet; `report` gets the figures of the others."""
        return whole

    def update(self, batch: Batch) -> dict[str, float]:
        """Train on a batch that has all its columns; returns metrics."""
        raise NotImplementedError

    def flops(self, batch: Batch) -> float:
        """FLOPs of `train_on`, of this rank's share."""
        trained, others = (batch.select(rows) for rows in self.split_by_gradient(batch))
        return self.steps.epochs * (self.cost.update(*self.work(trained)) + self.cost.forward(*self.work(others)))

    def work(self, batch: Batch) -> tuple[list[int], int, list[int]]:
        """The arguments of `cost` for passes over a batch."""
        again = repeated(batch.prompts) if self.micro_batching.shares else []
        return batch.lengths, int(batch.mask.sum()), again

    def train_on(self, batch: Batch, report: Report) -> None:
        """Take all optimizer steps of one batch; the schedule advances by one."""
        steps, group = self.steps, batch.group.tolist()
        order = prompts_of(batch, self.micro_batching.ranks)
        with self.training():
            for _ in range(steps.epochs):
                generator = self.shuffling if steps.shuffle else None
                for rows in mini_batches(group, steps.prompts, order=order, generator=generator):
                    self._optimizer_step(sequences_or_dummy(batch, rows), report)
        self.optimizer.advance()

    @contextmanager
    def training(self) -> Iterator[None]:
        """Within the body the module is ready for passes with a gradient."""
        self.module.train()
        with computing(self.module):
            yield
        self.module.eval()

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of this rank's part of a loss. Raises BackwardFailed."""
        backward(self.module, loss, self.micro_batching.ranks)

    def clear_gradients(self) -> None:
        """Forget the gradients so far."""
        self.optimizer.clear()
        clear_copies(self.module)

    def state_dict(self) -> dict[str, Any]:
        """This rank's chunks of the model and the optimizer, schedule, shuffling, and the adapter's names in files."""
        network = unwrapped(self.module)
        return {
            "parameters": {name: shard.local_chunk() for name, shard in self.optimizer.shards.items()},
            "fixed": {name: shard.local_chunk() for name, shard in fixed_shards(self.module).items()},
            "adapter": adapter_names(network) if hasattr(network, "get_base_model") else {},
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
            shards = shards | {name: shard for name, shard in fixed_shards(self.module).items() if name in fixed}
            saved = saved | fixed
            if not same_shapes(shards, saved):
                raise UserError("the checkpoint is of another model or LoRA rank; set trainer.resume_mode=disable")
            for name, shard in shards.items():
                shard.fill(shard.parameter, saved[name])
        if "optimizer" in state:
            self.optimizer.load_state_dict(state["optimizer"])
        if "shuffling" in state:
            self.shuffling.set_state(state["shuffling"])

    def _optimizer_step(self, mini: Batch, report: Report) -> None:
        mini = self.prepare_mini_batch(mini)
        mini.weights = self.loss_weights(mini)
        whole = self.split_by_gradient(mini)
        before = {name: copy(value) for name, value in vars(report).items()}
        left = self.left(mini, whole, report)
        while not self.run_passes(mini, *left, report):
            left = whole  # no gradient is there any more
            vars(report).update(before)
        moved = self.micro_batching.ranks.most(len(whole[0])) > 0
        report.mini_batch(self.optimizer.step() if moved else None)

    def run_passes(self, mini: Batch, trained: list[int], others: list[int], report: Report) -> bool:
        """Whether all passes ran. If not, there are no gradients, and the next passes are smaller or uncompiled."""
        try:
            if fits(partial(self._passes, mini, trained, others, report), self.micro_batching.ranks):
                return True
        except BackwardFailed:
            self.clear_gradients()
            return False
        self.clear_gradients()
        self._halve_passes(mini, trained or others)
        return False

    def _passes(self, mini: Batch, trained: list[int], others: list[int], report: Report) -> None:
        """Add up the gradients of `trained` sequences; compute the metrics of the `others`."""
        parts, frozen = self._micro_batches(mini, trained), self._micro_batches(mini, others)
        for number, micro in enumerate(parts, start=1):
            set_no_sync(self.module, number < len(parts))
            self.backward(self.loss(micro, report) * self.optimizer.scale.value)
        with torch.no_grad():
            for micro in frozen:
                self.loss(micro, report)

    def _halve_passes(self, mini: Batch, sequences: list[int]) -> None:
        """The passes from now on are smaller. Raises UserError where they cannot be."""
        smaller = self.micro_batching.halved(mini, sequences)
        if smaller is None and getattr(self.score, "keep", 0) > 0:
            self.score.keep = 0
            return
        if smaller is None:
            raise UserError(f"a pass of one sequence of {max(mini.lengths)} tokens {NO_ROOM}")
        log.warning("out of GPU memory: passes have at most %d tokens from now on", smaller.max_tokens)
        self.micro_batching = smaller

    def _micro_batches(self, mini: Batch, sequences: list[int]) -> list[Batch]:
        # All before the first pass: the device computes without waiting for what is read here.
        sizes = self.micro_batching
        return [sizes.micro_batch(mini, rows) for rows in sizes.split(mini, sequences)]
