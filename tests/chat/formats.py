"""Each tool-call format with real templates that write it, and hand-written turns."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """A turn, and the calls and content a reader finds in it."""

    format: str
    text: str
    calls: list[tuple[str, dict]]
    content: str = ""
    reasoning: str | None = None


K3 = '<|open|>call tool="{}" index="{}"<|sep|>{}<|close|>call<|sep|>'
K3_ARGUMENT = '<|open|>argument key="{}" type="{}"<|sep|>{}<|close|>argument<|sep|>'
DSML = '<｜DSML｜tool_calls><｜DSML｜invoke name="f">{}</｜DSML｜invoke></｜DSML｜tool_calls>'
M3 = "]<]minimax[>["
DS = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>"

WELL_FORMED = [
    Sample("hermes", '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>', [("f", {"x": 1})]),
    Sample("qwen", 'Hm.\n<tool_call>{"name": "f", "arguments": {}}</tool_call>', [("f", {})], "Hm."),
    Sample(
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"x": "</tool_call> \\"q\\" é\\n"}}</tool_call>\n'
        '<tool_call>{"name": "g", "arguments": {"y": {"z": [1, null]}}}</tool_call>',
        [("f", {"x": '</tool_call> "q" é\n'}), ("g", {"y": {"z": [1, None]}})],
    ),
    Sample("hermes", '<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>', [("f", {"x": 1})]),
    Sample("hermes", '<tool_call>{"name": "f", "arguments": {"x": "1\n2"}}</tool_call>', [("f", {"x": "1\n2"})]),
    Sample("hermes", "<think>\nHm.\n</think>\n\nNo calls here.", [], "No calls here.", "Hm."),
    Sample("hermes", "I would <call> it.", [], "I would <call> it."),
    Sample("llama3_json", '{"name": "f", "parameters": {"x": 1}}', [("f", {"x": 1})]),
    Sample(
        "llama3_json",
        '<|python_tag|>{"name": "f", "parameters": {"x": "a;b"}}; {"name": "g", "parameters": {}}',
        [("f", {"x": "a;b"}), ("g", {})],
    ),
    Sample("llama3_json", '<|python_tag|>search.call(query="who?")', [("search", {"query": "who?"})]),
    Sample("llama3_json", '{"answer": 42}', [], '{"answer": 42}'),
    Sample("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}, "id": "abcdefghi"}]', [("f", {"x": 1})]),
    Sample(
        "mistral",
        'Hm.[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"x": 1}[TOOL_CALLS]g[ARGS]{}',
        [("f", {"x": 1}), ("g", {})],
        "Hm.",
    ),
    Sample("mistral", '[TOOL_CALLS]f{"x": 1}', [("f", {"x": 1})]),
    Sample("pythonic", "[f(x=1, y='a\\'b'), g()]", [("f", {"x": 1, "y": "a'b"}), ("g", {})]),
    Sample(
        "pythonic",
        "<|python_start|>[f(x=[1, -2.5, {'k': None}], y=True)]<|python_end|>",
        [("f", {"x": [1, -2.5, {"k": None}], "y": True})],
    ),
    Sample("pythonic", "Hm. <|tool_call_start|>[f(x=true)]<|tool_call_end|>", [("f", {"x": True})], "Hm."),
    Sample("pythonic", "[1, 2] is a list.", [], "[1, 2] is a list."),
    Sample(
        "qwen3_coder",
        "Hm.\n\n<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n<parameter=y>\ntwo\nlines </parameter> é\n"
        "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
        [("f", {"x": 1, "y": "two\nlines </parameter> é"}), ("g", {})],
        "Hm.",
    ),
    Sample(
        "qwen3_coder",
        "<tool_call><function=f><parameter=x>True</parameter></function></tool_call>",
        [("f", {"x": True})],
    ),
    Sample(
        "glm",
        "<think>a</think>\nHm.\n<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>[1, 2]</arg_value>\n"
        "<arg_key>y</arg_key>\n<arg_value>a</arg_value> b</arg_value>\n</tool_call>",
        [("f", {"x": [1, 2], "y": "a</arg_value> b"})],
        "Hm.",
        "a",
    ),
    Sample(
        "glm",
        "<tool_call>f<arg_key>x</arg_key><arg_value>1</arg_value></tool_call><tool_call>g</tool_call>",
        [("f", {"x": 1}), ("g", {})],
    ),
    Sample(
        "deepseek",
        "Hm.<｜tool▁calls▁begin｜>" + DS.format("f", '{"x": 1}') + "\n" + DS.format("g", "{}") + "<｜tool▁calls▁end｜>",
        [("f", {"x": 1}), ("g", {})],
        "Hm.",
    ),
    Sample(
        "deepseek",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"x": "é"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        [("f", {"x": "é"})],
    ),
    Sample(
        "kimi",
        'Hm.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"x": 1}'
        "<|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        [("f", {"x": 1}), ("g", {})],
        "Hm.",
    ),
    Sample(
        "gpt_oss",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
        '<|constrain|>json<|message|>{"x": 1}<|call|>',
        [("f", {"x": 1})],
        "",
        "Hm.",
    ),
    Sample("gpt_oss", ' to=functions.f<|channel|>commentary json<|message|>{"x": 1}', [("f", {"x": 1})]),
    Sample("gpt_oss", "<|channel|>final<|message|>Done.<|return|>", [], "Done."),
    Sample(
        "deepseek_v4",
        'Hm.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="x" string="true">1'
        '</｜DSML｜parameter>\n<｜DSML｜parameter name="y" string="false">{"z": [1, null]}</｜DSML｜parameter>\n'
        '</｜DSML｜invoke>\n<｜DSML｜invoke name="g">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
        [("f", {"x": "1", "y": {"z": [1, None]}}), ("g", {})],
        "Hm.",
    ),
    Sample(
        "deepseek_v4",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="x" string="true">'
        '"a"</｜DSML｜parameter>'
        "\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        [("f", {"x": '"a"'})],
    ),
    Sample(
        "deepseek_v4",
        '<｜DSML｜ calls>\n<｜DSML｜ invoke name="f">\n<｜DSML｜ parameter name="x" string="false">'
        "true</｜DSML｜ parameter>\n"
        "</｜DSML｜ invoke>\n</｜DSML｜ calls>",
        [("f", {"x": True})],
    ),
    Sample(
        "kimi_k3",
        "<|open|>think<|sep|>Hm.<|close|>think<|sep|><|open|>response<|sep|>Let me see.<|close|>response<|sep|>"
        "<|open|>tools<|sep|>"
        + K3.format("f", 1, K3_ARGUMENT.format("x", "string", '12 "q"') + K3_ARGUMENT.format("y", "number", "12"))
        + K3.format("g", 2, "")
        + "<|close|>tools<|sep|><|close|>message<|sep|>",
        [("f", {"x": '12 "q"', "y": 12}), ("g", {})],
        "Let me see.",
        "Hm.",
    ),
    Sample(
        "kimi_k3",
        "<|open|>tools<|sep|>"
        + K3.format("f", 1, '<|open|>json type="object"<|sep|>{"x": {"y": 1}}<|close|>json<|sep|>')
        + "<|close|>tools<|sep|>",
        [("f", {"x": {"y": 1}})],
    ),
    Sample("kimi_k3", "<|open|>response<|sep|>Done.<|close|>response<|sep|><|close|>message<|sep|>", [], "Done."),
    Sample(
        "gemma4",
        '<|channel>thought\nHm.\n<channel|><|tool_call>call:f{x:<|"|>a, "b": {c}\n<|"|>,y:{<|"|>z<|"|>'
        ":[1,-2.5,true,null]}}"
        "<tool_call|><|tool_call>call:g{}<tool_call|>",
        [("f", {"x": 'a, "b": {c}\n', "y": {"z": [1, -2.5, True, None]}}), ("g", {})],
        "",
        "Hm.",
    ),
    Sample(
        "minimax_m2",
        '<think>\na\n</think>\n\nHm.\n<minimax:tool_call>\n<invoke name="f">\n<parameter name="x">'
        "two\nlines</parameter>\n"
        '<parameter name="y">[1, {"z": null}]</parameter>\n</invoke>\n<invoke name="g">\n</invoke>'
        "\n</minimax:tool_call>",
        [("f", {"x": "two\nlines", "y": [1, {"z": None}]}), ("g", {})],
        "Hm.",
        "a",
    ),
    Sample(
        "minimax_m3",
        f'<mm:think>a</mm:think>Hm.\n{M3}<tool_call>\n{M3}<invoke name="f">{M3}<x>two\nlines{M3}</x>'
        f"{M3}<y>{M3}<z>1{M3}</z>"
        f"{M3}</y>{M3}<l>{M3}<item>1{M3}</item>{M3}<item>b{M3}</item>{M3}</l>{M3}</invoke>"
        f'\n{M3}<invoke name="g">{M3}</invoke>\n'
        f"{M3}</tool_call>",
        [("f", {"x": "two\nlines", "y": {"z": 1}, "l": [1, "b"]}), ("g", {})],
        "Hm.",
        "a",
    ),
    Sample(
        "seed_oss",
        "<seed:think>a</seed:think>\nHm.\n\n<seed:tool_call>\n<function=f>\n<parameter=x>\ntwo\n</parameter>\n"
        "<parameter=y>{'z': [True, None]}</parameter>\n</function>\n</seed:tool_call>\n<seed:tool_call>\n<function=g>\n"
        "</function>\n</seed:tool_call>",
        [("f", {"x": "\ntwo\n", "y": {"z": [True, None]}}), ("g", {})],
        "Hm.",
        "a",
    ),
    Sample(
        "hunyuan",
        "<think>a</think>Hm.<tool_calls>\n<tool_call>f<tool_sep>\n<arg_key>x</arg_key>\n<arg_value>"
        "a</arg_value> b</arg_value>\n"
        "</tool_call>\n<tool_call>g<tool_sep>\n</tool_call>\n</tool_calls>",
        [("f", {"x": "a</arg_value> b"}), ("g", {})],
        "Hm.",
        "a",
    ),
    Sample(
        "hunyuan",
        "<think:opensource></think:opensource><tool_calls:opensource>\n<tool_call:opensource>f<tool_sep:opensource>\n"
        "<arg_key:opensource>x</arg_key:opensource>\n<arg_value:opensource>1</arg_value:opensource>\n"
        "</tool_call:opensource>\n</tool_calls:opensource>",
        [("f", {"x": 1})],
        "",
        "",
    ),
    Sample(
        "nemotron_v2",
        'Hm.\n\n<TOOLCALL>[{"name": "f", "arguments": {"x": "</TOOLCALL>'
        '"}}, {"name": "g", "arguments": {}}]</TOOLCALL>',
        [("f", {"x": "</TOOLCALL>"}), ("g", {})],
        "Hm.",
    ),
    Sample(
        "phi4_mini",
        'Hm.<|tool_call|>{"name": "f", "arguments": {"x": 1}}<|/tool_call|><|tool_call|>[{"name": "g"}]<|/tool_call|>',
        [("f", {"x": 1}), ("g", {})],
        "Hm.",
    ),
    Sample(
        "phi4_mini",
        'functools[{"name": "f", "arguments": {"x": "]"}}, {"name": "g", "arguments": {}}]',
        [("f", {"x": "]"}), ("g", {})],
    ),
    Sample(
        "command",
        "<|START_THINKING|>a<|END_THINKING|><|START_ACTION|>"
        '[\n    {"tool_call_id": "0", "tool_name": "f", "parameters": '
        '{"x": 1}},\n    {"tool_call_id": "1", "tool_name": "g", "parameters": {}}\n]<|END_ACTION|>',
        [("f", {"x": 1}), ("g", {})],
        "",
        "a",
    ),
    Sample("command", "<|START_RESPONSE|>Done.<|END_RESPONSE|>", [], "Done."),
    Sample(
        "apertus",
        '<|inner_prefix|>a<|tools_prefix|>[{"f": {"x": 1}}, {"g": {}}]<|tools_suffix|>',
        [("f", {"x": 1}), ("g", {})],
        "",
        "a",
    ),
    Sample(
        "solar",
        "<|think|>a<|end|><|begin|>assistant<|content|>Hm.<|end|><|begin|>assistant<|tool_calls|>"
        "<|tool_call:begin|>a1b2c3d4e5"
        '<|tool_call:name|>f<|tool_call:args|>{"x": 1}<|tool_call:end|><|tool_call:begin|>b<|tool_call:name|>g'
        "<|tool_call:args|>{}<|tool_call:end|>",
        [("f", {"x": 1}), ("g", {})],
        "Hm.",
        "a",
    ),
    Sample(
        "gigachat",
        'Hm.<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "f", "arguments": {"x": 1}}',
        [("f", {"x": 1})],
        "Hm.",
    ),
    Sample(
        "gigachat",
        '<think>a</think>\n\n<｜GCML｜tool_calls>\n<｜GCML｜invoke name="f">\n'
        '<｜GCML｜parameter name="x" string="true">1'
        '</｜GCML｜parameter>\n</｜GCML｜invoke>\n<｜GCML｜invoke name="g">\n</｜GCML｜invoke>\n</｜GCML｜tool_calls>',
        [("f", {"x": "1"}), ("g", {})],
        "",
        "a",
    ),
    Sample(
        "functionary",
        'Hm.<function=f>{"x": "</function>"}</function><function=g>{}</function>',
        [("f", {"x": "</function>"}), ("g", {})],
        "Hm.",
    ),
    Sample("functionary", 'f\n{"x": 1}>>>g\n{}', [("f", {"x": 1}), ("g", {})]),
    Sample("functionary", 'all\nHm.>>>f\n{"x": 1}', [("f", {"x": 1})], "Hm."),
    Sample("functionary", "all\n>>> print(1)\n1", [], ">>> print(1)\n1"),
    Sample(
        "llama3_json",
        '<|python_start|>Hm.<|python_end|>{"name": "f", "parameters": {"x": 1}}{"name": "g", "parameters": {}}',
        [("f", {"x": 1}), ("g", {})],
        "Hm.",
    ),
    Sample(
        "llama3_json",
        'A call is {"name": "f", "parameters": {}}, say.',
        [],
        'A call is {"name": "f", "parameters": {}}, say.',
    ),
    Sample("pythonic", '[f(x=\'it\'s\', y="a "b"\n")]', [("f", {"x": "it's", "y": 'a "b"\n'})]),
    Sample("mistral", '[THINK]a[/THINK]Hm.[TOOL_CALLS]f[ARGS]{"x": 1}', [("f", {"x": 1})], "Hm.", "a"),
]

# (format, turn, what the error says, the name it could still read)
MALFORMED = [
    ("hermes", '<tool_call>{"name": "f", "arguments": {"x": 1}</tool_call>', "invalid JSON at character 35", "unknown"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"x": 1}}', "</tool_call> is missing", "f"),
    ("hermes", "<tool_call>", "at the end", "unknown"),
    ("hermes", '<tool_call>{"arguments": {}}</tool_call>', '"name" is missing', "unknown"),
    ("hermes", '<tool_call>["f"]</tool_call>', "expected a JSON object, got list", "unknown"),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        'arguments of "f" must be a JSON object',
        "unknown",
    ),
    ("hermes", '<tool_call>{"name": "f"} and so on</tool_call>', "unexpected text 'and so on", "f"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>', "NaN is not JSON", "unknown"),
    ("llama3_json", '{"name": "f", "parameters": {"x": 1}', "invalid JSON", "unknown"),
    ("llama3_json", "<|python_tag|>print(1", "invalid JSON", "unknown"),
    ("mistral", '[TOOL_CALLS] [{"name": "f"', "invalid JSON", "unknown"),
    ("mistral", "[TOOL_CALLS] []", "list of calls is empty", "unknown"),
    ("mistral", '[TOOL_CALLS]f[ARGS]{"x": }', "invalid JSON", "unknown"),
    ("pythonic", "[f(x=1", "invalid Python: ',' is missing at the end", "f"),
    ("pythonic", "[f(1)]", "every argument needs its name", "f"),
    ("pythonic", "[f(x=open('a'))]", "is not a literal", "f"),
    ("pythonic", "<|python_start|>[f(x=1)]", "<|python_end|> is missing", "unknown"),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=x>\n1\n", "cannot read it from '<parameter=x>", "f"),
    ("qwen3_coder", "<tool_call>\n<function=f>\n", "closing tags are missing", "f"),
    ("qwen3_coder", "<tool_call>\nf\n</tool_call>", "no tool name", "unknown"),
    ("glm", "<tool_call>f\n<arg_key>x</arg_key>\n", "unexpected text '<arg_key>", "f"),
    (
        "glm",
        f"<tool_call>f{2 * '<arg_key>x</arg_key><arg_value>1</arg_value>'}</tool_call>",
        "'x' is there twice",
        "f",
    ),
    (
        "deepseek",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n<｜tool▁call▁end｜>",
        "``` after its JSON",
        "f",
    ),
    ("deepseek", "<｜tool▁call▁begin｜>f<｜tool▁call▁end｜>", "no name and <｜tool▁sep｜>", "unknown"),
    (
        "kimi",
        "<|tool_call_begin|>f<|tool_call_argument_begin|>{}<|tool_call_end|>",
        "no functions.NAME:NUMBER",
        "unknown",
    ),
    ("kimi", "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}", "<|tool_call_end|> is missing", "f"),
    ("gpt_oss", "<|channel|>commentary to=functions.f<|message|>{", "invalid JSON", "f"),
    ("gpt_oss", "<|channel|>commentary to=functions.f", "<|message|> is missing", "f"),
    ("deepseek_v4", '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n', "closing tags are missing", "f"),
    (
        "deepseek_v4",
        DSML.format('<｜DSML｜parameter name="x" string="false">a</｜DSML｜parameter>'),
        '"x" says string="false" and is no JSON',
        "f",
    ),
    ("kimi_k3", "<|open|>tools<|sep|>f<|close|>tools<|sep|>", "no tool name after <|open|>tools<|sep|>", "unknown"),
    ("gemma4", "<|tool_call>call:f{x:Paris}<tool_call|>", "'Paris}<tool_call|>' is not a literal", "f"),
    ("gemma4", '<|tool_call>call:f{x:<|"|>Paris}<tool_call|>', "a string is not closed", "f"),
    ("minimax_m2", '<minimax:tool_call>\n<invoke name="f">', "closing tags are missing", "f"),
    ("minimax_m3", f'{M3}<tool_call>{M3}<invoke name="f">{M3}<x>1{M3}</y>', "no element, or too many, near", "f"),
    ("minimax_m3", f"{M3}<tool_call>{M3}</tool_call>", "cannot read it from", "unknown"),
    ("seed_oss", "<seed:tool_call>f</seed:tool_call>", "no tool name after <seed:tool_call>", "unknown"),
    ("hunyuan", "<tool_calls><tool_call>f<tool_sep><arg_key>x</tool_call></tool_calls>", "cannot read it from", "f"),
    ("nemotron_v2", '<TOOLCALL>{"name": "f"}', "</TOOLCALL> is missing", "f"),
    ("phi4_mini", '<|tool_call|>{"name": 1}<|/tool_call|>', '"name" is missing', "unknown"),
    ("phi4_mini", "functools[}", "invalid JSON", "unknown"),
    ("command", '<|START_ACTION|>[{"name": "f"}]<|END_ACTION|>', '"tool_name" is missing', "unknown"),
    ("apertus", '<|tools_prefix|>[{"f": {}, "g": {}}]<|tools_suffix|>', "one key, the tool's name", "unknown"),
    ("solar", "<|tool_call:begin|>f{}<|tool_call:end|>", "no <|tool_call:name|>NAME", "unknown"),
    ("gigachat", "function call<|role_sep|>\nf()", "invalid JSON", "unknown"),
    ("functionary", "<function=f>{<function", "invalid JSON", "f"),
    ("functionary", "f\n{x", "invalid JSON", "f"),
]
