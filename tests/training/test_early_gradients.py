"""An update with early gradients of its first groups is that of the whole batch."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from agentrl.algorithms.aggregate import LOSS_AGG_MODES
from agentrl.config.schema import Actor, Optim, RolloutCorrection
from agentrl.training import Batch, PolicyActor
from agentrl.training.model.handle import ModelHandle
from tests.training.tiny import CPU, lora, random_batch, tiny

LENGTHS = [7, 1, 12, 4, 9, 6, 3, 8, 5, 2]
GROUPS = [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


def actor_of(module: Any, **settings: Any) -> PolicyActor:
    return PolicyActor(
        module,
        actor=Actor(**({"ppo_mini_batch_size": 99, "optim": Optim(lr=1e-3), "grad_clip": 0.0} | settings)),
        temperature=1.0,
        device=CPU,
        total_steps=10,
        max_response_length=20,
        rollout_correction=RolloutCorrection(),
    )


def batch_of() -> Batch:
    """Some advantages are 0, some trajectories have two sequences, some tokens are of older weights."""
    batch = random_batch(LENGTHS)
    assert batch.advantages is not None
    batch.advantages[batch.tokens_of([2, 3, 8])] = 0.0
    batch.trajectory = torch.tensor([0, 0, 1, 2, 3, 4, 5, 6, 7, 7])
    batch.stale = batch.mask & (torch.arange(batch.num_tokens) % 3 == 0)
    return batch


def part_of(batch: Batch, groups: Sequence[int]) -> Batch:
    """Whole groups as they are packed before the others are there."""
    part = batch.select([i for group in groups for i in GROUPS[group]])
    part.trajectory = part.trajectory.unique(return_inverse=True)[1]
    part.group = part.group.unique(return_inverse=True)[1]
    return part


def updated(actor: PolicyActor, batch: Batch, *parts: Sequence[int]) -> tuple[dict[str, Tensor], dict[str, float]]:
    """(the gradient that the optimizer gets, metrics) of an update whose parts were begun."""
    caught: dict[str, Tensor] = {}
    step = actor.optimizer.step

    def keep() -> float:
        caught.update({n: p.grad.clone() for n, p in actor.model.module.named_parameters() if p.grad is not None})
        return step()

    actor.optimizer.step = keep  # type: ignore[method-assign]
    for groups in parts:
        actor.early.accumulate(part_of(batch, groups))
    return caught, actor.update(batch)


def assert_same(one: tuple[Any, Any], other: tuple[Any, Any]) -> None:
    assert one[0].keys() == other[0].keys()
    for name, gradient in one[0].items():
        torch.testing.assert_close(gradient, other[0][name], rtol=1e-4, atol=1e-6)
    assert one[1] == pytest.approx(other[1], rel=1e-4, abs=1e-6)


@pytest.mark.prevents(
    "gradients computed before a batch is complete have other weights in the loss, or are of trajectories that "
    "the step does not train on"
)
@pytest.mark.parametrize("mode", LOSS_AGG_MODES)
@pytest.mark.parametrize("parts", [[[1]], [[3, 0], [1]], [[4], [2], [0], [1], [3]], [[0, 1, 2, 3, 4]]])
def test_gradient_and_metrics_are_those_of_the_whole(mode: str, parts: list[list[int]]) -> None:
    whole = updated(actor_of(tiny(), loss_agg_mode=mode, ppo_max_token_len_per_gpu=40), batch_of())
    early = actor_of(tiny(), loss_agg_mode=mode, ppo_max_token_len_per_gpu=40)
    assert_same(updated(early, batch_of(), *parts), whole)
    assert early.early.pending is None


def test_layers_that_compute_in_half_precision_and_adapters() -> None:
    for make in (lambda: lora(tiny()), lambda: half(tiny())):
        whole, early = (updated(actor_of(make()), batch_of(), *parts) for parts in ([], [[3, 0], [1]]))
        for name, gradient in early[0].items():
            torch.testing.assert_close(gradient, whole[0][name], rtol=0.05, atol=1e-3)
        assert early[1]["actor/grad_norm"] == pytest.approx(whole[1]["actor/grad_norm"], rel=0.01)


def half(module: Any) -> Any:
    return ModelHandle(module, compute_dtype=torch.bfloat16)


def counted(actor: PolicyActor) -> list[int]:
    """The sequences of each pass of an actor from now on."""
    passes: list[int] = []
    loss = actor.loss

    def counting(micro: Batch, report: Any) -> Tensor:
        passes.append(micro.num_sequences)
        return loss(micro, report)

    actor.loss = counting  # type: ignore[method-assign]
    return passes


def test_what_was_begun_is_not_computed_again() -> None:
    actor, batch = actor_of(tiny()), batch_of()
    actor.early.accumulate(part_of(batch, [0, 2]))
    passes = counted(actor)
    actor.update(batch)
    assert sum(passes) == len(LENGTHS) - 4


@pytest.mark.parametrize("change", ["an advantage", "a token", "a mask", "a sequence that is gone"])
def test_a_batch_that_differs_is_computed_whole(change: str) -> None:
    batch, actor = batch_of(), actor_of(tiny())
    assert batch.advantages is not None
    actor.early.accumulate(part_of(batch, [0, 2]))
    first = int(batch.tokens_of([4])[batch.mask[batch.tokens_of([4])]][0])
    match change:
        case "an advantage":
            batch = replace(batch, advantages=batch.advantages.clone())
            batch.advantages[first] += 0.5  # type: ignore[index]
        case "a token":
            batch = replace(batch, ids=batch.ids.clone())
            batch.ids[first] += 1
        case "a mask":
            batch = replace(batch, mask=batch.mask.clone())
            batch.mask[first] = False
        case _:
            batch = batch.select([0, 1, 2, 3, 5, 6, 7, 8, 9])
    passes = counted(actor)
    assert_same(updated(actor, batch), updated(actor_of(tiny()), batch))
    assert sum(passes) == batch.num_sequences


def test_an_update_that_was_begun_in_vain_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    actor, batch = actor_of(tiny()), batch_of()
    other = replace(batch, advantages=batch.advantages + 0.5)  # type: ignore[operator]
    for trained_on, refused in ((other, True), (other, True), (batch, False)):
        actor.early.accumulate(part_of(batch, [0]))
        actor.update(trained_on)
        assert actor.early.refused is refused
        assert (actor.early.used is None) is refused
    actor.update(batch)
    assert not actor.early.refused
    (said,) = (record.message for record in caplog.records if "begun early" in record.message)
    assert "advantages of a group depended on groups that were not finished" in said


def test_an_update_without_room_forgets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    actor, batch = actor_of(tiny(), ppo_max_token_len_per_gpu=400), batch_of()
    actor.early.accumulate(part_of(batch, [0, 2]))
    loss, failing = actor.loss, [True]

    def once(micro: Batch, report: Any) -> Tensor:
        if failing.pop() if failing else False:
            raise torch.OutOfMemoryError
        return loss(micro, report)

    monkeypatch.setattr(actor, "loss", once)
    assert_same(updated(actor, batch), updated(actor_of(tiny()), batch))


def test_a_part_without_room_is_left_to_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    actor, batch = actor_of(tiny(), ppo_max_token_len_per_gpu=400), batch_of()
    actor.early.accumulate(part_of(batch, [0]))
    with monkeypatch.context() as patched:
        patched.setattr(actor, "run_passes", lambda *_: actor.clear_gradients())
        actor.early.accumulate(part_of(batch, [2]))
    assert actor.early.pending is None
    assert_same(updated(actor, batch), updated(actor_of(tiny()), batch))


def test_only_updates_that_are_one_sum_are_begun() -> None:
    assert actor_of(tiny()).is_additive(5)
    assert not actor_of(tiny(), ppo_mini_batch_size=4).is_additive(5)
    assert not actor_of(tiny(), ppo_epochs=2).is_additive(5)
