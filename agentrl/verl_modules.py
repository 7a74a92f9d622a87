"""verl's module names for what users' files import from it, where verl itself is not installed.

A tool that says `from verl.tools.base_tool import BaseTool` runs unchanged. The finder goes to the end of
`sys.meta_path`: it is asked only for modules that no one else has, so an installed verl always wins, and the
interactions that verl dropped in 0.8 are there beside it.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeVar

from agentrl.answers import final_answer, same_answer

Function = TypeVar("Function", bound=Callable[..., Any])

EQUIVALENTS = {
    "verl.tools.gsm8k_tool.Gsm8kTool": "tools/gsm8k.py:Gsm8kTool",
    "verl.tools.search_tool.SearchTool": "tools/retrieval.py:RetrievalTool",
    "verl.tools.sandbox_fusion_tools.SandboxFusionTool": "tools/code_interpreter.py:SandboxFusionTool",
    "verl.interactions.gsm8k_interaction.Gsm8kInteraction": "interactions/checker.py:Gsm8kInteraction",
}
"""verl's classes for which agentrl ships one of its own: file among the ready-made ones, and class."""

PACKAGES = ("verl", "verl.tools", "verl.interactions", "verl.utils", "verl.utils.reward_score")


def rollout_trace_op(fn: Function) -> Function:
    """verl's tracing decorator; agentrl records every call by itself."""
    return fn


@contextmanager
def rollout_trace_attr(*_: Any, **__: Any) -> Iterator[None]:
    """verl's tracing context; does nothing."""
    yield


def register_tool(name: str) -> Callable[[type], type]:
    """verl's registry of tool classes; agentrl finds them by class_name."""
    return lambda kind: kind


def gsm8k_score(
    solution_str: str, ground_truth: str, method: str = "strict", format_score: float = 0.0, score: float = 1.0
) -> float:
    """verl's GSM8K score: `score` for the right answer, `format_score` for a wrong one, 0 for none.

    With method strict only what follows `####` is an answer.
    """
    answer = final_answer(solution_str) if method == "flexible" or "####" in solution_str else None
    if answer is None:
        return 0.0
    return score if same_answer(answer, ground_truth) else format_score


def _names_of(module: str) -> dict[str, Any] | None:
    """What the module of that name offers; None when there is none. Imports as little as it needs."""
    if module in PACKAGES:
        return {}
    if module == "verl.utils.reward_score.gsm8k":
        return {"compute_score": gsm8k_score}
    if module == "verl.utils.rollout_trace":
        return {"rollout_trace_op": rollout_trace_op, "rollout_trace_attr": rollout_trace_attr}
    if module == "verl.interactions.base":
        from agentrl.interactions.base import BaseInteraction

        return {"BaseInteraction": BaseInteraction}
    return _tool_names_of(module)


def _tool_names_of(module: str) -> dict[str, Any] | None:
    from agentrl.tools import base, functions, response, schemas

    carriers = {name: value for name, value in vars(schemas).items() if name.startswith("OpenAI")}
    carriers["ToolResponse"] = response.ToolResponse
    if module == "verl.tools.schemas":
        return carriers
    if module == "verl.tools.base_tool":
        return {"BaseTool": base.BaseTool, **carriers}
    if module == "verl.tools.function_tool":
        return {"function_tool": functions.function_tool}
    if module == "verl.tools.registry":
        return {"register_tool": register_tool}
    return None


class VerlModules(MetaPathFinder, Loader):
    """Finds and makes the modules."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec for verl's modules that users' files import; None for all others."""
        if fullname.partition(".")[0] != "verl" or _names_of(fullname) is None:
            return None
        return ModuleSpec(fullname, self, origin="agentrl", is_package=fullname in PACKAGES)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The usual kind of module."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Fill it."""
        vars(module).update(_names_of(module.__name__) or {})


def provide() -> None:
    """Make the names importable from now on; again is fine."""
    if not any(isinstance(finder, VerlModules) for finder in sys.meta_path):
        sys.meta_path.append(VerlModules())
