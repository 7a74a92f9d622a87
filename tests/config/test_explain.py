"""`agentrl config explain` and the generated reference."""

import re
from pathlib import Path

import pytest

from agentrl.cli.main import main
from agentrl.config.choices import words_of
from agentrl.config.explain import explain, old_names
from agentrl.config.keys import schema_keys
from agentrl.config.names import destination, table
from agentrl.config.schema import Config
from agentrl.config.schema.commands import SCHEMAS
from agentrl.core.errors import UserError
from tests.reference import algorithm_reference, reference

ROOT = Path(__file__).parents[2]


def test_a_key() -> None:
    (found,) = explain("rollout.tensor_model_parallel_size", SCHEMAS)[:1]
    facts = dict(found.facts)
    assert (facts["default"], facts["type"]) == ("1", "int")
    assert "train" in found.commands
    others = facts["old names"].split(", ")
    assert {"rollout.tensor_parallel_size", "actor_rollout_ref.rollout.tensor_parallel_size"} <= set(others)


def test_an_old_name_leads_to_its_key() -> None:
    assert explain("actor_rollout_ref.actor.optim.warmup_style", SCHEMAS)[0].name == "actor.optim.lr_scheduler_type"
    assert explain("custom_reward_function.path", SCHEMAS)[0].name == "reward.custom_reward_function.path"
    assert explain("trainer.default_local_dir", SCHEMAS)[0].name == "trainer.default_local_dir"
    assert {e.name for e in explain("trainer.default_local_dir", SCHEMAS)} >= {"trainer.output_dir"}


def test_search_lists_keys_with_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "search", "likeliest"]) == 0
    assert "rollout.min_p = 0.0" in capsys.readouterr().out
    assert main(["config", "search", "min_q"]) == 2
    assert capsys.readouterr().err.startswith("error: min_q: no key has this")


def test_the_reference_has_an_anchor_for_each_key() -> None:
    text = reference()
    keys = [key for key in schema_keys(Config) if f'<a id="{key}"></a>' not in text]
    assert keys == []
    assert text.count("<a id=") == len(set(re.findall(r'<a id="([^"]+)">', text)))


def test_a_name_without_a_home_gives_its_reason() -> None:
    (found,) = explain("rollout.quantization_config_file", SCHEMAS)
    assert found.facts == [("refused", "rollout.quantization_config_file: weights travel unquantised; remove it")]


def test_a_section_lists_its_keys() -> None:
    (found,) = explain("rollout.val_kwargs", {"train": Config})
    assert "rollout.val_kwargs.n" in dict(found.facts)["keys"].split(", ")


def test_a_typo_names_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean rollout.temperature"):
        explain("rollout.temprature", SCHEMAS)


def test_old_names_are_whole() -> None:
    """Every moved entry of the table shows up at the key it leads to."""
    keys = schema_keys(Config)
    for entry in table().values():
        target = destination(entry.name, keys)
        if entry.action == "moved" and "=" not in entry.name and target in keys and target != entry.name:
            assert entry.name in old_names(target, keys), entry


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["config", "explain", "actor_rollout_ref.rollout.name", "rollout.multi_turn.tool_response_truncate_side"])
        == 0
    )
    shown = capsys.readouterr().out
    assert "actor_rollout_ref.rollout.name is rollout.name" in shown
    assert " | ".join(words_of("rollout.name")) in shown
    assert "trtllm" in shown
    assert "as verl does since 0.8" in shown
    assert main(["config", "explain", "rollout.n", "rolout.m"]) == 2
    assert "rollout.n" in capsys.readouterr().out


def test_the_reference_is_fresh() -> None:
    """`make reference` makes it."""
    page = ROOT / "docs" / "config-reference.md"
    assert page.read_text() == reference(), "stale: run `make reference`"


def test_the_reference_of_the_algorithms_is_fresh() -> None:
    """`make reference` makes both."""
    page = ROOT / "docs" / "algorithm-reference.md"
    assert page.read_text() == algorithm_reference(), "stale: run `make reference`"
    for name in (*words_of("algorithm.adv_estimator"), *words_of("actor.policy_loss.loss_mode")):
        assert f"### {name}\n" in page.read_text()


def test_the_reference_has_every_key() -> None:
    text = reference()
    for schema in SCHEMAS.values():
        for path in schema_keys(schema):
            assert f"</a>`{path.rpartition('.')[2]}` |" in text


@pytest.mark.parametrize(
    "name",
    [
        "critic.megatron.tensor_model_parallel_size",
        "actor_rollout_ref.ref.megatron.param_offload",
        "actor_rollout_ref.actor.veomni.seed",
        "critic.torchtitan.offload_policy",
        "actor_rollout_ref.actor.optim.muon_momentum",
        "actor_rollout_ref.actor.policy_loss.rollout_correction.rollout_is",
        "actor_rollout_ref.model.local_path",
        "engine.router_replay.mode",
        "reward_model.inference.temperature",
    ],
)
def test_fields_of_verls_dataclasses_are_known(name: str) -> None:
    assert explain(name, SCHEMAS)
