"""Numbers of processes are refused, or have no effect, with the reason."""

import pytest

from agentrl.config import compose
from agentrl.config.checks.fit import rollout_workers, split_experts
from agentrl.config.checks.ranges import ranges
from agentrl.config.derived import deterministic
from agentrl.config.schema import Config, Rollout, Trainer
from agentrl.config.schema.rollout import Agent
from agentrl.config.schema.sft import SftConfig
from agentrl.core.errors import UserError

TWO = Trainer(n_gpus_per_node=2)


def rollout(count: int, **settings: bool | None) -> Rollout:
    return Rollout(agent=Agent(num_workers=count), **settings)  # type: ignore[arg-type]


def test_workers_fit_the_run() -> None:
    assert rollout_workers(rollout(0), Trainer()) is None
    assert rollout_workers(rollout(8), TWO) is None
    assert "has no effect in a run of one process" in (rollout_workers(rollout(8), Trainer()) or "")
    with pytest.raises(UserError, match="must be at least 0"):
        ranges(Config(rollout=rollout(-1)))
    with pytest.raises(UserError, match="rollout.deterministic=true"):
        rollout_workers(rollout(2, deterministic=True), TWO)


def test_an_engine_does_not_wait_for_requests_of_several_processes() -> None:
    """It would wait for a trajectory that a worker has not begun."""
    assert deterministic(TWO, rollout(0, deterministic=None))
    assert not deterministic(TWO, rollout(2, deterministic=None))
    assert deterministic(Trainer(), rollout(2, deterministic=None))  # one process has no workers


def test_split_experts_need_processes() -> None:
    two = compose(["trainer.n_gpus_per_node=2", "actor.fsdp_config.expert_parallel_size=2"], checks=())
    assert split_experts(two) is None
    three = compose(["trainer.n_gpus_per_node=2", "actor.fsdp_config.expert_parallel_size=3"], checks=())
    with pytest.raises(UserError, match="expert_parallel_size=3 does not divide the 2 processes"):
        split_experts(three)
    sft = compose(["fsdp_config.expert_parallel_size=2"], config_name="sft", schema=SftConfig, checks=())
    with pytest.raises(UserError, match="fsdp_config.expert_parallel_size=2 does not divide the 1 processes"):
        split_experts(sft)
