"""A prompt that several sequences of a pass share is computed once."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from agentrl.config.schema import Actor, Config, Optim, Rollout
from agentrl.core.errors import UserError
from agentrl.training import Batch, PolicyActor, pack_ledgers
from agentrl.training.batches.shared_prompts import (
    Prompt,
    families,
    pass_tokens,
    repeated,
    sequence_prompts,
    shared_prompts,
)
from agentrl.training.model.handle import ModelHandle
from agentrl.training.model.packing_probe import pack_where_exact
from agentrl.training.parallel.ranks import Ranks
from agentrl.training.roles.making import Roles
from agentrl.training.update.micro_batches import MicroBatching, check_shares
from agentrl.trajectory.ledger import Ledger, Source
from tests.training.tiny import lora, tiny

CPU = torch.device("cpu")


def grouped(groups: list[tuple[int, list[int]]]) -> Batch:
    """Sequences of each group: tokens of the prompt, and of the answers, which have a tool's tokens in their middle."""
    draw, ledgers, owners = torch.Generator().manual_seed(0), [], []
    for number, (prompt, answers) in enumerate(groups):
        ids = torch.randint(40, (prompt,), generator=draw).tolist()
        for answer in answers:
            own = torch.randint(40, (answer,), generator=draw).tolist()
            ledger = Ledger()
            ledger.append_prompt(ids)
            ledger.append_model(own[: answer // 2], [-1.0] * (answer // 2), turn=0, version=0)
            if rest := own[answer // 2 + 1 :]:
                ledger.append_observation(own[answer // 2 : answer // 2 + 1], Source.TOOL, turn=1)
                ledger.append_model(rest, [-1.0] * len(rest), turn=1, version=0)
            ledgers.append(ledger)
            owners.append(number)
    batch = pack_ledgers(ledgers, group=owners)
    batch.advantages = torch.randn(batch.num_tokens, generator=draw) * batch.mask
    return batch


BATCH = [(9, [6, 11, 4]), (5, [8]), (12, [5, 5, 7, 9]), (3, [2, 30])]


def checkpointed(module: Any) -> Any:
    module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return module


def hybrid() -> Any:
    module = tiny("lfm2", packed=False, layer_types=["conv", "full_attention"], block_dim=64, conv_dim=64)
    assert pack_where_exact(ModelHandle(module), CPU)
    return module


MODELS: dict[str, Callable[[], Any]] = {
    "plain": lambda: tiny("qwen3"),
    "tied": lambda: tiny("qwen3", tie_word_embeddings=True),
    "experts": lambda: tiny("qwen3_moe"),
    "checkpointed": lambda: checkpointed(tiny("qwen3")),
    "adapted": lambda: lora(tiny("qwen3")),
    "hybrid": lambda: hybrid(),
    "hybrid, checkpointed": lambda: checkpointed(hybrid()),
    "adapted and checkpointed": lambda: checkpointed(lora(tiny("qwen3"))),
}


def update(module: Any, *, shares: bool) -> tuple[dict[str, float], dict[str, torch.Tensor], int]:
    """Metrics of an update, its gradients, and the tokens of its forward passes."""
    actor = Actor(ppo_max_token_len_per_gpu=60, ppo_mini_batch_size=8, optim=Optim(lr=0.0))
    policy = PolicyActor(module, actor=actor, temperature=0.9, device=CPU, total_steps=9, shares=shares)
    found, step, tokens = {}, policy.optimizer.step, []

    def caught() -> float:
        found.update({name: shard.parameter.grad.clone() for name, shard in policy.optimizer.shards.items()})
        return step()

    policy.optimizer.step = caught  # type: ignore[method-assign]
    embedding = module.get_input_embeddings()
    embedding.register_forward_pre_hook(lambda _, given: tokens.append(given[0].shape[1]))
    return policy.update(grouped(BATCH)), found, sum(tokens)


@pytest.mark.parametrize("kind", MODELS)
def test_values_and_gradients_are_those_of_whole_sequences(kind: str) -> None:
    shared, mine, fewer = update(MODELS[kind](), shares=True)
    whole, theirs, tokens = update(MODELS[kind](), shares=False)
    count = grouped(BATCH).num_tokens
    assert tokens >= count  # a CPU's passes are filled up to few sizes
    assert fewer < count - 9 - 2 * 12  # of groups that a pass may split, one prompt more
    assert all(gradient.any() for gradient in theirs.values())
    for name in theirs:
        torch.testing.assert_close(mine[name], theirs[name], atol=1e-5, rtol=1e-4)
    for name in ("actor/pg_loss", "actor/entropy", "actor/grad_norm"):
        assert shared[name] == pytest.approx(whole[name], abs=1e-5)


def test_log_probs_are_those_of_whole_sequences_with_a_sliding_window() -> None:
    module = tiny("mistral", sliding_window=6)
    policies = [
        PolicyActor(module, actor=Actor(), temperature=1.0, device=CPU, total_steps=9, shares=shares)
        for shares in (True, False)
    ]
    for found, wanted in zip(*(policy.logprobs(grouped(BATCH)) for policy in policies), strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


def test_the_layout_of_a_pass() -> None:
    ids, mask = np.array([7, 8, 1, 7, 8, 2, 3, 7, 9, 4]), np.array([0, 0, 1, 0, 0, 1, 1, 0, 0, 1], bool)
    prompts = sequence_prompts(ids, mask, [3, 4, 3])
    assert prompts == [(0, 2), (0, 2), (1, 2)]
    layout = shared_prompts([3, 4, 3], prompts, CPU)
    assert layout.kept.tolist() == [0, 1, 2, 5, 6, 7, 8, 9]
    assert layout.seen.tolist() == [0, 1, 2, 0, 1, 3, 4, 5, 6, 7]
    assert layout.cu_seqlens.tolist() == [0, 3, 5, 8]
    assert ids[layout.kept.numpy()][layout.seen.numpy()].tolist() == ids.tolist()
    assert repeated(prompts) == [2]


def test_sequences_without_a_trained_token_keep_one_of_their_own() -> None:
    assert sequence_prompts(np.array([5, 5, 5, 5]), np.zeros(4, bool), [2, 2]) == [(0, 1), (0, 1)]


def test_families_stay_together_as_far_as_a_pass_has_room() -> None:
    prompts, lengths = [Prompt(0, 80), Prompt(1, 5), Prompt(0, 80), Prompt(0, 80)], [100, 9, 100, 100]
    assert families(lengths, prompts, None) == [[0, 2, 3], [1]]
    assert pass_tokens([100, 100, 100], [Prompt(0, 80)] * 3) == 100 + 2 * (20 + 10)
    assert families(lengths, prompts, 160) == [[0, 2, 3], [1]]
    assert families(lengths, prompts, 159) == [[0, 2], [3], [1]]
    assert families(lengths, prompts, 50) == [[0], [2], [3], [1]]  # a sequence may be longer than a pass


def test_micro_batches_have_each_sequence_once_within_the_limit() -> None:
    batch, sizes = grouped(BATCH), MicroBatching(max_tokens=60, shares=True)
    parts = sizes.split(batch)
    assert sorted(i for part in parts for i in part) == list(range(batch.num_sequences))
    for part in parts:
        micro = sizes.micro_batch(batch, part)
        assert micro.shared is not None
        assert micro.shared.kept.numel() <= 60
    assert len(sizes.halved(batch).split(batch)) > len(parts)


def test_the_key_must_be_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    model, apart = (ModelHandle(tiny("qwen3")) for _ in range(2))
    apart.base.set_attn_implementation("sdpa")
    check_shares(model, CPU, Ranks(0, 2))
    for refused, ranks in ((apart, Ranks()), (model, Ranks(0, 2, seq_world=2))):
        with pytest.raises(UserError, match=r"actor\.share_prompts=true needs a model whose sequences"):
            check_shares(refused, CPU, ranks)
    monkeypatch.setattr(ModelHandle, "shares_keys", lambda model, device: False)
    with pytest.raises(UserError, match="attention by fa2 computes whole sequences only"):
        check_shares(model, CPU, Ranks())


@pytest.mark.parametrize("chosen", [False, True, None])
def test_the_key_decides(chosen: bool | None) -> None:
    config = Config(actor=Actor(share_prompts=chosen))
    roles = Roles(config, CPU, Ranks())
    assert roles.actor(ModelHandle(tiny("qwen3")), None, None, 9).micro_batching.shares == bool(chosen)


def test_without_the_key_gpus_share(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, model = torch.device("cuda"), ModelHandle(tiny("qwen3"), compute_dtype=torch.bfloat16)
    monkeypatch.setattr(ModelHandle, "shares_keys", lambda model, device: True)
    assert Roles(Config(rollout=Rollout(n=8)), gpu, Ranks()).shares(model)
    assert not Roles(Config(rollout=Rollout(n=1)), gpu, Ranks()).shares(model)
    assert Roles(Config(rollout=Rollout(n=8)), gpu, Ranks(0, 2)).shares(model)
    assert not Roles(Config(rollout=Rollout(n=8)), gpu, Ranks(0, 2, seq_world=2)).shares(model)
    monkeypatch.setattr(ModelHandle, "shares_keys", lambda model, device: False)
    assert not Roles(Config(rollout=Rollout(n=8)), gpu, Ranks()).shares(model)
