"""`rollout_is_all_terms`: KL loss and entropy of tokens that older weights drew, against values of the exact KL."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from agentrl.algorithms.kl import kl_of_logits
from agentrl.config.schema import Actor, Optim, RolloutCorrection
from agentrl.training import Batch, PolicyActor, pack_ledgers
from agentrl.trajectory.ledger import Ledger
from tests.training.test_actor import assert_same
from tests.training.tiny import CPU, VOCABULARY, tiny

PROMPT = [5, 9, 3]
CORRECTION = {"rollout_is_all_terms": True, "rollout_is_threshold": 1e6}


def logits_of(module: Any) -> Tensor:
    """Of the token after the prompt."""
    logits: Tensor = module(input_ids=torch.tensor([PROMPT]), use_cache=False).logits[0, -1]
    return logits * 0.3  # the temperature: no token reaches k3's bound


def every_token(old: Any, ref: Any, engine: Tensor) -> Batch:
    """Each token of the vocabulary once, as if an engine of these log-probs had drawn it equally often."""
    ledgers = []
    for token in range(VOCABULARY):
        ledger = Ledger()
        ledger.append_prompt(PROMPT)
        ledger.append_model([token], [float(engine[token])], turn=0, version=0)
        ledgers.append(ledger)
    batch = pack_ledgers(ledgers, group=list(range(VOCABULARY)))
    columns = [torch.zeros(batch.num_tokens) for _ in range(2)]
    for column, module in zip(columns, (old, ref), strict=True):
        column[batch.mask] = logits_of(module).log_softmax(-1).detach()
    return replace(batch, old_logprobs=columns[0], ref_logprobs=columns[1], advantages=torch.zeros(batch.num_tokens))


def gradient_and_kl(
    module: Any, batch: Batch, correction: dict[str, Any], **settings: Any
) -> tuple[dict[str, Tensor], float]:
    actor = PolicyActor(
        module,
        actor=Actor(ppo_mini_batch_size=999, optim=Optim(lr=0.0), grad_clip=0.0, **settings),
        temperature=1 / 0.3,
        device=CPU,
        total_steps=9,
        rollout_correction=RolloutCorrection(**correction),
    )
    caught: dict[str, Tensor] = {}
    step = actor.optimizer.step

    def keep() -> float:
        caught.update({n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None})
        return step()

    actor.optimizer.step = keep  # type: ignore[method-assign]
    metrics = actor.update(batch)
    return caught, metrics.get("actor/kl_loss", 0.0)


def exact(module: Any, ref: Any) -> tuple[dict[str, Tensor], float]:
    kl = kl_of_logits(logits_of(module), logits_of(ref).detach())
    module.zero_grad()
    kl.backward()
    found = {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}
    module.zero_grad()
    return found, float(kl)


UNIFORM = torch.full((VOCABULARY,), -float(torch.tensor(VOCABULARY).log()))


@pytest.mark.parametrize("bypass", [False, True])
@pytest.mark.parametrize("kind", ["kl", "low_var_kl", "kl+"])
def test_an_estimate_from_stale_tokens_is_the_exact_kl_of_the_policy(kind: str, bypass: bool) -> None:
    policy, old, ref = tiny(), tiny(seed=1), tiny(seed=2)
    batch = every_token(old, ref, UNIFORM)
    if bypass:
        batch = replace(batch, old_logprobs=batch.rollout_logprobs)
    expected, kl = exact(policy, ref)
    kwargs: dict[str, Any] = {"use_kl_loss": True, "kl_loss_coef": 1.0, "kl_loss_type": kind}
    gradient, value = gradient_and_kl(policy, batch, CORRECTION | {"bypass_mode": bypass}, **kwargs)
    assert value == pytest.approx(kl, rel=1e-4)
    assert_same({n: g for n, g in gradient.items() if n in expected}, expected, tolerance=1e-3)
    _, without = gradient_and_kl(policy, batch, {"bypass_mode": bypass}, **kwargs)
    assert abs(without - kl) > 0.05 * kl


def test_on_policy_k3_gets_the_gradient_of_the_kl() -> None:
    """Without the ratio its expected gradient is that of the reverse KL."""
    policy, ref = tiny(), tiny(seed=2)
    batch = every_token(policy, ref, UNIFORM)
    kwargs: dict[str, Any] = {"use_kl_loss": True, "kl_loss_coef": 1.0, "kl_loss_type": "low_var_kl"}
    expected, _ = exact(policy, ref)
    assert_same(gradient_and_kl(policy, batch, CORRECTION, **kwargs)[0], expected, tolerance=1e-3)
    batch = replace(batch, old_logprobs=None)  # one optimizer step needs none: the ratio is 1, with its gradient
    assert_same(gradient_and_kl(policy, batch, CORRECTION, **kwargs)[0], expected, tolerance=1e-3)


def test_the_entropy_bonus_counts_as_much_as_a_token_s_weight() -> None:
    policy, old = tiny(), tiny(seed=1)
    twice = logits_of(old).log_softmax(-1).detach() - torch.tensor(2.0).log()  # the engine drew each half as often
    batch = every_token(old, old, twice)
    plain = gradient_and_kl(policy, batch, {}, entropy_coeff=0.5)[0]
    weighted = gradient_and_kl(policy, batch, CORRECTION, entropy_coeff=0.5)[0]
    assert_same(weighted, {name: 2 * gradient for name, gradient in plain.items()}, tolerance=1e-4)
