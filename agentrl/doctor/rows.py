"""Checks the rows: prompt lengths, and the names of tools, interactions and agent loops."""

from collections.abc import Iterator, Sequence
from typing import Any

from agentrl.chat import Chat
from agentrl.config.schema import Config
from agentrl.core.errors import UserError, plural
from agentrl.data.dataset import scored_by_rollout
from agentrl.doctor.finding import Finding, ok, problem, warning
from agentrl.gateway.loop import ProgramAgent
from agentrl.interactions import InteractionSet
from agentrl.rollout.loops import loop_class, loop_name
from agentrl.tools import ToolSet
from agentrl.trajectory.row import Row


def lengths(config: Config, chat: Chat, tools: ToolSet, rows: Sequence[Row]) -> Iterator[Finding]:
    """Compare prompt lengths in tokens to `data.max_prompt_length`."""
    data = config.data
    shown = [prompt_tools(config, tools, row) for row in rows]
    found = [len(chat.prompt(row.prompt, schemas or None)) for row, schemas in zip(rows, shown, strict=True)]
    without_tools = len(chat.prompt(rows[0].prompt))
    share = f", {found[0] - without_tools} of them for {plural(len(shown[0]), 'tool')}" if shown[0] else ""
    text = f"prompts of {min(found)} to {max(found)} tokens{share}; data.max_prompt_length={data.max_prompt_length}"
    if max(found) <= data.max_prompt_length:
        yield ok(text)
    elif data.filter_overlong_prompts and min(found) <= data.max_prompt_length:
        yield warning(text, "longer ones are left out; raise data.max_prompt_length to keep them")
    elif data.truncation == "error" or data.filter_overlong_prompts:
        yield problem(text, f"set data.max_prompt_length={2 ** (max(found) - 1).bit_length()}")
    else:
        yield warning(text, f"{data.truncation} cuts them; raise data.max_prompt_length to keep them whole")


def contents(config: Config, tools: ToolSet, interactions: InteractionSet, rows: Sequence[Row]) -> Iterator[Finding]:
    """Check ground truths and the names of tools, interactions and agent loops."""
    without = [row.uid for row in rows if row.ground_truth in (None, "")]
    otherwise = scored_by_rollout(config.data) or any(row.tools_kwargs or row.interaction_kwargs for row in rows)
    if without and not otherwise:
        yield warning(
            f"{without[0]} has no ground truth", "put it under reward_model.ground_truth if the reward needs it"
        )
    yield from _loops(config, rows)
    unknown = sorted({name for row in rows for name in row.tools_kwargs if name not in tools.runners})
    if unknown and len(tools):
        fix = f"the tools are {', '.join(tools.runners)}; correct extra_info.tools_kwargs or the tool YAML"
        yield warning(f"rows have arguments for tools that are not loaded: {', '.join(unknown)}", fix)
    if any(row.interaction_kwargs for row in rows) and not len(interactions) and config.rollout.multi_turn.enable:
        fix = "set rollout.multi_turn.interaction_config_path"
        yield warning("rows name a simulated user, but none is loaded", fix)
    for row in rows:
        try:
            tools.open("doctor", row.tools_kwargs, None, selection=row.tool_selection)
            if row.interaction_kwargs is not None and len(interactions):
                interactions.open("doctor", row.interaction_kwargs)
        except UserError as error:
            yield problem(f"{row.uid}: {error}", "correct the row, or the tool")


def prompt_tools(config: Config, tools: ToolSet, row: Row) -> list[dict[str, Any]]:
    """Schemas of the tools in a row's prompt."""
    (loop,) = _loops_of(config, [row]).values()
    schemas: list[dict[str, Any]] = loop.prompt_tools(row, tools)
    return schemas


def runs_programs(config: Config, rows: Sequence[Row]) -> bool:
    """Whether an agent program (docs/gateway.md) plays one of the rows."""
    return any(issubclass(loop, ProgramAgent) for loop in _loops_of(config, rows).values())


def _loops(config: Config, rows: Sequence[Row]) -> Iterator[Finding]:
    loops = _loops_of(config, rows)
    for name, loop in loops.items():
        if not (loop.uses_tools or issubclass(loop, ProgramAgent)) and config.rollout.multi_turn.enable:
            fix = "set agent_name to tool_agent in the rows, or remove the column"
            yield warning(f"multi-turn is on, but rows name the agent loop {name}: no tools for them", fix)
    yield ok(f"agent loop: {', '.join(loops)}")


def _loops_of(config: Config, rows: Sequence[Row]) -> dict[str, Any]:
    """The classes of the rows' agent loops, by name."""
    agent, multi_turn = config.rollout.agent, config.rollout.multi_turn.enable
    names = sorted({loop_name(row.agent_name, agent.default_agent_loop, multi_turn=multi_turn) for row in rows})
    return {name: loop_class(name, agent.agent_loop_config_path, agent.default_agent_loop) for name in names}
