"""What does not go together with a bound above 0 is said in one line."""

import pytest

from agentrl.config import compose
from agentrl.config.checks import ranges, staleness
from agentrl.config.derived import deterministic
from agentrl.config.schema import Rollout, Trainer
from agentrl.config.validate import validate
from agentrl.core.errors import UserError

CHECKS = (ranges.ranges, staleness.bound, staleness.corrected, staleness.filtered_batches)
ONE = "algorithm.filter_groups.max_num_gen_batches=1"
FILTER = "algorithm.filter_groups.enable=true"
CORRECTION = "algorithm.rollout_correction"


def notes(*overrides: str) -> list[str]:
    return validate(compose(overrides, checks=()), CHECKS)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["trainer.max_staleness=-1"], "trainer.max_staleness=-1: must be at least 0"),
        (["rollout.deterministic=true"], "depend on timing; set trainer.max_staleness=0"),
        (["rollout.top_p=0.9"], "rollout.top_p=0.9 with trainer.max_staleness=2"),
        (["rollout.top_k=20"], "rollout.top_k=20 with trainer.max_staleness=2"),
        ([FILTER, "data.train_batch_size=4", "data.gen_batch_size=12"], "set it to 8 or less"),
        ([FILTER, "data.train_batch_size=4", "data.gen_batch_size=2", ONE], "set it to 2 or more"),
    ],
)
def test_refused(overrides: list[str], expected: str) -> None:
    with pytest.raises(UserError) as caught:
        notes("trainer.max_staleness=2", *overrides)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_a_correction_there_is_a_note() -> None:
    (note,) = notes("trainer.max_staleness=2", f"{CORRECTION}.rollout_is=null")
    assert "as if the present ones had drawn them" in note
    for more in ("bypass_mode=true", "rollout_rs=token"):
        assert not notes("trainer.max_staleness=2", f"{CORRECTION}.rollout_is=null", f"{CORRECTION}.{more}")
    assert not notes(f"{CORRECTION}.rollout_is=null", "rollout.top_p=0.9", "rollout.deterministic=true")


@pytest.mark.parametrize("preset", ["demo", "tiny", "code"])
def test_a_preset_that_repeats_itself_needs_one_key(preset: str) -> None:
    settled = compose([], config_name=preset, checks=())
    assert deterministic(settled.trainer, settled.rollout)
    ahead = compose(["trainer.max_staleness=4"], config_name=preset, checks=CHECKS)
    assert not deterministic(ahead.trainer, ahead.rollout)
    assert not deterministic(Trainer(), Rollout())


@pytest.mark.parametrize(
    ("given", "bound"),
    [
        ("trainer.v1.trainer_mode=sync", 0),
        ("trainer.v1.trainer_mode=colocate_async", 1),
        ("trainer.v1.trainer_mode=separate_async", 1),
        ("async_training.staleness_threshold=0", 0),
    ],
)
def test_verls_modes(given: str, bound: int) -> None:
    assert compose([given], checks=()).trainer.max_staleness == bound


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("async_training.staleness_threshold=0.1", "set trainer.max_staleness=1"),
        ("async_training.trigger_parameter_sync_step=4", "set it to 1"),
    ],
)
def test_verls_keys_without_an_equivalent(given: str, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        compose([given], checks=())
