"""Each mistake in a YAML or Python file gives one line that names the culprit and the fix."""

import pytest

from agentrl.core.errors import UserError
from agentrl.tools.loading import check_tools

CLASS = """
from agentrl.tools import BaseTool, OpenAIFunctionToolSchema

class Tool(BaseTool):
    async def execute(self, instance_id, parameters, **kwargs):
        return "said " + parameters["text"]

class OwnSchema(Tool):
    def get_openai_tool_schema(self):
        return OpenAIFunctionToolSchema.model_validate({"type": "function", "function": {"name": "own"}})

class NotATool:
    def __init__(self, config, tool_schema):
        pass

class Explodes(Tool):
    def __init__(self, config, tool_schema):
        raise OSError("no such server")

class Lazy(BaseTool):
    pass

class Forgot(BaseTool):
    async def execute(self, instance_id, parameters, **kwargs):
        print(parameters)

class Few(BaseTool):
    async def execute(self, parameters):
        return "x"

class Named(BaseTool):
    async def execute(self, city, unit):
        return "x"

class Yields(Tool):
    async def execute(self, instance_id, parameters, **kwargs):
        yield "x"

class OwnKey(Tool):
    def __init__(self, config, tool_schema):
        super().__init__(config, tool_schema)
        self.limit = config.get("time_out")

class Released(Tool):
    async def release(self):
        return None

value = 3
"""
SCHEMA = "{type: function, function: {name: echo, description: d, parameters: {type: object, properties: {}}}}"


def entry(class_name="mytool.Tool", config="{type: native}", schema=SCHEMA):
    return f"  - class_name: {class_name}\n    config: {config}\n    tool_schema: {schema}\n"


@pytest.fixture
def yaml(write):
    """Write the tool file and a YAML of these entries; returns the YAML's path."""

    def yaml(*entries):
        write("mytool.py", CLASS)
        return write("tools.yaml", "tools:\n" + "".join(entries))

    return yaml


def refusal(load, *paths):
    with pytest.raises(UserError) as caught:
        load(*paths)
    message = str(caught.value)
    assert "\n" not in message
    return message


async def test_a_class_beside_the_yaml(yaml, load):
    session = load(yaml(entry())).open("k", {}, None)
    assert (await session.call("echo", {"text": "hi"})).text == "said hi"


async def test_a_class_on_the_import_path_and_in_the_current_folder(write, load, monkeypatch, tmp_path):
    write("pack_of_mine/deep/thing.py", CLASS)
    monkeypatch.chdir(tmp_path)
    path = write("elsewhere/tools.yaml", "tools:\n" + entry("pack_of_mine.deep.thing.Tool"))
    assert len(load(path)) == 1


def test_a_tool_file_may_import_its_neighbour(write, load):
    write("neighbour_of_mytool.py", "NAME = 'x'\n")
    write("mytool.py", "import neighbour_of_mytool\n" + CLASS)
    assert len(load(write("tools.yaml", "tools:\n" + entry()))) == 1


def test_config_reaches_the_tool_resolved(write, load, monkeypatch):
    monkeypatch.setenv("MY_URL", "http://there")
    write("mytool.py", CLASS + "    \nclass Seen(Tool):\n    def __init__(self, config, tool_schema):\n"
          "        super().__init__(config, tool_schema)\n        assert config == {'type': 'native', 'url': 'http://there'}\n"
          "        assert type(config) is dict\n")  # fmt: skip
    load(write("tools.yaml", "tools:\n" + entry("mytool.Seen", "{type: native, url: '${oc.env:MY_URL}'}")))


def test_missing_type_and_missing_config_are_accepted(yaml, load):
    assert len(load(yaml(entry(config="{}")))) == 1
    assert len(load(yaml("  - class_name: mytool.OwnSchema\n"))) == 1


def test_without_tool_schema_the_class_is_asked(yaml, load):
    tools = load(yaml("  - {class_name: mytool.OwnSchema, config: {type: native}}\n"))
    assert [schema["function"]["name"] for schema in tools.schemas()] == ["own"]


def test_the_model_sees_the_whole_schema(yaml, load):
    schema = (
        "{type: function, function: {name: n, description: d, parameters: {type: object, properties: "
        "{q: {type: array, items: {type: string}, default: [], description: d}}, required: [q]}}}"
    )
    (shown,) = load(yaml(entry(schema=schema))).schemas()
    q = shown["function"]["parameters"]["properties"]["q"]
    assert q == {"type": "array", "items": {"type": "string"}, "default": [], "description": "d"}


def test_verl_s_misspelt_item_key_loads(yaml, load):
    schema = (
        "{type: function, function: {name: search, description: d, parameters: {type: object, properties: "
        "{query_list: {type: array, item: {type: string}}}, required: [query_list]}, strict: false}}"
    )
    assert len(load(yaml(entry(schema=schema)))) == 1


def test_no_files_no_tools(load):
    tools = load()
    assert len(tools) == 0
    assert tools.schemas() == []


def test_selection(yaml, load):
    tools = load(yaml(entry(), "  - class_name: mytool.OwnSchema\n"))
    assert [s["function"]["name"] for s in tools.schemas(["own"])] == ["own"]
    with pytest.raises(UserError, match=r"tool_selection names 'nope': the tools are echo, own"):
        tools.schemas(["nope"])


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ("  - config: {}\n", "tools[0] has no class_name: add `class_name: module.Class`"),
        (entry("Tool"), "class_name 'Tool' has no module: write module.Class"),
        (entry("mytool.Missing"), "has no class 'Missing'"),
        (entry("mytool.value"), "has no class 'value'"),
        (entry("no_such_module.Tool"), "found neither no_such_module.py beside the YAML nor a module to import"),
        (
            entry("mytool.NotATool"),
            "lacks create, execute, calc_reward, release: derive it from agentrl.tools.BaseTool",
        ),
        (entry("mytool.Explodes"), "mytool.Explodes(...): OSError: no such server"),
        (entry("mytool.Tool", schema="null"), "has no schema: write tool_schema in the YAML or override"),
        (entry(schema="{type: function, function: {description: d}}"), "tool_schema: name is missing"),
        (entry(schema=SCHEMA.replace("{}", "{x: {type: int}}")), "properties.x.type is 'int': write integer"),
        (entry(config="{type: mcp}"), "config.type mcp: write `mcp:` with mcp_servers_config_path below it"),
        (entry(config="{type: other}"), "config.type is 'other': write native or mcp"),
        (entry(config="{timeout: 0}"), "config.timeout is 0: write seconds over 0"),
        (entry(config="{timeout: soon}"), "config.timeout is 'soon'"),
        (entry(config="{retries: -1}"), "config.retries is -1"),
        (entry(config="{max_concurrency: 0}"), "config.max_concurrency is 0"),
        (entry(config="{on_error: shrug}"), "config.on_error is 'shrug': use one of infra, tell_model"),
        (entry(config="[1]"), "config is [1]: write a mapping"),
        (entry() + entry(), "a tool named 'echo' is in"),
        (entry("mytool.Lazy"), "mytool.Lazy has no execute(): write `async def execute(self, instance_id, parameters"),
        (entry("mytool.Forgot"), "Forgot.execute never returns anything: return text for the model"),
        (entry("mytool.Few"), "Few.execute(parameters) cannot be called with instance_id and parameters: write `async"),
        (entry("mytool.Released"), "Released.release() cannot be called with instance_id: write `async def release("),
        (entry("mytool.Yields"), "Yields.execute has a `yield`: return the answer instead"),
        (
            entry("mytool.Named", schema=SCHEMA.replace("{}", "{city: {type: string}}")),
            "Named.execute takes the argument 'city' by itself: all arguments come in a dict",
        ),
        (entry(config="{timeoutt: 5}"), "tools[0]: config.timeoutt: did you mean timeout?"),
        (entry(config="{Max-Concurrency: 5}"), "config.Max-Concurrency: did you mean max_concurrency?"),
        (entry(config="{in_thread: sometimes}"), "config.in_thread is 'sometimes': write true or false"),
        (entry() + "    confg: {}\n", "tools[0]: unknown key 'confg': did you mean config?"),
        (
            entry() + "    timeout: 5\n",
            "tools[0]: unknown key 'timeout': write one of class_name, config, tool_schema, mcp",
        ),
        (
            entry(schema=SCHEMA.replace("{}", "{a: {type: string}}, required: [b]")),
            "tool_schema of echo: required names 'b', which is not in properties (which has a)",
        ),
        (
            entry(schema=SCHEMA.replace("parameters", "paramaters")),
            "tool_schema.function.paramaters: did you mean param",
        ),
        (entry(schema=SCHEMA.replace("properties", "propertys")), "parameters.propertys: did you mean properties?"),
    ],
)
def test_mistakes_in_the_yaml(yaml, load, entries, words):
    path = yaml(entries)
    message = refusal(load, path)
    assert words in message
    assert "tools.yaml" in message


def test_keys_of_the_tool_s_own_are_its_own(yaml, load):
    """As verl's YAML files have them, and one that is nearly one of ours but that the tool's file mentions."""
    verls = "{rate_limit: 1, num_workers: 2, default_timeout: 3, create_timeout: 4, language: en, enable_log: true}"
    assert len(load(yaml(entry(config=verls)))) == 1
    assert len(load(yaml(entry("mytool.OwnKey", "{time_out: 5}")))) == 1


def test_a_schema_may_describe_its_properties_elsewhere(yaml, load):
    schema = SCHEMA.replace("properties: {}", "required: [a], anyOf: [{properties: {a: {type: string}}}]")
    assert len(load(yaml(entry(schema=schema)))) == 1


@pytest.mark.parametrize("entries", [entry("mytool.Lazy"), entry(config="{timeoutt: 5}"), entry() + "    confg: {}\n"])
def test_they_are_found_before_a_tool_is_made(yaml, entries):
    with pytest.raises(UserError):
        check_tools(yaml(entries), None)


def test_a_look_ahead_makes_no_tool(yaml):
    check_tools(yaml(entry("mytool.Explodes")), None)


async def test_the_sandbox_stays_in_the_run_s_loop(write, load):
    write("mytool.py", CLASS + "\nclass Runs(Tool):\n    async def execute(self, instance_id, parameters, **kwargs):\n"
          "        return await self.sandbox.run(None)\n")  # fmt: skip
    tools = load(write("tools.yaml", "tools:\n" + entry("mytool.Runs", "{in_thread: true}")))
    with pytest.raises(UserError, match="self.sandbox belongs to the run's event loop"):
        await tools.open("k", {}, None).call("echo", {})


def test_functions_that_answer_nothing(write, load):
    source = (
        'from agentrl.tools import function_tool\n@function_tool\ndef send(text: str){}:\n    """Send.\n\n'
        '    Args:\n        text: What.\n    """\n    print(text)\n'
    )
    assert "send never returns anything" in refusal(load, None, write("functions.py", source.format("")))
    assert len(load(None, write("functions2.py", source.format(" -> None")))) == 1


def test_broken_files(write, load):
    assert "tool_config_path: nowhere.yaml does not exist" in refusal(load, "nowhere.yaml")
    assert "has no list 'tools'" in refusal(load, write("empty.yaml", ""))
    assert "has no list 'tools'" in refusal(load, write("list.yaml", "- a\n"))
    assert "broken.yaml" in refusal(load, write("broken.yaml", "tools: [\n"))
    write("syntax.py", "def broken(:\n")
    assert "SyntaxError" in refusal(load, write("t.yaml", "tools:\n" + entry("syntax.Tool")))
    write("leaves.py", "import sys\nsys.exit(3)\n")
    assert "SystemExit: 3" in refusal(load, write("u.yaml", "tools:\n" + entry("leaves.Tool")))
