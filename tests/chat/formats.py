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
    ("pythonic", "[f(x=1", "invalid Python at line 1", "unknown"),
    ("pythonic", "[f(1)]", "every argument needs its name", "f"),
    ("pythonic", "[f(x=open('a'))]", "is not a literal", "f"),
    ("pythonic", "<|python_start|>[f(x=1)]", "<|python_end|> is missing", "unknown"),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=x>\n1\n", "cannot read it from '<parameter=x>", "f"),
    ("qwen3_coder", "<tool_call>\n<function=f>\n", "closing tags are missing", "f"),
    ("qwen3_coder", "<tool_call>\nf\n</tool_call>", "no tool name", "unknown"),
    ("glm", "<tool_call>f\n<arg_key>x</arg_key>\n", "cannot read it from '<arg_key>", "f"),
    (
        "glm",
        "<tool_call>f<arg_key>x</arg_key><arg_value>1</arg_value><arg_key>x</arg_key><arg_value>1</arg_value></tool_call>",
        "'x' is there twice",
        "f",
    ),
    (
        "deepseek",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n<｜tool▁call▁end｜>",
        "``` after its JSON",
        "unknown",
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
]
