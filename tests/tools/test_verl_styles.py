"""Tool files as people wrote them for each verl version, with verl's imports, run unchanged without verl."""

import importlib
import json
import sys
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from agentrl.trajectory.trajectory import Outcome
from agentrl_verl import modules as verl_modules

IMPORTS = """
from typing import Any, Optional, Tuple
from uuid import uuid4
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema
"""

V04 = (
    IMPORTS
    + """
class GuessTool(BaseTool):
    def __init__(self, config: dict, tool_schema: OpenAIFunctionToolSchema):
        super().__init__(config, tool_schema)
        self._games = {}

    def get_openai_tool_schema(self) -> OpenAIFunctionToolSchema:
        return self.tool_schema

    async def create(self, instance_id: Optional[str] = None, secret: Optional[int] = None, **kwargs) -> str:
        if instance_id is None:
            instance_id = str(uuid4())
        self._games[instance_id] = {"secret": secret, "tries": 0, "best": 0.0}
        return instance_id

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs) -> Tuple[str, float, dict]:
        game = self._games[instance_id]
        game["tries"] += kwargs.get("weight", 1)
        right = parameters["number"] == game["secret"]
        game["best"] = max(game["best"], float(right))
        return f"try {game['tries']}: {'yes' if right else 'no'}", 0.0 if right else -0.1, {"tries": game["tries"]}

    async def calc_reward(self, instance_id: str, bonus: float = 0.0, **kwargs) -> float:
        return self._games[instance_id]["best"] + bonus

    async def release(self, instance_id: str, **kwargs) -> None:
        del self._games[instance_id]
"""
)

V05 = (
    IMPORTS
    + """
from verl.utils.rollout_trace import rollout_trace_op

class GuessTool(BaseTool):
    async def create(self, instance_id: Optional[str] = None, **kwargs) -> str:
        return instance_id or str(uuid4())

    @rollout_trace_op
    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs):
        return {"text": f"number {parameters['number']}", "image": ["picture"]}, 0.25, {}
"""
)

V06 = (
    IMPORTS
    + """
from verl.tools.schemas import ToolResponse
from verl.utils.reward_score import gsm8k
from verl.utils.rollout_trace import rollout_trace_op

class GuessTool(BaseTool):
    def __init__(self, config, tool_schema):
        super().__init__(config, tool_schema)
        self._games = {}

    async def create(self, instance_id=None, ground_truth=None, **kwargs) -> tuple[str, ToolResponse]:
        instance_id = instance_id or str(uuid4())
        if ground_truth is None:
            ground_truth = kwargs.get("create_kwargs", {}).get("ground_truth", None)
        self._games[instance_id] = {"truth": ground_truth, "extra": kwargs["create_kwargs"]["level"], "said": ""}
        return instance_id, ToolResponse()

    @rollout_trace_op
    async def execute(self, instance_id, parameters, **kwargs) -> tuple[ToolResponse, float, dict]:
        game = self._games[instance_id]
        game["said"] = f"#### {parameters['number']}"
        return ToolResponse(text=f"{game['truth']} {game['extra']}"), await self.calc_reward(instance_id), {}

    async def calc_reward(self, instance_id, **kwargs) -> float:
        game = self._games[instance_id]
        return gsm8k.compute_score(game["said"], game["truth"], method="flexible", format_score=0.0, score=1.0)

    async def release(self, instance_id, **kwargs) -> None:
        del self._games[instance_id]
"""
)

V07 = (
    IMPORTS
    + """
from verl.tools.schemas import ToolResponse

class GuessTool(BaseTool):
    notebooks = {}

    async def execute(self, instance_id, parameters, **kwargs):
        agent_data = kwargs["agent_data"]
        notes = self.notebooks.setdefault(agent_data.request_id, [])
        notes.append(parameters["number"])
        agent_data.extra_fields["notes"] = list(notes)
        last = agent_data.messages[-1]["content"]
        secret = agent_data.tools_kwargs["guess"]["create_kwargs"]["secret"]
        return ToolResponse(text=f"{notes} after {last}, secret {secret}"), 0.0, {}
"""
)

V08 = '''
from verl.tools.function_tool import function_tool

@function_tool
def guess(number: int) -> str:
    """Guess a number.

    Args:
        number: The number.
    """
    return "yes" if number == 7 else "no"
'''

YAML = """
tools:
  - class_name: "{}"
    config:
      type: native
    tool_schema:
      type: "function"
      function:
        name: "guess"
        description: "Guess a number."
        parameters:
          type: "object"
          properties:
            number:
              type: "integer"
              description: "The number."
          required: ["number"]
"""


@dataclass
class Talk:
    """Stands where the trajectory stands in a rollout."""

    messages: list = field(default_factory=lambda: [{"role": "user", "content": "hello"}])
    extra: dict = field(default_factory=dict)


@pytest.fixture
def guess(write, load):
    def guess(source):
        write("guess_tool.py", source)
        return load(write("tools.yaml", YAML.format("guess_tool.GuessTool")))

    return guess


async def test_0_4_state_across_calls_and_all_four_kwargs(guess):
    tools = guess(V04)
    kwargs = {"create_kwargs": {"secret": 7}, "execute_kwargs": {"weight": 2}, "calc_reward_kwargs": {"bonus": 0.5}}
    session = tools.open("k", {"guess": kwargs | {"release_kwargs": {"quietly": True}}}, Talk())
    await session.start()
    first = await session.call("guess", {"number": 3})
    second = await session.call("guess", {"number": 7})
    assert (first.text, first.reward, first.metrics) == ("try 2: no", -0.1, {"tries": 2})
    assert (second.text, second.reward) == ("try 4: yes", 0.0)
    assert await session.rewards() == {"guess": 1.5}
    await session.release()
    assert tools.runners["guess"].methods["create"].fn.__self__._games == {}


async def test_0_5_dicts_with_images(guess):
    session = guess(V05).open("k", {}, Talk())
    result = await session.call("guess", {"number": 3})
    assert (result.text, result.images, result.reward) == ("number 3", ["picture"], 0.25)
    assert await session.rewards() == {}  # it only inherits calc_reward: no opinion, not a score of 0
    await session.release()


async def test_0_6_reads_create_kwargs_as_one_keyword(guess):
    session = guess(V06).open("k", {"guess": {"create_kwargs": {"ground_truth": "9", "level": "hard"}}}, Talk())
    await session.start()
    result = await session.call("guess", {"number": 9})
    assert (result.text, result.reward) == ("9 hard", 1.0)
    assert await session.rewards() == {"guess": 1.0}
    await session.release()


async def test_0_7_keeps_its_own_store_on_agent_data(guess):
    tools = guess(V07)
    talk = Talk()
    session = tools.open("trajectory-1", {"guess": {"create_kwargs": {"secret": 5}}}, talk)
    other = tools.open("trajectory-2", {"guess": {"create_kwargs": {"secret": 6}}}, Talk())
    await session.call("guess", {"number": 1})
    assert (await session.call("guess", {"number": 2})).text == "[1, 2] after hello, secret 5"
    assert (await other.call("guess", {"number": 3})).text == "[3] after hello, secret 6"
    assert talk.extra == {"notes": [1, 2]}
    await session.release()
    await other.release()


async def test_0_8_function_tools(write, load):
    session = load(None, write("functions.py", V08)).open("k", {}, Talk())
    assert (await session.call("guess", {"number": 7})).text == "yes"
    await session.release()


async def test_verl_s_own_gsm8k_tool_by_its_name(load, write):
    path = write("tools.yaml", "tools:\n  - class_name: verl.tools.gsm8k_tool.Gsm8kTool\n    config: {type: native}\n")
    tools = load(path)
    session = tools.open("k", {"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": "72"}}}, Talk())
    await session.start()
    wrong = await session.call("calc_gsm8k_reward", {"answer": "71"})
    right = await session.call("calc_gsm8k_reward", {"answer": "#### 72"})
    assert (wrong.reward, right.reward) == (-0.05, 0.0)
    assert right.text == "Current parsed answer='#### 72' reward=1.0"
    assert await session.rewards() == {"calc_gsm8k_reward": 1.0}
    await session.release()


class Retrieval(BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        hits = [[{"document": {"contents": f"about {q}"}, "score": 1.0}] * request["topk"] for q in request["queries"]]
        body = json.dumps({"result": hits}).encode()
        self.send_response(200 if "broken" not in request["queries"] else 500)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Retrieval)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/retrieve"
    server.shutdown()
    server.server_close()


async def test_verl_s_own_search_tool_by_its_name(load, write, server):
    yaml = f"""
    tools:
      - class_name: verl.tools.search_tool.SearchTool
        config:
          type: native
          retrieval_service_url: "{server}"
          num_workers: 120
          rate_limit: 120
          timeout: 5
          topk: 2
        tool_schema:
          type: function
          function:
            name: search
            description: Searches.
            parameters:
              type: object
              properties:
                query_list: {{type: array, item: {{type: string}}, description: Queries.}}
              required: [query_list]
    """
    session = load(write("tools.yaml", yaml)).open("k", {}, Talk())
    result = await session.call("search", {"query_list": ["ships", "wine"]})
    ships, wine = ("\n\n\n".join(f"Doc {n} (Title: about {what})" for n in (1, 2)) for what in ("ships", "wine"))
    assert json.loads(result.text) == {"result": f"{ships}\n---\n{wine}"}
    assert result.metrics == {"query_count": 2, "total_results": 4}
    broken = await session.call("search", {"query_list": ["broken"]})
    assert broken.outcome is Outcome.INFRA_ERROR
    await session.release()


@pytest.fixture
def other_verl(tmp_path, monkeypatch):
    """A folder `verl` on the path, and nobody who has imported anything of it."""
    tools = tmp_path / "verl" / "tools"
    tools.mkdir(parents=True)
    (tmp_path / "verl" / "__init__.py").write_text("REAL = True\n")
    (tools / "__init__.py").write_text("")
    (tools / "base_tool.py").write_text("class BaseTool:\n    real = True\n")
    (tools / "of_mine.py").write_text("MINE = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(
        sys, "meta_path", [finder for finder in sys.meta_path if not isinstance(finder, verl_modules.VerlModules)]
    )
    for name in [name for name in sys.modules if name.partition(".")[0] == "verl"]:
        monkeypatch.delitem(sys.modules, name)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "verl"]:
        del sys.modules[name]


def test_an_installed_verl_wins(other_verl):
    (other_verl / "verl-0.8.0.dist-info").mkdir()
    (other_verl / "verl-0.8.0.dist-info" / "METADATA").write_text("Name: verl\nVersion: 0.8.0\n")
    verl_modules.provide()
    import verl
    from verl.interactions.base import BaseInteraction
    from verl.tools.base_tool import BaseTool

    assert verl.REAL
    assert BaseTool.real
    assert BaseInteraction.__module__ == "agentrl.interactions.base"


def test_a_checkout_does_not_but_what_someone_put_there_is_found(other_verl):
    verl_modules.provide()
    from verl.tools.base_tool import BaseTool
    from verl.tools.of_mine import MINE

    assert BaseTool.__module__ == "agentrl.tools.base"
    assert MINE


def test_what_is_not_there_stays_a_plain_import_error():
    verl_modules.provide()
    with pytest.raises(ModuleNotFoundError, match="verl"):
        importlib.import_module("verl.trainer.main_ppo")
