"""The sizes of passes: chosen by memory, and smaller ones after a pass that did not fit."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from agentrl.config import compose
from agentrl.config.schema import Actor, Optim
from agentrl.core.errors import InfraError, UserError
from agentrl.training import PolicyActor
from agentrl.training.checkpoint.restarts import PassTooLarge
from agentrl.training.model.grouped_experts import use_grouped_experts
from agentrl.training.parallel.experts import SplitExperts
from agentrl.training.parallel.ranks import ALONE, Ranks
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
from agentrl.training.update.micro_batches import MicroBatching, fits, micro_batching_of, score_batch
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

    limited.keep = 0  # type: ignore[attr-defined]
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


def test_passes_shrink_where_a_later_step_has_less_memory(monkeypatch) -> None:
    """The moments of the optimizer take what the passes of the first step had, and these took more than estimated."""
    config = compose(["model.path=none", "data.max_prompt_length=100", "data.max_response_length=200"], checks=())
    free = 2.0 * GIB
    monkeypatch.setattr(passes, "free_memory", lambda device: free)
    policy = policy_of()
    passes.fit_passes(config, [policy], [], ALONE)
    first = policy.micro_batching.max_tokens
    assert first is not None
    policy.taken, policy.fullest = int(0.4 * GIB), first
    passes.fit_passes(config, [policy], [], ALONE)
    assert policy.micro_batching.max_tokens == first  # it fits
    policy.taken = 3 * GIB
    passes.fit_passes(config, [policy], [], ALONE)
    assert policy.micro_batching.max_tokens is not None
    assert policy.micro_batching.max_tokens < first // 2
    lower, free = policy.micro_batching.max_tokens, 9.0 * GIB
    passes.fit_passes(config, [policy], [], ALONE)
    assert policy.micro_batching.max_tokens == lower


def test_on_several_ranks_a_pass_without_memory_asks_for_smaller_ones() -> None:
    def run() -> None:
        raise torch.OutOfMemoryError

    sizes = MicroBatching(max_tokens=TOTAL)
    with pytest.raises(PassTooLarge, match="does not fit") as raised:
        fits(run, Ranks(world=2), sizes.half(BATCH))
    assert raised.value.tokens == TOTAL // 2
    assert replace(sizes, max_tokens=LONGEST + 1).half(BATCH) == LONGEST
    with pytest.raises(InfraError, match="does not fit"):  # no UserError, after which the run would be saved
        fits(run, Ranks(world=2), replace(sizes, max_tokens=LONGEST).half(BATCH))


@pytest.mark.parametrize("narrow", [False, True])
def test_activations_of_experts(narrow: bool) -> None:
    """The bytes that autograd saves of a layer whose experts ranks split, here one rank."""
    fields = {"num_experts": 8, "num_experts_per_tok": 4, "moe_intermediate_size": 96, "num_key_value_heads": 1}
    module = tiny("qwen3_moe", packed=False, hidden_size=256, num_attention_heads=8, head_dim=32, **fields)
    use_grouped_experts(module)
    module.to(torch.bfloat16 if narrow else torch.float32)
    own = {p.untyped_storage().data_ptr() for p in module.parameters()}
    saved: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        saved.update({} if storage.data_ptr() in own else {storage.data_ptr(): storage})
        return tensor

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for layer in module.model.layers:
            layer.mlp.experts.forward = SplitExperts(layer.mlp.experts, dist.group.WORLD)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            module.base_model(input_ids=torch.arange(96)[None], use_cache=False)
    finally:
        dist.destroy_process_group()
    names = [name for name, _ in module.named_parameters()]
    shape = shape_of(module.config, names, names)
    estimate = activation_bytes(shape, narrow=narrow, compiled=False, checkpointing=False)
    assert estimate == pytest.approx(sum(storage.nbytes() for storage in saved.values()) / 96, rel=0.15)


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
