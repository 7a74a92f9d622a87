"""What an update says about itself: means over model tokens, gathered over micro-batches, read once at the end."""

from math import isfinite

import torch
from torch import Tensor

from agentrl.algorithms.kl import KL_ESTIMATORS
from agentrl.training.batch import Batch


class Report:
    """Gathers the figures of one update. Nothing waits for the device before `metrics`."""

    def __init__(self, batch: Batch, *, lr: float) -> None:
        self._lr = lr
        self._tokens = batch.num_tokens
        self._model_tokens = batch.mask.sum()
        self._sequences = batch.num_sequences
        self._sums: dict[str, Tensor] = {}
        self._scored = torch.zeros((), dtype=torch.float64, device=batch.ids.device)
        self._gaps: list[Tensor] = []
        self._grad_norms: list[float] = []

    def micro_batch(self, micro: Batch, details: dict[str, Tensor]) -> None:
        """Take in one forward pass. `details`, each [T]: pg_loss, entropy, ratio, clipped, clipped_dual, old,
        logprobs, maybe kl_loss, rollout_is, rollout_is_capped."""
        mask = micro.mask
        values = {name: value.detach()[mask].double() for name, value in details.items()}
        old, logprobs = values.pop("old"), values.pop("logprobs")
        values["ppo_kl"] = old - logprobs
        if micro.weights is not None:
            # The loss as it is minimised: the weights of one mini-batch make its mean.
            values["pg_loss"] *= micro.weights[mask].double()
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + value.sum()
        self._scored += mask.sum()
        self._gaps.append(old - micro.rollout_logprobs[mask].double())

    def optimizer_step(self, grad_norm: float) -> None:
        """Take in the gradient norm of one optimizer step."""
        self._grad_norms.append(grad_norm)

    def metrics(self) -> dict[str, float]:
        """All figures by name."""
        finite = [norm for norm in self._grad_norms if isfinite(norm)]
        metrics = {
            "actor/lr": self._lr,
            "actor/skipped_steps": float(len(self._grad_norms) - len(finite)),
            "actor/optimizer_steps": float(len(self._grad_norms)),
            "batch/tokens": float(self._tokens),
            "batch/model_tokens": float(self._model_tokens),
            "batch/mask_share": float(self._model_tokens) / max(self._tokens, 1),
            "batch/sequences": float(self._sequences),
        }
        scored = float(self._scored)
        if not scored:
            return metrics
        means = {name: float(total) / scored for name, total in self._sums.items()}
        means["pg_loss"] = float(self._sums["pg_loss"]) / len(self._grad_norms)
        names = {
            "pg_loss": "actor/pg_loss",
            "clipped": "actor/pg_clipfrac",
            "clipped_dual": "actor/pg_clipfrac_lower",
            "ratio": "actor/ratio",
            "ppo_kl": "actor/ppo_kl",
            "entropy": "actor/entropy",
            "kl_loss": "actor/kl_loss",
            "rollout_is": "rollout_is/mean",
            "rollout_is_capped": "rollout_is/capped",
        }
        metrics |= {names[name]: value for name, value in means.items()}
        if finite:
            metrics["actor/grad_norm"] = sum(finite) / len(finite)
        return metrics | self._gap_metrics()

    def _gap_metrics(self) -> dict[str, float]:
        """How far the trainer's log-probs are from the engine's, over model tokens, in nats.

        `k3` estimates KL(engine || trainer): the tokens were drawn by the engine.
        """
        gap = torch.cat(self._gaps)
        size = gap.abs()
        return {
            "rollout_gap/mean": float(size.mean()),
            "rollout_gap/max": float(size.max()),
            "rollout_gap/p99": _quantile(size, 0.99),
            "rollout_gap/k3": float(KL_ESTIMATORS["low_var_kl"](-gap).mean()),
        }


def _quantile(values: Tensor, q: float) -> float:
    """torch.quantile without its limit of 16 million entries: the nearest rank."""
    rank = max(1, min(values.numel(), round(q * values.numel() + 0.5)))
    return float(values.kthvalue(rank).values)
