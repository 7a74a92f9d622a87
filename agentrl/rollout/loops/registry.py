"""Which loop a name stands for."""

import inspect
from pathlib import Path
from typing import Any

from agentrl.config.schema import Rollout
from agentrl.core.compatibility import layers
from agentrl.core.errors import UserError, reported_as
from agentrl.core.extensions import load_plugins
from agentrl.core.foreign import read_yaml
from agentrl.core.plugin_checks import check_method, returns_nothing
from agentrl.core.plugins import find_class
from agentrl.core.points import LOOPS
from agentrl.core.registry import GivenObject
from agentrl.core.resources import find, read_text
from agentrl.rollout.loops.base import AgentLoop

RUN = "async def run(self, trajectory, sampling)"
ENTRY_KEYS = ("name", "_target_")
PROGRAM = "program"
"""The loop that runs an agent program behind the gateway, and the keys of an entry that names one."""
PROGRAM_KEYS = ("command", "python", "image", "sessions")
WRITE = "write a list of entries with name and _target_, or with name and command"


def loop_name(row: str | None, configured: str | None, *, multi_turn: bool) -> str:
    """The loop of a row: its own `agent_name`, the one in the settings, or the one that fits.

    A row without a name must not quietly run without tools when multi-turn is on.
    """
    return row or configured or ("tool_agent" if multi_turn else "single_turn")


def loop_class(name: str, agent_loop_config_path: str | None = None, default: str | None = None) -> type[AgentLoop]:
    """The class behind a name (in the YAML list, registered, built in), or the dotted path `default`. Raises UserError,
    also for another path: a row is data, and names no code by one."""
    if isinstance(name, GivenObject):
        return _fitting(name.value, name)
    named = _registered() | _named_in(agent_loop_config_path)
    if name in named:
        return named[name]
    if name in LOOPS:
        return _fitting(LOOPS[name], name)
    if "." in name and name == default:
        return _load(name, folder=Path.cwd())
    known = ", ".join(dict.fromkeys((*LOOPS, *named)))
    fix = "list its class in rollout.agent.agent_loop_config_path, or set rollout.agent.default_agent_loop to it"
    raise UserError(f"agent loop {name!r} is unknown: use one of {known}; {fix}")


def check_loops(rollout: Rollout, *further: str | None) -> None:
    """Check a run's agent loops, and the names of `further` ones, before a row asks for one. Raises UserError."""
    agent = rollout.agent
    _named_in(agent.agent_loop_config_path)
    for name in filter(None, (agent.default_agent_loop, *further)):
        loop_class(name, agent.agent_loop_config_path, agent.default_agent_loop)


def _named_in(path: str | None) -> dict[str, type[AgentLoop]]:
    if path is None:
        return {}
    file = find(path, what="rollout.agent.agent_loop_config_path")
    with reported_as(str(file)):
        entries = read_yaml(read_text(file))
    if not isinstance(entries, list) or not entries:
        raise UserError(f"{file}: {WRITE}")
    named = dict(_named(entry, i, file) for i, entry in enumerate(entries))
    if len(named) < len(entries):
        raise UserError(f"{file}: two of its entries have the same name: rename one; it has {', '.join(named)}")
    return named


def _named(entry: Any, i: int, file: Path) -> tuple[str, type[AgentLoop]]:
    """The name and the class of an entry of the list. Raises UserError."""
    runs_program = isinstance(entry, dict) and not entry.keys().isdisjoint(PROGRAM_KEYS)
    needed = ENTRY_KEYS[:1] if runs_program else ENTRY_KEYS
    lacking = [key for key in needed if not isinstance(entry, dict) or not isinstance(entry.get(key), str)]
    if lacking:
        raise UserError(f"{file}: entry {i} has no {lacking[0]}: {WRITE}")
    if runs_program:
        return entry["name"], LOOPS.built_in(PROGRAM).value.of(entry, file)
    kwargs = {key: value for key, value in entry.items() if key not in ENTRY_KEYS}
    return entry["name"], _load(entry["_target_"], folder=file.parent, kwargs=kwargs)


def _load(path: str, *, folder: Path, kwargs: dict[str, Any] | None = None) -> type[AgentLoop]:
    """The class `module.Class`, whose file may lie in `folder`."""
    return _fitting(find_class(path, folder=folder, where="agent loop", key="the path"), path, kwargs)


def _fitting(found: type, path: str, kwargs: dict[str, Any] | None = None) -> type[AgentLoop]:
    """The class itself, or one around it where it was written for another framework."""
    if not isinstance(found, type):
        raise UserError(f"agent loop {path} is no class: each conversation gets an object of its own")
    if issubclass(found, AgentLoop):
        where = f"agent loop {path}"
        if getattr(found.run, "__isabstractmethod__", False):
            raise UserError(f"{where}: it has no run(): write `{RUN}`")
        check_method(found, "run", ("trajectory", "sampling"), where, RUN)
        if returns_nothing(found.run) and not inspect.iscoroutinefunction(found.run):
            raise UserError(f"{where}: run() is not async: write `{RUN}`")
        return found
    for loop in filter(None, (layer.agent_loop(found, kwargs) for layer in layers())):
        return loop
    raise UserError(f"agent loop {path} is not an AgentLoop: derive it from agentrl.rollout.loops.AgentLoop")


def _registered() -> dict[str, type[AgentLoop]]:
    """Loops that users' modules registered in another framework's way."""
    load_plugins()
    found: dict[str, type] = {}
    for layer in layers():
        found |= {name: kind for name, kind in layer.agent_loops().items() if name not in LOOPS.declared}
    return {name: _fitting(kind, kind.__name__) for name, kind in found.items()}
