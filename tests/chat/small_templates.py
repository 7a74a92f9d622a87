"""Small templates, each with one feature of a real one that no package ships."""

from typing import Any

from agentrl.chat import Chat
from tests.chat.realia import tokenizer

SHOWN = """\
{%- macro shown(m) -%}
{%- if m.tool_calls -%}
{%- set call = m.tool_calls[0].function -%}
{{- m.content or '' }}<tool_call>{"name": "{{ call.name }}", "arguments": {{ call.arguments | tojson }}}</tool_call>
{%- else -%}{{- m.content -}}{%- endif -%}
{%- endmacro -%}
"""
LOOP = """\
{%- for m in messages -%}
{{- '<|im_start|>' + m.role + '\\n' -}}
{%- if m.role == 'assistant' -%}%TURN%{%- else -%}{{- m.content.replace('/no_think', '') -}}{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n%PROMPT%' -}}{%- endif -%}
"""


def chatml(turn: str = "{{- shown(m) -}}", prompt: str = "") -> str:
    """ChatML whose finished turns and generation prompt are as told."""
    return SHOWN + LOOP.replace("%TURN%", turn).replace("%PROMPT%", prompt)


ALWAYS = "{{- '<think>' + (m.reasoning_content or '') + '</think>' + shown(m) -}}"
CLOSES = (
    "{%- if m.reasoning_content -%}{{- '<think>' + m.reasoning_content -}}{%- endif -%}{{- '</think>' + shown(m) -}}"
)
LINES = (
    "{%- if m.reasoning_content -%}{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' -}}"
    "{%- else -%}{{- '<think></think>' -}}{%- endif -%}{{- shown(m) -}}"
)
SOMETIMES = (
    "{%- if m.reasoning_content -%}{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' -}}{%- endif -%}"
    "{{- shown(m) -}}"
)
NEVER = "{{- shown(m) -}}"
BRACKETS = CLOSES.replace("<think>", "[THINK]").replace("</think>", "[/THINK]")

THINKING = {
    "opens, always shown": chatml(ALWAYS, "<think>"),
    "opens with a newline, always shown": chatml(ALWAYS, "<think>\\n"),
    "opens, the turn only closes": chatml(CLOSES, "<think>"),
    "opens with a newline, an empty block on one line": chatml(LINES, "<think>\\n"),
    "opens, shown where there is some": chatml(SOMETIMES, "<think>\\n"),
    "opens, never shown": chatml(NEVER, "<think>\\n"),
    "closes at once, always shown": chatml(ALWAYS, "<think></think>"),
    "closes at once, the turn only closes": chatml(CLOSES, "</think>"),
    "closes at once, shown where there is some": chatml(SOMETIMES, "<think>\\n\\n</think>\\n\\n"),
    "closes at once, never shown": chatml(NEVER, "<think></think>\\n"),
    "brackets": chatml(BRACKETS, "[THINK]"),
}

SWITCH = (
    "{%- set ns = namespace(think=true) -%}{%- for m in messages -%}{%- if m.role in ['system', 'user'] -%}"
    "{%- if '/think' in m.content -%}{%- set ns.think = true -%}"
    "{%- elif '/no_think' in m.content -%}{%- set ns.think = false -%}{%- endif -%}{%- endif -%}{%- endfor -%}"
)
SWITCHED = SWITCH + chatml(NEVER, "%SWITCH%").replace(
    "assistant\\n%SWITCH%' -}}", "assistant\\n' -}}{{- '<think>\\n' if ns.think else '<think></think>' -}}"
)
"""A word of the system or the user switches thinking off, another one on again."""

COUNTED = """\
{%- if tools -%}{{- '<|im_start|>system\\n' + tools|tojson + '<|im_end|>\\n' -}}{%- endif -%}
{%- set ns = namespace(calls=0) -%}
{%- for m in messages -%}
{%- if m.tool_calls -%}
{{- '<|im_start|>assistant\\n' -}}
{%- for call in m.tool_calls -%}
{{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments|tojson -}}
{{- ', "number": ' + ns.calls|string + '}</tool_call>' -}}
{%- set ns.calls = ns.calls + 1 -%}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- elif m.role == 'tool' -%}
{%- set seen = namespace(n=0, at=-1) -%}
{%- for other in messages -%}{%- for call in other.tool_calls or [] -%}
{%- if call.id == m.tool_call_id and seen.at < 0 -%}{%- set seen.at = seen.n -%}{%- endif -%}
{%- set seen.n = seen.n + 1 -%}
{%- endfor -%}{%- endfor -%}
{{- '<|im_start|>tool\\n' + seen.at|string + ': ' + m.content + '<|im_end|>\\n' -}}
{%- else -%}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""
"""Results carry the number of their call in the whole conversation."""

NUMBERED = """\
{%- for m in messages -%}
{{- '<|im_start|>' + m.role + ' ' + loop.index|string + '\\n' + m.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant ' + (messages|length + 1)|string + '\\n' -}}{%- endif -%}
"""
"""Messages carry their number."""

REMINDED = """\
{%- if tools -%}{{- '<|im_start|>tools\\n' + tools|tojson + '<|im_end|>\\n' -}}{%- endif -%}
{%- for m in messages -%}
{{- '<|im_start|>' + m.role + '\\n' + ('<tools>' if tools and m.role == 'assistant' else '') + m.content -}}
{%- if m.role == 'user' and messages[0].role == 'system' -%}{{- '\\n(rules above)' -}}{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' + ('<tools>' if tools else '') -}}{%- endif -%}
"""
"""A system prompt changes every user message, tools change the generation prompt."""

USES_TOOLS = """\
{%- if tools -%}{{- '<|im_start|>system\\n' + tools|tojson + '<|im_end|>\\n' -}}{%- endif -%}
{%- for m in messages -%}
{%- if m.role == 'tool' -%}{{- '<|im_start|>tool\\n<tool_response>' + m.content + '</tool_response><|im_end|>\\n' -}}
{%- elif m.tool_calls -%}
{{- '<|im_start|>assistant\\n<tool_call>{"name": "' + m.tool_calls[0].function.name + '", "arguments": ' -}}
{{- m.tool_calls[0].function.arguments|tojson + '}</tool_call><|im_end|>\\n' -}}
{%- else -%}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n<|act|>' -}}{%- endif -%}
"""
PLAIN = """\
{%- for m in messages -%}
{%- if m.role not in ['system', 'user', 'assistant'] -%}{{- raise_exception('no ' + m.role) -}}{%- endif -%}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""
NAMED = {"default": PLAIN, "tool_use": USES_TOOLS}
"""Two templates, as Command-R and Hermes have them."""


def small_chat(source: str, **more: Any) -> Chat:
    return Chat(tokenizer("qwen"), chat_template=source, **more)
