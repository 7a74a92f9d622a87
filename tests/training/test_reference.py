"""The reference keeps the initial policy while the policy trains."""

import copy
from pathlib import Path

import pytest
import torch

from agentrl.config import compose
from agentrl.config.checks.algorithm import refreshed_reference
from agentrl.config.schema import Actor, Algorithm, Config, Model, Optim, Ref
from agentrl.core.errors import UserError
from agentrl.training import PolicyActor
from agentrl.training.learner import Learner
from agentrl.training.model.handle import ModelHandle
from agentrl.training.roles.frozen import Reference
from agentrl.training.update.micro_batches import MicroBatching
from tests.config.test_effects import model  # noqa: F401 - a fixture
from tests.training.tiny import CPU, lora, random_batch, tiny

LENGTHS = [7, 1, 12, 4, 9, 6, 3, 8]


@pytest.mark.parametrize("adapter", [False, True])
def test_the_reference_keeps_the_initial_policy(adapter: bool) -> None:
    batch = random_batch(LENGTHS)
    module = lora(tiny(), std=0.0) if adapter else tiny()
    actor = PolicyActor(module, actor=Actor(optim=Optim(lr=1e-2)), temperature=0.7, device=CPU, total_steps=9)
    held = module if adapter else copy.deepcopy(module)
    reference = Reference(held, temperature=0.7, micro_batching=MicroBatching(max_tokens=20), device=CPU)
    start = actor.logprobs(batch)[0]
    torch.testing.assert_close(reference.logprobs(batch), start, atol=1e-5, rtol=1e-5)
    actor.update(batch)
    torch.testing.assert_close(reference.logprobs(batch), start, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(actor.logprobs(batch)[0], start)


def test_an_offloaded_reference_gives_the_same_and_is_on_the_cpu() -> None:
    batch = random_batch(LENGTHS)
    there, away = (
        Reference(tiny(), temperature=1.0, micro_batching=MicroBatching(), device=CPU, offload=o) for o in (False, True)
    )
    assert torch.equal(there.logprobs(batch), away.logprobs(batch))
    assert all(parameter.device == CPU for parameter in away.model.module.parameters())


def refreshed(module: torch.nn.Module, seed: int) -> Reference:
    reference = Reference(tiny(seed=seed), temperature=0.7, micro_batching=MicroBatching(), device=CPU)
    reference.copy_from(ModelHandle.of(module))
    return reference


def test_a_refreshed_reference_is_the_policy_bit_for_bit_and_stays() -> None:
    batch, module = random_batch(LENGTHS), tiny()
    reference = refreshed(module, seed=5)
    actor = PolicyActor(module, actor=Actor(optim=Optim(lr=1e-2)), temperature=0.7, device=CPU, total_steps=9)
    start = actor.logprobs(batch)[0]
    assert torch.equal(reference.logprobs(batch), start)
    actor.update(batch)
    assert torch.equal(reference.logprobs(batch), start)
    other = Reference(tiny(seed=6), temperature=0.7, micro_batching=MicroBatching(), device=CPU)
    other.load_state_dict(reference.state_dict())  # as from a checkpoint
    assert torch.equal(other.logprobs(batch), start)


def config(path: str, folder: Path, *more: str) -> Config:
    settings = [f"model.path={path}", f"trainer.default_local_dir={folder}", "trainer.device=cpu", *more]
    return compose([*settings, "actor.use_kl_loss=true", "actor.optim.lr=0.01"], checks=())


def test_a_run_refreshes_it_and_resumes_with_it(model: Path, tmp_path: Path) -> None:  # noqa: F811
    learner = Learner(config(str(model), tmp_path, "ref.update_freq=2"))
    learner.prepare(9)
    kls = []
    for step in (1, 2, 3):
        kls.append(kl(learner, learner.update(learner.compute_logprobs(random_batch(LENGTHS)))))
        if step == 2:
            learner.save(tmp_path / "checkpoints", 2, {})
    assert kls[0] > 0
    assert kls[1] == 0  # the reference is the policy of step 2
    assert kls[2] > 0
    again = Learner(config(str(model), tmp_path, "ref.update_freq=2"))
    again.prepare(9)
    again.load(tmp_path / "checkpoints" / "global_step_2")
    assert kl(again, again.update(again.compute_logprobs(random_batch(LENGTHS)))) == kls[2]


def kl(learner: Learner, _: object) -> float:
    """Largest difference between reference and policy."""
    batch = random_batch(LENGTHS)
    assert learner.reference is not None
    assert learner.actor is not None
    return float((learner.reference.logprobs(batch) - learner.actor.logprobs(batch)[0]).abs().max())


def test_a_reference_without_weights_of_its_own_is_refused(model: Path, tmp_path: Path) -> None:  # noqa: F811
    with pytest.raises(UserError, match="cannot be refreshed"):
        refreshed_reference(Ref(update_freq=3), Model(lora_rank=8), Actor(use_kl_loss=True), Algorithm())
    learner = Learner(config(str(model), tmp_path, "model.lora_rank=4", "ref.update_freq=2"))
    with pytest.raises(UserError, match="without its adapter"):
        learner.prepare(9)
    assert "no effect" in str(refreshed_reference(Ref(update_freq=3), Model(), Actor(), Algorithm()))
