"""agentrl: reinforcement learning for language models that act over several turns with tools.

`agentrl.train(...)` trains, `agentrl.rollout(...)` samples, `agentrl.evaluate(...)` scores; docs/python.md lists all
names. Names load when they are first asked for: `import agentrl` alone costs nothing.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from agentrl.core.lazy import type_imports

if TYPE_CHECKING:
    from agentrl import algorithms as algorithms
    from agentrl.api import Callback as Callback
    from agentrl.api import Result as Result
    from agentrl.api import Settings as Settings
    from agentrl.api import SftSettings as SftSettings
    from agentrl.api import Step as Step
    from agentrl.api import TrainingRun as TrainingRun
    from agentrl.api import evaluate as evaluate
    from agentrl.api import rollout as rollout
    from agentrl.api import sft as sft
    from agentrl.api import train as train
    from agentrl.api import training as training
    from agentrl.chat import Chat as Chat
    from agentrl.config import compose as compose
    from agentrl.config.schema import Config as Config
    from agentrl.core.errors import InfraError as InfraError
    from agentrl.core.errors import UserError as UserError
    from agentrl.core.points import advantage_estimator as advantage_estimator
    from agentrl.core.points import agent_loop as agent_loop
    from agentrl.core.points import callback as callback
    from agentrl.core.points import container_provider as container_provider
    from agentrl.core.points import engine as engine
    from agentrl.core.points import environment_kind as environment_kind
    from agentrl.core.points import group_filter as group_filter
    from agentrl.core.points import kl_estimator as kl_estimator
    from agentrl.core.points import lr_schedule as lr_schedule
    from agentrl.core.points import optimizer as optimizer
    from agentrl.core.points import policy_loss as policy_loss
    from agentrl.core.points import row_sampler as row_sampler
    from agentrl.core.points import row_source as row_source
    from agentrl.core.points import run_logger as run_logger
    from agentrl.core.points import task as task
    from agentrl.core.points import task_format as task_format
    from agentrl.core.points import tool_parser as tool_parser
    from agentrl.core.points import weight_transport as weight_transport
    from agentrl.engines.engine import Engine as Engine
    from agentrl.engines.engine import Generation as Generation
    from agentrl.engines.engine import Sampling as Sampling
    from agentrl.engines.hf import HFEngine as HFEngine
    from agentrl.interactions import BaseInteraction as BaseInteraction
    from agentrl.tools import BaseTool as BaseTool
    from agentrl.tools import ModelError as ModelError
    from agentrl.tools import ToolResponse as ToolResponse
    from agentrl.tools import function_tool as function_tool
    from agentrl.trajectory.ledger import Ledger as Ledger
    from agentrl.trajectory.ledger import Source as Source
    from agentrl.trajectory.message import Call as Call
    from agentrl.trajectory.message import Parsed as Parsed
    from agentrl.trajectory.row import Row as Row
    from agentrl.trajectory.trajectory import Outcome as Outcome
    from agentrl.trajectory.trajectory import Trajectory as Trajectory

__version__ = "0.4.0"

FUNCTIONS = dict.fromkeys(("evaluate", "rollout", "sft", "train", "training"), "agentrl.api")
"""Functions of the Python API, by name: where they are."""

MODULES = ("algorithms",)
"""Public modules."""

NAMES = FUNCTIONS | {name: home for name, home in type_imports(__file__).items() if name not in MODULES}
"""Public names: where they are."""

__all__ = [*NAMES, *MODULES, "__version__"]


class _Module(ModuleType):
    """Pickled by its name, as every module is."""

    def __reduce__(self) -> tuple[Any, ...]:
        return import_module, (self.__name__,)


class _Room(_Module):
    """A module that shares its name with a function of the Python API, and is called as that function.

    `agentrl.rollout` is a package and `agentrl.rollout(...)` samples: Python binds a submodule to its package, whatever
    else has the name.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)

    @property
    def __wrapped__(self) -> Any:
        """The function: what `inspect.signature` and `help` look at."""
        name = self.__name__.rpartition(".")[2]
        return getattr(import_module(FUNCTIONS[name]), name)


class _Package(_Module):
    """Makes rooms of the modules that share their names with functions, as they are bound."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in FUNCTIONS and isinstance(value, ModuleType):
            value.__class__ = _Room
        super().__setattr__(name, value)


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return import_module(f"agentrl.{name}")
    if name not in NAMES:
        raise AttributeError(f"module 'agentrl' has no attribute {name!r}")
    found = getattr(import_module(NAMES[name]), name)
    return globals().get(name, found)  # the import may have bound a room of that name


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


sys.modules[__name__].__class__ = _Package
