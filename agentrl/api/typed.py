"""Settings that an editor completes, by the schema itself: names, types and descriptions of all keys.

Invariant: only keys that are assigned are set; all others come from the preset, as with a dict.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

from agentrl.config.schema import Config
from agentrl.config.schema.sft import SftConfig
from agentrl.core.errors import did_you_mean


class Section:
    """A section of settings, in which keys are assigned."""

    def __init__(self, schema: type, path: str, given: dict[str, Any]) -> None:
        """`path`: with a dot at its end. `given`: the values by key, of all sections."""
        self.__dict__.update(_schema=schema, _path=path, _given=given)

    def __getattr__(self, name: str) -> Any:
        path, kind = self._checked(name), get_type_hints(self._schema)[name]
        if isinstance(kind, type) and is_dataclass(kind):
            return Section(kind, f"{path}.", self._given)
        value = self._given.get(path, getattr(self._schema(), name))
        return tuple(value) if isinstance(value, list) else value  # a change in place would be lost

    def __setattr__(self, name: str, value: Any) -> None:
        self._given[self._checked(name)] = value

    def __dir__(self) -> list[str]:
        return [field.name for field in fields(self._schema)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._given})"

    def _checked(self, name: str) -> str:
        """The whole key. Raises AttributeError where there is none."""
        names = dir(self)
        if name not in names:
            raise AttributeError(f"no key {self._path}{name}: {did_you_mean(name, names)}choose {', '.join(names)}")
        return f"{self._path}{name}"


if TYPE_CHECKING:

    class Settings(Config):
        """Settings of `train`, `training`, `rollout` and `evaluate`; see docs/python.md."""

    class SftSettings(SftConfig):
        """Settings of `sft`."""

else:

    class Settings(Section):
        """Settings of `train`, `training`, `rollout` and `evaluate`.

        Example:
            settings = agentrl.Settings()
            settings.model.path = "models/smollm2"
            settings.actor.optim.lr = 1e-5
        """

        def __init__(self, **sections: Any) -> None:
            super().__init__(Config, "", sections)

    class SftSettings(Section):
        """Settings of `sft`, otherwise as `Settings`."""

        def __init__(self, **sections: Any) -> None:
            super().__init__(SftConfig, "", sections)


def given_keys(settings: Any) -> Mapping[str, Any] | None:
    """The keys that were assigned, with their values; None for anything but settings of this kind."""
    return settings._given if isinstance(settings, Section) else None
