"""Names of keys in TRL, Hugging Face's trainer and OpenRLHF lead to keys that exist."""

import ast
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from agentrl.config import compose
from agentrl.config.elsewhere import entries, pointer
from agentrl.config.explain import explain
from agentrl.config.keys import schema_keys
from agentrl.config.schema.commands import SCHEMAS
from agentrl.core.errors import UserError
from tests.reference import not_here

ROOT = Path(__file__).parents[2]
KEYS = {path for schema in SCHEMAS.values() for path in schema_keys(schema)}
BASE = {"learning_rate", "remove_unused_columns"}
"""Fields of Hugging Face's that TRL's class repeats."""
SAME = {"temperature", "top_k", "top_p", "min_p", "repetition_penalty", "trust_remote_code"}
"""Keys here have these names too, which the nearest name finds."""


def test_every_key_is_there_and_named_in_the_texts_rightly() -> None:
    for entry in entries():
        assert set(entry.keys) <= KEYS, entry
        assert entry.keys or entry.text, entry
        assert entry.name not in KEYS, entry
        for key in re.findall(r"\b(?:actor|algorithm|data|model|ref|reward|rollout|trainer)\.[a-z_.]+", entry.text):
            assert key.rstrip(".") in KEYS, entry


def trl_fields(*files: str) -> set[str]:
    spec = find_spec("trl")
    if spec is None or spec.origin is None:
        pytest.skip("TRL is not installed")
    sources = [Path(spec.origin).parent / f"{file}_config.py" for file in files]
    kinds = [
        node for source in sources for node in ast.parse(source.read_text()).body if isinstance(node, ast.ClassDef)
    ]
    fields = [node for kind in kinds for node in kind.body if isinstance(node, ast.AnnAssign)]
    return {node.target.id for node in fields if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}


def test_every_setting_of_trls_grpo_and_of_its_distillation_is_there() -> None:
    mine = {entry.name for entry in entries() if entry.framework == "TRL"}
    beside = "experimental/{0}/{0}".format
    all_of = trl_fields("trainer/grpo", "trainer/distillation", beside("server_distillation"), beside("gkd"))
    assert all_of - BASE - SAME <= mine
    older = {"max_prompt_length", "reward_funcs", "generation_kwargs"}  # and arguments
    assert mine <= all_of | trl_fields(beside("async_distillation")) | older


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("learning_rate=1e-5", "unknown key learning_rate: Hugging Face's `learning_rate` is `actor.optim.lr` here"),
        ("trainer.num_generations=8", "TRL's `num_generations` is `rollout.n` here"),
        ("packing_samples=true", "OpenRLHF's `packing_samples` has no key here: sequences are packed"),
        (
            "rollout.batch_size=8",
            r"OpenRLHF's `rollout.batch_size` is `data.train_batch_size` here \(prompts in both\)",
        ),
        ("actor.lora_rank=8", "did you mean model.lora_rank"),
    ],
)
def test_the_error_of_an_unknown_key_points_to_ours(override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        compose([override], checks=())


def test_each_command_has_keys_of_its_own() -> None:
    keys = schema_keys(SCHEMAS["sft"])
    assert pointer("learning_rate", keys) == "Hugging Face's `learning_rate` is `optim.lr` here"
    assert pointer("num_generations", keys) is None


def test_explain_knows_them() -> None:
    (found,) = explain("num_iterations", SCHEMAS)
    assert found.facts == [("elsewhere", "TRL's `num_iterations` is `actor.ppo_epochs` here")]


def test_the_page_of_what_is_not_here_is_fresh() -> None:
    """`make reference` makes it."""
    assert (ROOT / "docs" / "not-here.md").read_text() == not_here(), "stale: run `make reference`"


def test_the_page_has_a_row_for_each_reason() -> None:
    page = not_here()
    rows = [row for row in page.splitlines() if row.startswith("| `")]
    assert len(rows) < 300
    assert "`actor.use_remove_padding`, `" in page, "with the others that have its reason"
    assert "`critic.use_remove_padding`" not in page
    assert "`model.hf_config`" not in page, "verl fills it in itself"


def test_the_table_for_users_of_trl_says_what_the_names_say() -> None:
    rows = re.findall(r"^\| `([a-z_]+)`.*?\| (.*?) \|", (ROOT / "docs" / "from-trl.md").read_text(), re.MULTILINE)
    assert len(rows) > 30
    known = {entry.name: entry.keys for entry in entries() if entry.framework in ("TRL", "Hugging Face")}
    for name, keys in rows:
        assert set(re.findall(r"`([a-z_]+\.[a-z_.]+)`", keys)) == set(known[name]) & set(
            schema_keys(SCHEMAS["train"])
        ), name
