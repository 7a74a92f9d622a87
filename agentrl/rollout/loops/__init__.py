"""Agent loops: how a trajectory unfolds. Two are built in; a dotted path names one of your own."""

from agentrl.rollout.loops.base import AgentLoop, RolloutContext
from agentrl.rollout.loops.registry import loop_class, loop_name
from agentrl.rollout.loops.single_turn import SingleTurn
from agentrl.rollout.loops.tool_agent import ToolAgent

__all__ = ["AgentLoop", "RolloutContext", "SingleTurn", "ToolAgent", "loop_class", "loop_name"]
