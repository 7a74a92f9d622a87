"""Reads a sampled turn: its thinking, its content and its tool calls."""

from functools import cached_property

from agentrl.chat.fixed_base import FixedBase
from agentrl.chat.parsers import Parser
from agentrl.chat.template import Template, TemplateRefusal
from agentrl.chat.thinking import BLOCKS, begins_with, left_open
from agentrl.trajectory.message import Message, Reply, Tools, as_tool_call


class TurnReader:
    """Reads the turns of one template with one parser of tool calls. Thread-safe."""

    def __init__(self, template: Template, parser: Parser, base: FixedBase) -> None:
        """`base`: the text that the template writes around turns."""
        self.template, self.parser, self.base = template, parser, base

    def read(self, text: str, *, closed: bool, tools: Tools, lead: str | None) -> Reply:
        """Read a turn; `lead` is the end of the text before it, None if unknown."""
        opening = self._open_block(text, lead)
        if opening:
            text = f"{opening}\n{text}"
        parsed = self.parser(text, tools)
        calls = parsed.calls if tools or tools is None else []  # where the prompt shows no tool, a call is text
        message: Message = {"role": "assistant", "content": parsed.content}
        broken = any(call.error for call in calls) or len(calls) < len(parsed.calls)
        if parsed.reasoning is not None and self.template.reads_reasoning:
            message["reasoning_content"] = parsed.reasoning
            message["content"] = text.removeprefix(parsed.preamble) if broken else parsed.content
        else:
            message["content"] = text if broken else parsed.preamble + parsed.content
        if calls and not broken:
            message["tool_calls"] = [as_tool_call(call) for call in calls]
        return Reply(message, calls, closed)

    def _open_block(self, text: str, lead: str | None) -> str:
        """The tag of the think block that the prompt opened and `text` continues; "" without one."""
        opening = left_open(self.base.opening if lead is None else lead)
        if not opening or begins_with(text) == opening:
            return ""
        return opening if lead is not None or BLOCKS[opening] in text or self._always_opens else ""

    @cached_property
    def _always_opens(self) -> bool:
        """Whether turns after a tool's result begin in a think block as well: DeepSeek's have no generation prompt."""
        try:
            after_tool = self.base.after([{"role": "tool", "content": "x", "name": "x"}]).text
        except TemplateRefusal:
            return True
        return bool(left_open(after_tool))
