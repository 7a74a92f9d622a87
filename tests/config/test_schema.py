"""Every key is documented and read by someone; the words a key takes are those that the code behind it offers."""

import ast
import inspect
import re
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

import agentrl
from agentrl.config.choices import CHOICES, OPEN, words_of
from agentrl.config.keys import field_docs, home, nearest, schema_keys, schema_sections, type_name
from agentrl.config.names import written
from agentrl.config.schema import Config
from agentrl.config.schema.commands import SCHEMAS as COMMANDS
from agentrl.config.schema.marks import FILTERS
from agentrl.config.schema.sft import SftConfig

SCHEMAS = tuple(COMMANDS.values())
PACKAGE = Path(agentrl.__file__).parent


@pytest.mark.parametrize("schema", SCHEMAS)
def test_every_field_has_a_docstring(schema: type) -> None:
    for path, section in schema_sections(schema).items():
        assert section.__doc__, path
        assert not {field.name for field in fields(section)} - set(field_docs(section)), path


@pytest.mark.parametrize("schema", SCHEMAS)
def test_docstrings_are_sentences(schema: type) -> None:
    for key in schema_keys(schema).values():
        assert key.doc.endswith("."), key.path
        assert len(key.doc) < 320, key.path


@cache
def attribute_accesses() -> frozenset[tuple[str, str]]:
    """(`section`, `key`) of each `section.key` and `x.section.key` in the package. Of the configuration's own code
    only the facts count that others ask for.

    The receiver's name stands for the section: a section is always held under its own name.
    """
    found = set()
    for file in PACKAGE.rglob("*.py"):
        if PACKAGE / "config" not in file.parents or file.name == "derived.py":
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    found.add((receiver(node.value), node.attr))
    return frozenset(found)


def receiver(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr.lstrip("_")
    return node.id if isinstance(node, ast.Name) else ""


def unread(schema: type) -> list[str]:
    """Keys that no code reads. A critic's are read as an actor's, once what they inherit is filled in; `custom` is read
    with all of its section."""
    from agentrl.algorithms.distillation import Distance

    shared = {("critic", key) for section, key in attribute_accesses() if section in ("actor", "settings")}
    shared |= {("val_kwargs", key) for section, key in attribute_accesses() if section == "settings"}  # as a set's
    assert ("section", "custom") in attribute_accesses()
    customs = {(*path.split("."), "custom")[-2:] for path in schema_sections(schema)} | {("custom",)}
    filters = {(section, name) for section in ("rollout", "val_kwargs") for name in FILTERS}  # read by their names
    filters |= {("distillation", field.name) for field in fields(Distance)}
    top = {(key,) for section, key in attribute_accesses() if section == "config"}
    own = {  # by a property of the section
        (path.rpartition(".")[2], key)
        for path, section in schema_sections(schema).items()
        for part in section.__mro__[:-1]
        for key in re.findall(r"self\.(\w+)", inspect.getsource(part))
    }
    read = attribute_accesses() | shared | customs | filters | top | own
    return [path for path in schema_keys(schema) if tuple(path.split(".")[-2:]) not in read]


@pytest.mark.prevents("keys without effect")
@pytest.mark.parametrize("schema", SCHEMAS)
def test_every_key_has_a_reader(schema: type) -> None:
    assert not unread(schema)


def test_words_belong_to_keys() -> None:
    known = {**schema_keys(Config), **schema_keys(SftConfig)}
    for path in (*CHOICES, *OPEN):
        default, words = known[path].default, words_of(path)
        for word in default if isinstance(default, list) else [default]:
            assert word is None or word in words, path


def test_words_are_those_that_the_code_offers() -> None:
    from agentrl.algorithms.aggregate import LOSS_AGG_MODES
    from agentrl.algorithms.correction import LEVELS, MODES
    from agentrl.algorithms.filters import PF_PPO_METHODS
    from agentrl.chat import check
    from agentrl.data import overlong
    from agentrl.tools import truncation

    multi_turn = "rollout.multi_turn"
    offered = {
        "actor.loss_agg_mode": LOSS_AGG_MODES,
        "algorithm.pf_ppo.reweight_method": PF_PPO_METHODS,
        "algorithm.rollout_correction.rollout_is": LEVELS,
        "algorithm.rollout_correction.rollout_is_mode": MODES,
        "data.truncation": overlong.TRUNCATIONS,
        f"{multi_turn}.tokenization_sanity_check_mode": check.MODES,
        f"{multi_turn}.tool_response_unit": truncation.UNITS,
    }
    assert {path: set(CHOICES[path]) for path in offered} == {path: set(words) for path, words in offered.items()}


def test_words_stand_in_the_docs() -> None:
    """Where a key's docstring lists words, they are the ones that are checked."""
    keys = {**schema_keys(SftConfig), **schema_keys(Config)}
    for path, words in CHOICES.items():
        assert not [word for word in words if word not in keys[path].doc], path


def test_keys_know_their_types() -> None:
    keys = schema_keys(Config)
    assert keys["rollout.max_model_len"].type_name == "int or null"
    assert keys["actor.optim.betas"].type_name == "list of float"
    assert keys["rollout.engine_kwargs"].type_name == "mapping"
    assert keys["data.train_files"].type_name == "any"
    assert type_name(str | int) == "str or int"


def test_defaults_are_those_of_the_whole_schema() -> None:
    """A section may be given other defaults where it is used."""
    assert schema_keys(SftConfig)["optim.lr"].default == SftConfig().optim.lr == 1e-5


def test_open_mappings_own_what_is_below_them() -> None:
    keys = schema_keys(Config)
    assert home("rollout.engine_kwargs.hf.threads", keys) is keys["rollout.engine_kwargs"]
    assert home("rollout.n", keys) is keys["rollout.n"]
    assert home("rollout.n.x", keys) is None
    assert home("rollout", keys) is None


def test_nearest_prefers_the_last_part() -> None:
    keys = schema_keys(Config)
    assert nearest("anything.at.all.tool_config_path", keys) == "rollout.multi_turn.tool_config_path"
    assert nearest("qqqq", keys) is None


def test_values_are_written_as_yaml_writes_them() -> None:
    assert [written(value) for value in (None, True, False, 1, 0, 0.5, "x")] == [
        "null",
        "true",
        "false",
        "1",
        "0",
        "0.5",
        "x",
    ]
