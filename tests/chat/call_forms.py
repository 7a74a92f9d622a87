# ruff: noqa: E501
"""How models' own templates write calls: the part of each template that does, as small as it gets.

`calls` is a list of {"name", "arguments"}; what a text needs besides stands beside it.
"""

SPELLED = "{{ value if value is string else value | tojson }}"
DSML = (
    '<｜{0}｜{1}>\n{{% for call in calls %}}<｜{0}｜{2}invoke name="{{{{ call.name }}}}">\n'
    '{{% for key, value in call.arguments.items() %}}<｜{0}｜{2}parameter name="{{{{ key }}}}" '
    "string=\"{{{{ 'true' if value is string else 'false' }}}}\">"
    "{{{{ value if value is string else value | tojson }}}}</｜{0}｜{2}parameter>\n{{% endfor %}}"
    "</｜{0}｜{2}invoke>\n{{% endfor %}}</｜{0}｜{1}>"
)
GEMMA = (
    '{% macro put(value) %}{% if value is none %}null{% elif value is string %}<|"|>{{ value }}<|"|>'
    "{% elif value is boolean %}{{ 'true' if value else 'false' }}{% elif value is mapping %}{ {%- for key, inner in "
    "value.items() %}{{ ',' if not loop.first }}{{ key }}:{{ put(inner) }}{% endfor %}}{% elif value is sequence %}["
    "{% for inner in value %}{{ ',' if not loop.first }}{{ put(inner) }}{% endfor %}]{% else %}{{ value }}{% endif %}"
    "{% endmacro %}{% for call in calls %}<|tool_call>call:{{ call.name }}{{ put(call.arguments) }}<tool_call|>{% endfor %}"
)
MINIMAX_3 = (
    "{% set ns = ']<]minimax[>[' %}{% macro put(value) %}{% if value is mapping %}{% for key, inner in value.items() %}"
    "{{ ns }}<{{ key }}>{{ put(inner) }}{{ ns }}</{{ key }}>{% endfor %}{% elif value is string %}{{ value }}"
    "{% elif value is sequence %}{% for inner in value %}{{ ns }}<item>{{ put(inner) }}{{ ns }}</item>{% endfor %}"
    "{% else %}{{ value | tojson }}{% endif %}{% endmacro %}{{ ns }}<tool_call>\n{% for call in calls %}{{ ns }}"
    '<invoke name="{{ call.name }}">{{ put(call.arguments) }}{{ ns }}</invoke>\n{% endfor %}{{ ns }}</tool_call>'
)
KIMI_3 = (
    '<|open|>tools<|sep|>{% for call in calls %}<|open|>call tool="{{ call.name }}" index="{{ loop.index }}"<|sep|>'
    '{% for key, value in call.arguments.items() %}<|open|>argument key="{{ key }}" type="{{ "boolean" if value is boolean'
    ' else "null" if value is none else "number" if value is number else "string" if value is string else "object" if '
    'value is mapping else "array" }}"<|sep|>' + SPELLED + "<|close|>argument<|sep|>{% endfor %}<|close|>call<|sep|>"
    "{% endfor %}<|close|>tools<|sep|>"
)
NAMED = '{"name": "{{ call.name }}", "arguments": {{ call.arguments | tojson }}}'

JSON_FORMS = {
    "nemotron_v2": "<TOOLCALL>[{% for call in calls %}" + NAMED + "{{ ', ' if not loop.last }}{% endfor %}]</TOOLCALL>",
    "phi4_mini": "{% for call in calls %}<|tool_call|>" + NAMED + "<|/tool_call|>{% endfor %}",
    "command": (
        "<|START_ACTION|>[\n{% for call in calls %}    "
        '{"tool_call_id": "{{ loop.index0 }}", "tool_name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}'
        "{{ ',' if not loop.last }}\n{% endfor %}]<|END_ACTION|>"
    ),
    "apertus": (
        "<|tools_prefix|>[{% for call in calls %}"
        '{"{{ call.name }}": {{ call.arguments | tojson }}}{{ ", " if not loop.last }}{% endfor %}]<|tools_suffix|>'
    ),
    "solar": (
        "<|tool_calls|>{% for call in calls %}<|tool_call:begin|>a{{ loop.index }}<|tool_call:name|>{{ call.name }}"
        "<|tool_call:args|>{{ call.arguments | tojson }}<|tool_call:end|>{% endfor %}"
    ),
    "functionary": (
        "{% for call in calls %}{{ '>>>' if not loop.first }}{{ call.name }}\n{{ call.arguments | tojson }}{% endfor %}"
    ),
    "llama3_json": (
        "Let me see.{% for call in calls %}"
        '{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}{% endfor %}'
    ),
    "deepseek_v4": DSML.format("DSML", "tool_calls", ""),
    "deepseek_v32": DSML.format("DSML", "function_calls", ""),
    "deepseek_v41": DSML.format("DSML", " calls", " "),
    "gigachat35": DSML.format("GCML", "tool_calls", ""),
    "kimi_k3": KIMI_3,
    "gemma4": GEMMA,
}
"""Forms that carry JSON's types by themselves."""
ONE_CALL_FORMS = {
    "gigachat": "{% for call in calls %}Hm.<|message_sep|>\n\nfunction call<|role_sep|>\n" + NAMED + "{% endfor %}",
}
SPELLED_FORMS = {
    "minimax_m2": (
        '<minimax:tool_call>\n{% for call in calls %}<invoke name="{{ call.name }}">\n{% for key, value in '
        'call.arguments.items() %}<parameter name="{{ key }}">'
        + SPELLED
        + "</parameter>\n{% endfor %}</invoke>\n{% endfor %}"
        "</minimax:tool_call>"
    ),
    "seed_oss": (
        "{% for call in calls %}<seed:tool_call>\n<function={{ call.name }}>\n{% for key, value in call.arguments.items() %}"
        "<parameter={{ key }}>{{ value | string }}</parameter>\n{% endfor %}</function>\n</seed:tool_call>\n{% endfor %}"
    ),
    "hunyuan": (
        "<tool_calls>\n{% for call in calls %}<tool_call>{{ call.name }}<tool_sep>\n{% for key, value in "
        "call.arguments.items() %}<arg_key>{{ key }}</arg_key>\n<arg_value>" + SPELLED + "</arg_value>\n{% endfor %}"
        "</tool_call>\n{% endfor %}</tool_calls>"
    ),
    "minimax_m3": MINIMAX_3,
}
"""Forms without types: the tools' schemas say which values are text."""
FORMAT_OF = {"deepseek_v32": "deepseek_v4", "deepseek_v41": "deepseek_v4", "gigachat35": "gigachat"}
"""Where a form has another name than the format that reads it."""
