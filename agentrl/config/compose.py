"""From a command line to a checked configuration.

Order, later over earlier: the schema's defaults, those of the framework that something was written for, YAML files
(through Hydra, so that presets and groups compose), old names within those files, overrides. Hydra sees the choice of
files only; keys are looked up in the schema here, because its own message for a wrong key does not know the right one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any, TypeVar, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from agentrl.config.given import Objects
from agentrl.config.keys import Key, schema_keys
from agentrl.config.names import written
from agentrl.config.overrides import read_overrides, read_values
from agentrl.config.presets import Presets
from agentrl.config.schema import Config
from agentrl.config.tree import Reader, on_defaults, to_object, without_nulls
from agentrl.config.validate import TRAINING, Check, validate
from agentrl.core.compatibility import Written, layers
from agentrl.core.errors import UserError
from agentrl.core.plugin_checks import check_keys

C = TypeVar("C")


@dataclass
class Resolved:
    """A configuration and what the person should hear about it."""

    config: Any
    notes: list[str]


def compose(
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    config_name: str | None = None,
    config_dir: str | None = None,
    schema: type[C] = Config,  # type: ignore[assignment]  # type variables take no default
    checks: Iterable[Check] = TRAINING,
) -> C:
    """The configuration as a typed object. Raises UserError in one line for any mistake."""
    resolved = resolve(overrides, config_name=config_name, config_dir=config_dir, schema=schema, checks=checks)
    return cast(C, resolved.config)


def resolve(
    overrides: Sequence[str] | Mapping[str, Any],
    *,
    config_name: str | None = None,
    config_dir: str | None = None,
    schema: type = Config,
    checks: Iterable[Check] = TRAINING,
    program: str | None = None,
) -> Resolved:
    """`compose`, with the notes on old names and settings without effect.

    `overrides`: `key=value` texts, or values by key, nested or dotted, Python objects among them. `program`: another
    framework's that is run.
    """
    reader, objects = Reader(schema), Objects()
    presets = Presets(config_name or "train", config_dir)
    if isinstance(overrides, Mapping):
        choices, settings = read_values(objects.names_in(overrides), reader, presets)
    else:
        choices, settings = read_overrides(overrides, reader, presets)
    files = presets.compose(choices)
    tree = [*reader.tree(files), *reader.in_order(settings, highest=0)]
    written = Written(files, reader.given, presets.own, schema, program)
    defaults = next(filter(None, (layer.defaults(written) for layer in layers())), None)
    notes = reader.note_custom(open_files=defaults is not None)
    if defaults is not None:
        tree = without_nulls(tree, schema)
    config = objects.settle(_typed(on_defaults(tree, defaults), schema))
    notes += [] if defaults is None else defaults.finish(config, {setting.path for setting in tree})
    found = validate(config, checks, [*presets.own, *presets.searchpath])
    return Resolved(config, [*notes, *presets.notes, *reader.notes, *found])


def to_yaml(config: Any) -> str:
    """A configuration as YAML that composes to the same again."""
    return OmegaConf.to_yaml(OmegaConf.structured(config))


def _typed(tree: DictConfig, schema: type) -> Any:
    """Raises UserError for a value of the wrong type or an interpolation that leads nowhere."""
    try:
        return to_object(tree, schema)
    except OmegaConfBaseException as error:
        if isinstance(error, ConfigKeyError) and is_dataclass(error.object_type):  # a section of the user's own name
            check_keys([error.key], error.object_type.__dataclass_fields__, str(error.full_key).rpartition(".")[0])
        raise UserError(_type_message(error, tree, schema_keys(schema))) from error


def _type_message(error: OmegaConfBaseException, tree: DictConfig, keys: Mapping[str, Key]) -> str:
    path = (error.full_key or "").partition("[")[0]
    first_line = str(error).splitlines()[0]
    if path not in keys:
        return f"{path}: {first_line}" if path else first_line
    value = OmegaConf.to_container(tree, resolve=False)
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, str) and "${" in value:
        return f"{path}={value}: {first_line}"
    return f"{path}={written(value)}: must be {keys[path].type_name}"
