"""Distances of a policy to a teacher, token by token.

reverse_kl is KL(policy || teacher), forward_kl is KL(teacher || policy); with m = beta teacher + (1 - beta) policy, jsd
is beta KL(teacher || m) + (1 - beta) KL(policy || m), but forward_kl where beta is 0 and reverse_kl where it is 1 (GKD,
arXiv 2306.13649).
"""

from dataclasses import dataclass
from math import log
from typing import NamedTuple

import torch
from torch import Tensor

from agentrl.algorithms.entropy import entropy_from_logits
from agentrl.algorithms.kl import kl_of_logprobs, kl_penalty

LARGEST_MASS = -1e-7
"""Log of the largest probability of some tokens together: the others keep a finite log-prob."""


class Compared(NamedTuple):
    """Figures of tokens, f32 [...]; only the first has a gradient."""

    distance: Tensor
    agreement: Tensor
    """1 where both models' likeliest token is the same."""
    teacher_entropy: Tensor
    """In nats; of the teacher's known tokens."""
    student_mass: Tensor
    """Probability of the tokens that are compared."""
    teacher_mass: Tensor


@dataclass(frozen=True)
class Distance:
    """A distance by the keys of `distillation`."""

    divergence: str = "reverse_kl"
    beta: float = 0.5
    topk: int = -1
    support: str = "teacher"
    tail: bool = True
    estimator: str = "kl"
    loss_max_clamp: float | None = None
    log_prob_min_clamp: float | None = None

    def of_sampled(self, logprobs: Tensor, teacher: Tensor) -> Tensor:
        """The estimate from the log-probs of sampled tokens, f32 [T] each, by `estimator`."""
        return self._bounded(kl_penalty(logprobs, teacher, self.estimator, "distillation.estimator"))

    def of_logits(self, logits: Tensor, teacher: Tensor) -> Compared:
        """The distance of softmax distributions, by the logits [..., V] of both."""
        own, theirs = logits.float().log_softmax(-1), teacher.float().log_softmax(-1)
        entropy = entropy_from_logits(teacher.float())
        if self.topk < 0:
            return self._compared(own, theirs, own.argmax(-1) == theirs.argmax(-1), entropy)
        chosen = (theirs if self.support == "teacher" else own).topk(min(self.topk, own.shape[-1])).indices
        alike = own.argmax(-1) == theirs.argmax(-1)
        return self._compared(own.gather(-1, chosen), theirs.gather(-1, chosen), alike, entropy)

    def of_tokens(self, logits: Tensor, ids: Tensor, teacher: Tensor) -> Compared:
        """The distance by the logits [..., V] of the policy and a teacher's log-probs [..., k] of the tokens `ids`,
        likeliest first."""
        ids, logits = ids.long(), logits.float()
        own = logits.gather(-1, ids) - logits.logsumexp(-1, keepdim=True)
        entropy = -(teacher.exp() * teacher).nan_to_num().sum(-1)
        return self._compared(own, teacher, logits.argmax(-1) == ids[..., 0], entropy)

    def _compared(self, own: Tensor, theirs: Tensor, alike: Tensor, entropy: Tensor) -> Compared:
        """By the log-probs [..., n] of the same tokens."""
        masses = own.detach().exp().sum(-1), theirs.exp().sum(-1)
        if self.topk > 0 and self.tail:
            own, theirs = with_tail(own), with_tail(theirs)
        if self.log_prob_min_clamp is not None:
            own, theirs = own.clamp(min=self.log_prob_min_clamp), theirs.clamp(min=self.log_prob_min_clamp)
        distance = divergence(own, theirs, self.divergence, self.beta)
        if self.topk > 0 and not self.tail:
            distance = distance.clamp(min=0.0)  # parts of distributions: it may be negative
        return Compared(self._bounded(distance), alike.float(), entropy, *masses)

    def _bounded(self, distance: Tensor) -> Tensor:
        most = self.loss_max_clamp
        return distance if most is None else distance.clamp(-most, most)


def divergence(own: Tensor, theirs: Tensor, kind: str, beta: float = 0.5) -> Tensor:
    """The distance of the policy's log-probs `own` [..., n] to the teacher's, in nats: f32 [...]."""
    beta = {"forward_kl": 0.0, "reverse_kl": 1.0}.get(kind, beta)
    if beta in (0.0, 1.0):
        return kl_of_logprobs(theirs, own) if beta == 0.0 else kl_of_logprobs(own, theirs)
    mixture = torch.logaddexp(own + log(1 - beta), theirs + log(beta))
    return beta * kl_of_logprobs(theirs, mixture) + (1 - beta) * kl_of_logprobs(own, mixture)


def with_tail(logprobs: Tensor) -> Tensor:
    """Log-probs [..., k] of some tokens and, last, of all others together: [..., k + 1]."""
    mass = logprobs.logsumexp(-1, keepdim=True).clamp(max=LARGEST_MASS)
    return torch.cat([logprobs, torch.log(-torch.expm1(mass))], -1)
