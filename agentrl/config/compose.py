"""From a command line to a checked configuration.

Order, later over earlier: the schema's defaults, verl's where something was written for verl, YAML files (through
Hydra, so that presets and groups compose), old names within those files, overrides. Hydra sees the choice of files
only; keys are looked up in the schema here, because its own message for a wrong key does not know the right one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from agentrl.config.keys import Key, schema_keys
from agentrl.config.names import written
from agentrl.config.overrides import read_overrides, read_values
from agentrl.config.presets import Presets
from agentrl.config.schema import Config
from agentrl.config.tree import Reader, apply, to_object
from agentrl.config.validate import TRAINING, Check, validate
from agentrl.config.verl_defaults import MARK, VerlDefaults, file_of
from agentrl.config.verl_version import find_version
from agentrl.core.errors import UserError

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

    `overrides`: `key=value` texts, or values by key, nested or dotted. `program`: verl's, where one is run.
    """
    reader = Reader(schema)
    presets = Presets(config_name or "train", config_dir)
    if isinstance(overrides, Mapping):
        choices, settings = read_values(overrides, reader, presets)
    else:
        choices, settings = read_overrides(overrides, reader, presets)
    files = presets.compose(choices)
    given = dict(reader.given)
    settings = [*reader.tree(files), *sorted(settings, key=lambda setting: setting.order >= 0)]
    verl = _verl_defaults(files.get(MARK), program, presets, reader.given | given, schema)
    tree = OmegaConf.create({})
    if verl is not None:
        settings = verl.without_nulls(settings)
        apply(verl.settings(), tree)
    apply(settings, tree)
    config = _typed(tree, schema)
    notes = [] if verl is None else verl.finish(config, {setting.path for setting in settings})
    return Resolved(config, [*notes, *presets.notes, *reader.notes, *validate(config, checks)])


def _verl_defaults(
    mark: str | None, program: str | None, presets: Presets, given: Mapping[str, Any], schema: type
) -> VerlDefaults | None:
    """verl's defaults, where the chosen file starts from one of verl's or a program of verl's is run."""
    file = mark or (file_of(program) if program else None)
    if file is None:
        return None
    names = [program, *given] if program else [*given]
    return VerlDefaults(file, find_version(presets.own, names, file), given, schema)


def to_yaml(config: Any) -> str:
    """A configuration as YAML that composes to the same again."""
    return OmegaConf.to_yaml(OmegaConf.structured(config))


def _typed(tree: DictConfig, schema: type) -> Any:
    """Raises UserError for a value of the wrong type or an interpolation that leads nowhere."""
    try:
        return to_object(tree, schema)
    except OmegaConfBaseException as error:
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
