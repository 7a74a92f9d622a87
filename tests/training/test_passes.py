"""The sizes of passes: chosen by memory, and smaller ones after a pass that did not fit."""

from typing import Any

import pytest
import torch

from agentrl.config import compose
from agentrl.config.schema import Actor, Optim
from agentrl.core.errors import UserError
from agentrl.training import PolicyActor
from agentrl.training.parallel.ranks import ALONE
from agentrl.training.perf.pass_size import (
    ENOUGH,
    MOST,
    TokenBytes,
    activation_bytes,
    logits_that_fit,
    shape_of,
    tokens_that_fit,
)
from agentrl.training.roles.frozen import Reference
from agentrl.training.update import passes
from agentrl.training.update.micro_batches import micro_batching_of, score_batch
from tests.training.tiny import CPU, random_batch, tiny

BATCH = random_batch([7, 1, 12, 4, 9, 6, 3, 8])
TOTAL, LONGEST = sum(BATCH.lengths), max(BATCH.lengths)
GPU = torch.device("cuda")
GIB = 1 << 30


def policy_of(**settings: Any) -> PolicyActor:
    actor = Actor(optim=Optim(lr=1e-2), **settings)
    return PolicyActor(tiny(), actor=actor, temperature=1.0, device=CPU, total_steps=9)


def small_memory(policy: PolicyActor, most: int, *, after_backward: bool) -> list[int]:
    """Let passes of more than `most` tokens run out of memory; the tokens of each pass."""
    seen, score = [], policy.score

    def limited(micro, **given):
        seen.append(micro.num_tokens)
        columns = score(micro, **given)
        if micro.num_tokens > most:
            if after_backward and torch.is_grad_enabled():
                columns[0].sum().backward()  # the gradients of a pass that fails half-way
            raise torch.OutOfMemoryError
        return columns

    limited.keep = 0
    policy.score = limited
    return seen


@pytest.mark.parametrize("after_backward", [False, True])
def test_an_update_that_runs_out_of_memory_is_taken_again(after_backward: bool, caplog) -> None:
    plain, small = policy_of(), policy_of()
    seen = small_memory(small, TOTAL // 2 - 1, after_backward=after_backward)
    wanted, found = plain.update(BATCH), small.update(BATCH)
    assert seen[0] == TOTAL
    assert found == pytest.approx(wanted, rel=1e-4)
    for (name, mine), theirs in zip(
        small.model.module.named_parameters(), plain.model.module.parameters(), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4, msg=name)
    assert f"at most {TOTAL // 2} tokens" in caplog.text
    del seen[:]
    small.update(BATCH)
    assert max(seen) < TOTAL // 2  # the size is kept


def test_a_sequence_that_does_not_fit_says_what_to_set() -> None:
    policy = policy_of()
    small_memory(policy, LONGEST - 1, after_backward=False)
    with pytest.raises(UserError, match=f"one sequence of {LONGEST} tokens .*enable_gradient_checkpointing"):
        policy.update(BATCH)
    with pytest.raises(UserError, match=f"one sequence of {LONGEST} tokens"):
        policy.logprobs(BATCH)


def test_log_probs_too() -> None:
    policy = policy_of()
    wanted = policy.logprobs(BATCH)[0]
    small_memory(policy, TOTAL // 2 - 1, after_backward=False)
    torch.testing.assert_close(score_batch(policy.score, BATCH, policy.micro_batching, columns=2)[0], wanted)


def test_tokens_that_fit() -> None:
    plain = TokenBytes(1e6)
    assert tokens_that_fit(11 * GIB, plain, 100, alone=True) == int(10 * GIB * 0.85 / 1e6) // 1024 * 1024
    assert tokens_that_fit(1000 * GIB, plain, 100, alone=True) == MOST
    assert tokens_that_fit(0.0, plain, 3000, alone=False) == 3000  # a sequence cannot be split
    assert logits_that_fit(1000 * GIB, plain, 100, alone=True) == 0


def test_logits_are_kept_where_passes_stay_large() -> None:
    both = TokenBytes(1e6, 1e6)
    large, small = 61 * GIB, 13 * GIB
    tokens = tokens_that_fit(large, both, 100, alone=True)
    assert tokens == int(60 * GIB * 0.85 / 2e6) // 1024 * 1024
    assert logits_that_fit(large, both, tokens, alone=True) == tokens
    tokens = tokens_that_fit(small, both, 100, alone=True)
    assert tokens == tokens_that_fit(small, TokenBytes(1e6), 100, alone=True) < ENOUGH
    assert 0 < logits_that_fit(small, both, tokens, alone=True) < tokens
    assert logits_that_fit(small, both, 4 * tokens, alone=True) == 0


def test_activations_by_what_is_kept() -> None:
    module = tiny("qwen3")
    names = [name for name, _ in module.named_parameters()]
    shape = shape_of(module.config, names, names)
    sizes = shape.sizes
    assert (sizes.layers, shape.kept, sizes.hidden, sizes.queries, sizes.keys, shape.normed) == (2, 2, 64, 64, 32, True)
    plain = activation_bytes(shape, narrow=True, compiled=False, checkpointing=False)
    assert activation_bytes(shape, narrow=True, compiled=True, checkpointing=False) < plain
    assert activation_bytes(shape, narrow=True, compiled=False, checkpointing=True) < plain
    late = shape_of(module.config, [name for name in names if ".layers.1." in name], names)
    assert activation_bytes(late, narrow=True, compiled=False, checkpointing=False) == plain / 2


def test_passes_take_what_is_free(monkeypatch) -> None:
    config = compose(["model.path=none", "data.max_prompt_length=100", "data.max_response_length=200"], checks=())
    monkeypatch.setattr(passes, "free_memory", lambda device: 1.5 * GIB)
    policy = policy_of()
    sizes = micro_batching_of(Actor(), GPU)
    other = Reference(tiny(), temperature=1.0, micro_batching=sizes, device=CPU)
    passes.fit_passes(config, [policy], [other], ALONE)
    chosen = policy.micro_batching.max_tokens
    assert chosen is not None
    assert 2048 < chosen < MOST
    assert policy.micro_batching.max_tokens == other.micro_batching.max_tokens == chosen
    assert policy.score.keep == chosen
    said = f"passes of {chosen} tokens, not compiled, attention fa2, head triton with {chosen} kept logits"
    assert passes.description(policy) == said
    monkeypatch.setattr(passes, "free_memory", lambda device: 0.0)
    passes.fit_passes(config, [policy], [], ALONE)
    assert policy.micro_batching.max_tokens == 300
    own = policy_of(ppo_max_token_len_per_gpu=50)
    passes.fit_passes(config, [own], [], ALONE)
    assert own.micro_batching.max_tokens == 50
    assert own.score.keep == 0


def test_kept_logits_are_given_up_before_a_sequence(monkeypatch) -> None:
    wanted, policy = policy_of().update(BATCH), policy_of(ppo_max_token_len_per_gpu=1)
    policy.score.keep, score = LONGEST, policy.score

    class Small(type(score)):
        def __call__(self, *given, **named):
            if self.keep:
                raise torch.OutOfMemoryError
            return super().__call__(*given, **named)

    monkeypatch.setattr(score, "__class__", Small)
    assert policy.update(BATCH) == pytest.approx(wanted, rel=1e-4)
    assert score.keep == 0
