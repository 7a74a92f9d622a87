"""Rollout correction in verl's words: what is accepted as it is, and what makes no sense together."""

from typing import Any

import pytest

from agentrl.config import compose
from agentrl.config.keys import schema_keys
from agentrl.config.names import translate
from agentrl.config.schema import Config
from agentrl.core.errors import UserError

SECTION = "algorithm.rollout_correction"


@pytest.mark.parametrize(
    "settings",
    [
        {"rollout_rs": "seq_mean_k1"},
        {"rollout_rs": "token_k1,seq_max_k3", "rollout_rs_threshold": "0.5_2.0,0.01"},
        {"rollout_rs": "seq_mean_k3", "rollout_rs_threshold": 0.01},
        {"rollout_rs": "token", "rollout_rs_threshold": "0.6_1.6"},
        {"rollout_rs": "token", "rollout_rs_threshold": 3},
        {"rollout_is_threshold": "0.5_5.0"},
        {"rollout_is_threshold": 3},
        {"rollout_is_batch_normalize": True},
        {"loss_type": "reinforce", "bypass_mode": True, "rollout_rs": "geometric"},
    ],
    ids=str,
)
def test_verls_words_are_ours(ready: list[str], settings: dict[str, Any]) -> None:
    texts = {name: f"'{value}'" if isinstance(value, str) else str(value) for name, value in settings.items()}
    config = compose([*ready, *(f"{SECTION}.{name}={text}" for name, text in texts.items())])
    found = config.algorithm.rollout_correction
    assert {name: getattr(found, name) for name in settings} == settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["rollout_rs=token_k4"], "token_k4 does not exist"),
        (["rollout_rs=token_k3"], "token_k3 needs"),
        (["rollout_rs=token_k1", "rollout_rs_threshold=0.5_2"], "write both bounds, as in 0.5_2.0"),
        (["rollout_rs=token_k2", "rollout_rs_threshold='0.5_2.0'"], "one upper bound"),
        (["rollout_is_threshold='0.1_0.5'"], "must be at least 1"),
        (["rollout_is_threshold=0.5"], "must be at least 1"),
        (["rollout_is_threshold='much'"], "no number"),
        (["rollout_rs=token", "rollout_rs_threshold_lower=1.5"], "every on-policy token would be dropped"),
    ],
    ids=str,
)
def test_what_makes_no_sense_stops_the_run(ready: list[str], settings: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        compose([*ready, *(f"{SECTION}.{setting}" for setting in settings)])
    assert "\n" not in str(caught.value)


def test_reinforce_takes_the_place_of_no_other_loss(ready: list[str]) -> None:
    chosen = [f"{SECTION}.bypass_mode=true", f"{SECTION}.loss_type=reinforce", "actor.policy_loss.loss_mode=gspo"]
    with pytest.raises(UserError, match="only one loss"):
        compose([*ready, *chosen])


def test_verls_older_word_for_reinforce_leads_there() -> None:
    found = translate(f"{SECTION}.use_policy_gradient", True, schema_keys(Config))
    assert (found.path, found.value) == (f"{SECTION}.loss_type", "reinforce")
