"""While a batch is waited for, finished groups are begun: once, in parts of a useful size, without the last ones."""

from collections.abc import Sequence

import pytest
import torch

from agentrl.algorithms import ADVANTAGES, estimate
from agentrl.config import compose
from agentrl.config.schema import Config
from agentrl.training import Batch, pack_tokens
from agentrl.training.update.advantages import advantages_of, kl_of
from agentrl.training.update.finished_groups import FinishedGroups, known_early
from agentrl.trajectory.trajectory import Outcome, Trajectory
from tests.registries import names
from tests.training.tiny import ledger, random_batch, trajectory


def config_of(*overrides: str) -> Config:
    return compose(["rollout.n=2", "trainer.max_staleness=2", *overrides], checks=())


class Begun:
    """Keeps the parts of updates."""

    def __init__(self, use: bool = True) -> None:
        self.use, self.parts = use, list[Batch]()
        self.learner = self

    def pack(self, trajectories: Sequence[Trajectory], version: int | None) -> Batch:
        return pack_tokens(trajectories, version)

    def can_accumulate_early(self) -> bool:
        return self.use

    def accumulate_early(self, part: Batch) -> None:
        self.parts.append(part)

    def sizes(self) -> list[int]:
        return [part.num_sequences for part in self.parts]


def look_of(begun: Begun, *overrides: str) -> FinishedGroups:
    config = config_of(*overrides)
    return FinishedGroups(config, begun, advantages_of(config, kl_of(config.algorithm), lambda found: None))


def made(place: int, **more: object) -> Trajectory:
    """The trajectory at a place of a batch with two a group."""
    fields = {"uid": f"r{place // 2}", "sample": place % 2, "reward": float(place % 2)} | more
    return trajectory(ledger(3, 2, seed=place), **fields)  # type: ignore[arg-type]


def test_groups_are_begun_once_when_they_are_whole() -> None:
    begun = Begun()
    look, finished = look_of(begun), {0: made(0), 2: made(2), 3: made(3)}
    look(1, finished, 4)
    look(1, finished, 4)
    assert begun.sizes() == [2]
    finished |= {1: made(1), 7: made(7)}
    look(1, finished, 4)
    assert begun.sizes() == [2, 2]
    assert begun.parts[0].advantages is not None
    assert begun.parts[0].advantages.unique().numel() == 3  # those of a group of two, and 0 between the turns
    look(2, finished, 4)  # another step's batch
    assert begun.sizes() == [2, 2, 4]


def test_parts_are_not_small_and_the_last_groups_are_the_updates() -> None:
    begun, finished = Begun(), {i: made(i) for i in range(2)}
    look = look_of(begun)
    look(1, finished, 9)  # fewer than an eighth
    assert not begun.parts
    finished |= {i: made(i) for i in range(2, 4)}
    look(1, finished, 9)
    assert begun.sizes() == [4]
    look(1, {i: made(i) for i in range(18)}, 9)  # all are there: the update comes at once
    assert begun.sizes() == [4]


def test_trajectories_without_a_reward_are_left_out() -> None:
    begun = Begun()
    lost = made(1, outcome=Outcome.INFRA_ERROR, reward=None)
    look_of(begun)(1, {0: made(0), 1: lost}, 4)
    assert begun.sizes() == [1]
    look_of(begun)(1, {0: made(0, outcome=Outcome.INFRA_ERROR, reward=None), 1: lost}, 4)
    assert begun.sizes() == [1]


def test_advantages_of_a_part_are_those_of_the_batch() -> None:
    begun, all_of = Begun(), {i: made(i, reward=float(i * i % 5)) for i in range(8)}
    look_of(begun)(1, {i: all_of[i] for i in (2, 3, 6, 7)}, 4)
    config = config_of()
    whole = Begun()
    FinishedGroups(config, whole, advantages_of(config, kl_of(config.algorithm), lambda found: None))(1, {**all_of}, 5)
    assert begun.parts[0].advantages is not None
    assert whole.parts[0].advantages is not None
    theirs = whole.parts[0].advantages[whole.parts[0].tokens_of([2, 3, 6, 7])]
    assert torch.equal(begun.parts[0].advantages, theirs)


def test_nothing_is_begun_that_is_of_no_use() -> None:
    begun = Begun(use=False)
    look_of(begun)(1, {i: made(i) for i in range(4)}, 4)
    assert not begun.parts


@pytest.mark.parametrize(
    "override",
    [
        "algorithm.filter_groups.enable=true",
        "algorithm.use_pf_ppo=true",
        "algorithm.use_kl_in_reward=true",
        "algorithm.adv_estimator=remax",
        "algorithm.adv_estimator=gpg",
        "rollout.deterministic=true",
    ],
)
def test_runs_that_choose_later_or_repeat_bit_by_bit_do_not(override: str) -> None:
    assert known_early(config_of())
    assert not known_early(config_of(override))


@pytest.mark.parametrize("name", [name for name in names(ADVANTAGES) if ADVANTAGES.mark(name, "apart", "")])
def test_estimators_that_say_so_compute_a_prompt_apart_from_others(name: str) -> None:
    batch = random_batch([7, 9, 12, 4, 9, 6])
    batch.group = torch.tensor([0, 0, 1, 1, 2, 2])

    def of(own: Batch) -> torch.Tensor:
        columns = own.rewards, own.mask, own.cu_seqlens, own.trajectory, own.group
        return estimate(name, *columns, gamma=0.9)[0]

    assert torch.equal(of(batch)[batch.tokens_of([2, 3])], of(batch.select([2, 3])))
