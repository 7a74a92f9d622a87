"""A section of the settings as verl's functions read it: attributes, [] and .get, with verl's names for what is set."""

from dataclasses import asdict
from typing import Any

from omegaconf import OmegaConf

from agentrl.core.points import POLICY_LOSS_OPTIONS


class SectionConfig:
    """Reads a section; what `more` holds comes first."""

    def __init__(self, section: Any, **more: Any) -> None:
        tree = asdict(section) if hasattr(section, "__dataclass_fields__") else section
        vars(self).update(_tree=OmegaConf.create(tree, flags={"allow_objects": True}), _more=more)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self._more:
            return self._more[name]
        if name not in self._tree:
            raise AttributeError(f"the run's settings have no {name!r} here")
        return self._tree[name]

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __contains__(self, name: str) -> bool:
        return name in self._more or name in self._tree

    def get(self, name: str, default: Any = None) -> Any:
        """What is set, or `default`."""
        return getattr(self, name) if name in self else default


class AlgoConfig(SectionConfig):
    """The section `algorithm`."""


class ActorConfig(SectionConfig):
    """The section `actor`, with the options of the loss where verl has them: in `policy_loss` itself."""

    def __init__(self, section: Any, **more: Any) -> None:
        super().__init__(section, **more)
        if modes := self.get("policy_loss"):
            modes.update(POLICY_LOSS_OPTIONS | dict(modes.get("options") or {}))
