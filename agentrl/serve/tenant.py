"""A model of one client: the project's own passes and optimizer, with a loss that the client names."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from agentrl.core.errors import UserError
from agentrl.serve.contract import Adam
from agentrl.serve.losses import LossFunction
from agentrl.training import load_tokenizer
from agentrl.training.batches.batch import Batch
from agentrl.training.batches.splitting import assign_shares
from agentrl.training.model.export import save_pretrained
from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.head.logprobs import TokenLogprobs
from agentrl.training.parallel.ranks import ALONE
from agentrl.training.roles.making import Roles
from agentrl.training.sft.model import SftReport
from agentrl.training.update.micro_batches import for_ranks, micro_batching_of
from agentrl.training.update.optimizer import Optimizer
from agentrl.training.update.passes import fit_passes
from agentrl.training.update.trainable import Split, Steps, Trainable


@dataclass
class PassReport(SftReport):
    """The loss of a batch, and each micro-batch with the log-probs of its targets, f32 [T, K]."""

    parts: list[tuple[Batch, Tensor]] = field(default_factory=list)

    def logprobs(self) -> dict[int, Tensor]:
        """The log-probs of this rank's sequences, f32 [N, K] on the CPU, by their places in the batch."""
        found: dict[int, Tensor] = {}  # passes that were taken again come later
        for micro, logprobs in self.parts:
            assert micro.index is not None
            found |= zip(micro.index.tolist(), logprobs.cpu().split(micro.lengths), strict=True)
        return {i - 1: found[i][1:] for i in found if i}


class Tenant(Trainable):
    """The model of a client."""

    score: TokenLogprobs

    def __init__(self, model: ModelHandle, roles: Roles, slot: str | None, tensors: dict[str, nn.Parameter]) -> None:
        """`model`: a handle for this tenant alone. `slot`: peft's name of the adapter in which the `tensors` compute;
        None: all weights are trained."""
        self.roles, self.slot, self.tensors = roles, slot, tensors
        actor, device = roles.config.actor, roles.device
        constant = replace(actor.optim, lr_scheduler_type="constant", lr_warmup_steps=0)
        ranks = ALONE if slot else roles.ranks  # each rank has an adapter whole, and takes the same steps
        settings = replace(actor, optim=constant)
        optimizer = Optimizer.of(model, settings, total_steps=1, key="actor.optim", ranks=ranks)
        sizes = for_ranks(micro_batching_of(actor, device), model, ranks=roles.ranks)
        sizes, steps = replace(sizes, shares=roles.shares(model)), Steps(1, 1, False, seed=0)
        super().__init__(model, optimizer=optimizer, micro_batching=sizes, steps=steps, device=device)
        self.score = TokenLogprobs(model)
        self._fitted = device.type != "cuda"
        self._function: Any = None

    def compute(self, batch: Batch, function: LossFunction, *, backward: bool) -> Iterator[PassReport | None]:
        """Add the gradients of a loss, summed over a batch, to those so far; without `backward` compute it alone.

        Yields None between two micro-batches, where other tenants may compute, and at the end the report of this rank's
        share. Collective.
        """
        if not self._fitted:
            fit_passes(self.roles.config, [self], [], self.roles.ranks)
        self._fitted, self._function, report = True, function, PassReport()
        moved, batch = bool(batch.mask.any()), self._share_of(batch)
        parts = [rows for own in self.split_by_gradient(batch) for rows in self.micro_batching.split(batch, own)]
        # All before the first pass: the device computes without waiting for the next one's tokens.
        micro_batches = [batch.select(rows).to(self.device) for rows in parts]
        with self._gradients_apart():
            for number, micro in enumerate(micro_batches):
                if number:
                    yield None
                with self._gradients_apart(), self.training():
                    report = self.forward_backward(micro, report, backward=backward)
            if self.slot and moved and backward:
                self._average_gradients()
        yield report

    def _share_of(self, batch: Batch) -> Batch:
        """This rank's sequences of a batch."""
        sizes, ranks = self.micro_batching, self.micro_batching.ranks
        prompts, parts = batch.prompts if sizes.shares else None, self.split_by_gradient(batch)
        shares = assign_shares(batch.lengths, parts, ranks.data_world, hidden=sizes.hidden, prompts=prompts)
        return batch.select(shares[ranks.data_rank])

    def _average_gradients(self) -> None:
        """Give every rank the gradients of all shares, as sharded parameters have them."""
        for parameter in self.optimizer.parameters if self.roles.ranks.world > 1 else ():
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            torch.distributed.all_reduce(parameter.grad)
            parameter.grad /= self.roles.ranks.world

    @contextmanager
    def _gradients_apart(self) -> Iterator[None]:
        """The body begins without gradients; at its end its own are added to those before, unless it raises."""
        earlier = [parameter.grad for parameter in self.optimizer.parameters]
        self.clear_gradients()
        try:
            yield
        except BaseException:
            self.clear_gradients()
            raise
        finally:
            for parameter, gradient in zip(self.optimizer.parameters, earlier, strict=True):
                if gradient is not None:
                    parameter.grad = gradient if parameter.grad is None else gradient.add_(parameter.grad)

    def loss_weights(self, mini: Batch) -> Tensor:
        """The weights of the batch: f32 [T, K]."""
        assert mini.weights is not None
        return mini.weights

    def split_by_gradient(self, mini: Batch) -> Split:
        """(sequences with a token of the loss, the others)."""
        moved = [bool(own.any()) for own in mini.mask.cpu().split(mini.lengths)]
        return [i for i, has in enumerate(moved) if has], [i for i, has in enumerate(moved) if not has]

    def loss(self, micro: Any, report: PassReport) -> Tensor:
        """The loss of a micro-batch: a scalar."""

        def others(logits: Tensor, tokens: Tensor) -> Tensor:
            return (logits.gather(1, micro.targets[tokens, 1:]) - logits.logsumexp(1, keepdim=True)).T

        first, _, *rest = self.score(micro, every_token=True, compare=others if micro.targets.shape[1] > 1 else None)
        logprobs = torch.stack([first, *rest], dim=1)
        loss = (self._function(logprobs, micro).view(len(first), -1) * micro.weights).sum()
        report.value = report.value + loss.detach().double()
        report.parts.append((micro, logprobs.detach()))
        return loss

    def step(self, adam: Adam) -> dict[str, float]:
        """Take a step with the gradients so far, which is skipped where they are not finite."""
        betas = (adam.beta1, adam.beta2)
        if not all(isfinite(number) and number >= 0 for number in astuple(adam)) or max(betas) >= 1:
            raise UserError(f"{adam}: send numbers of at least 0, and betas below 1")
        self.optimizer.configure(adam.learning_rate, adam.weight_decay, adam.grad_clip_norm, betas=betas, eps=adam.eps)
        return {"grad_norm:mean": self.optimizer.step(), "skipped_steps:max": float(self.optimizer.skipped)}

    def state_dict(self) -> dict[str, Any]:
        """State of a Trainable, and the gradients so far."""
        shards = self.optimizer.shards.items()
        gradients = {n: s.local_chunk(s.parameter.grad) for n, s in shards if s.parameter.grad is not None}
        return super().state_dict() | {"gradients": gradients}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it; what it lacks starts at 0. Raises UserError, and changes nothing, for one of another shape."""
        super().load_state_dict(state)
        if "optimizer" not in state:
            self.optimizer.forget()
        self.clear_gradients()
        for name, saved in state.get("gradients", {}).items():
            shard = self.optimizer.shards[name]
            shard.parameter.grad = torch.zeros_like(shard.parameter)
            shard.fill(shard.parameter.grad, saved)

    def export(self, folder: Path) -> None:
        """Write the adapter as peft saves it, or the model with its tokenizer."""
        save_pretrained(self.model, None if self.slot else load_tokenizer(self.roles.config.model), folder)
