"""Which loop a name stands for."""

from pathlib import Path

import yaml

from agentrl.errors import UserError
from agentrl.plugins import blaming, find_class
from agentrl.resources import find
from agentrl.rollout.loops.base import AgentLoop
from agentrl.rollout.loops.single_turn import SingleTurn
from agentrl.rollout.loops.tool_agent import ToolAgent

# verl's rows and YAML say "..._agent"; ours drop what is said twice.
BUILT_IN: dict[str, type[AgentLoop]] = {
    "single_turn": SingleTurn,
    "single_turn_agent": SingleTurn,
    "tool_agent": ToolAgent,
}


def loop_name(row: str | None, configured: str | None, *, multi_turn: bool) -> str:
    """The loop of a row: its own `agent_name`, the one in the settings, or the one that fits.

    A row without a name must not quietly run without tools when multi-turn is on.
    """
    return row or configured or ("tool_agent" if multi_turn else "single_turn")


def loop_class(name: str, agent_loop_config_path: str | None = None) -> type[AgentLoop]:
    """The class behind a built-in name, a name in the YAML list, or a dotted path. Raises UserError."""
    named = BUILT_IN | _named_in(agent_loop_config_path)
    if name in named:
        return named[name]
    if "." in name:
        return _load(name, beside=Path.cwd())
    raise UserError(f"agent loop {name!r} is unknown: use one of {', '.join(named)}, or a dotted path to a class")


def _named_in(path: str | None) -> dict[str, type[AgentLoop]]:
    if path is None:
        return {}
    file = find(path, what="rollout.agent.agent_loop_config_path")
    with blaming(str(file)):
        entries = yaml.safe_load(file.read_text())
    if not isinstance(entries, list) or not all(
        isinstance(e, dict) and {"name", "_target_"} <= e.keys() for e in entries
    ):
        raise UserError(f"{file}: write a list of entries with name and _target_")
    return {entry["name"]: _load(entry["_target_"], beside=file.parent) for entry in entries}


def _load(path: str, *, beside: Path) -> type[AgentLoop]:
    """The class `module.Class`, whose file may lie in the folder `beside`."""
    found = find_class(path, beside=beside, where="agent loop")
    if not issubclass(found, AgentLoop):
        raise UserError(f"agent loop {path} is not an AgentLoop: derive it from agentrl.rollout.loops.AgentLoop")
    return found
