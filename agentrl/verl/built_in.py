"""verl's own agent loops by name. They may be named, in a YAML say; what derives from them would override steps that
agentrl's do not have, and is refused where it is written."""

from typing import Any

from agentrl.errors import UserError
from agentrl.rollout.loops import SingleTurn, ToolAgent


def _refuse(kind: type, base: str) -> None:
    raise UserError(
        f"{kind.__name__} derives from verl's {base}, whose inner steps are not there; derive it from AgentLoopBase, "
        "or from agentrl.rollout.loops.AgentLoop"
    )


class ToolAgentLoop(ToolAgent):
    """agentrl's tool_agent."""

    def __init_subclass__(cls, **_: Any) -> None:
        _refuse(cls, "ToolAgentLoop")


class SingleTurnAgentLoop(SingleTurn):
    """agentrl's single_turn."""

    def __init_subclass__(cls, **_: Any) -> None:
        _refuse(cls, "SingleTurnAgentLoop")
