"""Half-precision copies of weights: the losses of autocast bit for bit, and its gradients."""

import pytest
import torch

from agentrl.config.schema import Actor, Optim
from agentrl.training import PolicyActor
from agentrl.training.model.compute_copies import summed
from agentrl.training.model.handle import ModelHandle
from tests.training.tiny import CPU, lora, random_batch, tiny

BATCH = random_batch([7, 1, 12, 4, 9, 6, 3, 8])


def checkpointing(module):
    module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return module


MODELS = {
    "tied": lambda: tiny("qwen3", tie_word_embeddings=True),
    "untied": lambda: tiny("qwen3"),
    "padding": lambda: tiny("llama", tie_word_embeddings=True, pad_token_id=int(BATCH.ids[5])),
    "lora": lambda: lora(tiny("llama")),
    "checkpointing": lambda: checkpointing(tiny("llama")),
}


def trained(make, monkeypatch, *, copies: bool, dtype=torch.bfloat16, steps: int = 1):
    """(gradients of the last step by name, metrics, log-probs after it, the actor)."""
    with monkeypatch.context() as patch:
        if not copies:
            patch.setattr(ModelHandle, "use_compute_copies", lambda model: None)
        module = ModelHandle(make(), compute_dtype=dtype)
        actor = Actor(ppo_max_token_len_per_gpu=20, optim=Optim(lr=1e-2))
        policy = PolicyActor(module, actor=actor, temperature=1.0, device=CPU, total_steps=9)
    gradients, step = {}, policy.optimizer.step

    def caught():
        gradients.update({n: s.parameter.grad.clone() for n, s in policy.optimizer.shards.items()})
        return step()

    policy.optimizer.step = caught
    for _ in range(steps):
        metrics = policy.update(BATCH)
    return gradients, metrics, policy.logprobs(BATCH)[0], policy


@pytest.mark.parametrize("kind", MODELS)
def test_an_update_is_that_of_autocast(kind, monkeypatch) -> None:
    mine, metrics, after, _ = trained(MODELS[kind], monkeypatch, copies=True)
    theirs, wanted, wanted_after, plain = trained(MODELS[kind], monkeypatch, copies=False)
    assert plain.model._copies is None
    assert mine.keys() == theirs.keys()
    for name in mine:
        assert (mine[name] - theirs[name]).norm() <= 1e-6 * theirs[name].norm(), name
    assert metrics["actor/pg_loss"] == wanted["actor/pg_loss"]
    assert (after - wanted_after).abs().max() < 0.1


def test_copies_follow_their_weights(monkeypatch) -> None:
    _, _, first, policy = trained(MODELS["tied"], monkeypatch, copies=True)
    own = dict(policy.model.module.named_parameters())
    assert all(p.dtype == torch.float32 for p in own.values())
    policy.update(BATCH)
    assert (policy.logprobs(BATCH)[0] - first).abs().max() > 0.1
    with torch.no_grad():  # as a checkpoint is loaded
        for parameter in own.values():
            parameter.copy_(parameter * 1.5)
    plain = MODELS["tied"]()
    plain.load_state_dict(policy.model.module.state_dict())
    plain = ModelHandle(plain, compute_dtype=torch.bfloat16)
    reloaded = PolicyActor(plain, actor=Actor(), temperature=1.0, device=CPU, total_steps=9)
    assert torch.equal(policy.logprobs(BATCH)[0], reloaded.logprobs(BATCH)[0])


def test_float32_has_no_copies(monkeypatch) -> None:
    *_, policy = trained(MODELS["tied"], monkeypatch, copies=True, dtype=None)
    assert policy.model._copies is None


def test_rows_of_one_id_add_up() -> None:
    ids, rows = torch.tensor([4, 0, 4, 2, 4, 0]), torch.randn(6, 3)
    once, sums = summed(ids, rows)
    assert sums[3:].abs().max() == 0
    assert once[:3].tolist() == [0, 2, 4]
    wanted = torch.zeros(5, 3).index_add_(0, ids, rows)
    torch.testing.assert_close(torch.zeros(5, 3).index_add_(0, once, sums), wanted)
