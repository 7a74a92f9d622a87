"""Tools copied out of a verl project, with the helpers that they import."""

import asyncio
import json
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from agentrl.core.errors import UserError
from agentrl.core.plugins import find_class
from agentrl.tools import load_tools
from agentrl.tools.response import ToolResponse
from agentrl_verl import in_process, tool_apis
from agentrl_verl.in_process import actors_in_process
from agentrl_verl.tool_apis import process_single_case

pytestmark = pytest.mark.integration

TOOL = """
import asyncio
import threading
import ray
import ray.actor
from verl.tools.utils.search_r1_like_utils import perform_single_search_batch
from verl.utils.rollout_trace import rollout_trace_op
from .base_tool import BaseTool
from .schemas import OpenAIFunctionToolSchema, ToolResponse


@ray.remote(concurrency_groups={"acquire": 1, "release": 10})
class Bucket:
    def __init__(self, rate):
        self.semaphore = threading.Semaphore(rate)

    @ray.method(concurrency_group="acquire")
    def acquire(self):
        self.semaphore.acquire()

    @ray.method(concurrency_group="release")
    def release(self):
        self.semaphore.release()


class Worker:
    def __init__(self, rate):
        self.bucket = Bucket.options(name="test-limiter", get_if_exists=True).remote(rate)
        self.now, self.most, self.lock = 0, 0, threading.Lock()

    def count(self, by):
        with self.lock:
            self.now += by
            self.most = max(self.most, self.now)

    def execute(self, fn, *args):
        ray.get(self.bucket.acquire.remote())
        self.count(1)
        try:
            return fn(*args)
        finally:
            self.count(-1)
            self.bucket.release.remote()

    def most_at_once(self):
        return self.most


class Search(BaseTool):
    def __init__(self, config, tool_schema):
        super().__init__(config, tool_schema)
        self.pool = ray.remote(Worker).options(max_concurrency=8).remote(config["rate_limit"])
        self.calls = {}

    async def create(self, instance_id=None, **kwargs):
        self.calls[instance_id] = []
        return instance_id, ToolResponse()

    def ask(self, queries):
        return perform_single_search_batch(self.config["url"], queries, topk=2, timeout=5)

    @rollout_trace_op
    async def execute(self, instance_id, parameters, **kwargs):
        text, metadata = await self.pool.execute.remote(self.ask, parameters["query_list"])
        self.calls[instance_id].append(text)
        return ToolResponse(text=text), 0.0, {"total_results": metadata["total_results"]}

    async def calc_reward(self, instance_id, **kwargs):
        return self.calls[instance_id]

    async def release(self, instance_id, **kwargs):
        del self.calls[instance_id]
"""

YAML = """
tools:
  - class_name: my_search.Search
    config: {{type: native, url: "{url}", rate_limit: 2}}
    tool_schema:
      type: function
      function:
        name: search
        description: Searches.
        parameters:
          type: object
          properties: {{query_list: {{type: array, items: {{type: string}}}}}}
          required: [query_list]
"""


class Retrieval(BaseHTTPRequestHandler):
    """A server as verl's examples have it; it is busy the first time for a query of that name."""

    busy = 0

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(0.05)
        status, found = 200, [[self.hit(query, n) for n in range(asked["topk"])] for query in asked["queries"]]
        if "busy" in asked["queries"] and not Retrieval.busy:
            Retrieval.busy, status = 1, 503
        body = b"no JSON" if "broken" in asked["queries"] else json.dumps({"result": found}).encode()
        self.send_response(404 if "missing" in asked["queries"] else status)
        self.end_headers()
        self.wfile.write(body)

    def hit(self, query: str, n: int) -> dict:
        return {"document": {"contents": f'"{query}"\nText {n} of {query}.'}, "score": 1.0 - n}

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def url():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Retrieval)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/retrieve"
    server.shutdown()


def tools_of(folder: Path, **files: str):
    for name, source in files.items():
        (folder / name.replace("__", ".")).write_text(source)
    return load_tools(str(folder / "tools.yaml"), None, max_response=900, unit="characters", side="middle")


def test_an_answer_that_is_wrapped_twice_is_one_answer():
    assert ToolResponse(text=ToolResponse(text="42")).text == "42"


@pytest.mark.prevents("a tool with a pool of Ray actors needs a cluster for a search")
async def test_a_search_tool_with_a_pool_of_ray_actors(tmp_path, url):
    tools = tools_of(tmp_path, my_search__py=TOOL, tools__yaml=YAML.format(url=url))
    sessions = [tools.open(f"k{i}", {}, None) for i in range(6)]
    results = await asyncio.gather(*(s.call("search", {"query_list": [f"q{i}"]}) for i, s in enumerate(sessions)))
    texts = [json.loads(result.text)["result"] for result in results]
    assert texts[3] == 'Doc 1 (Title: "q3")\nText 0 of q3.\n\nDoc 2 (Title: "q3")\nText 1 of q3.'
    assert await sessions[0].rewards() == {"search": 0.0}  # a list of what was found is no score
    tool = tools.runners["search"].methods["execute"].fn.__self__
    assert await tool.pool.most_at_once.remote() == 2
    for session in sessions:
        await session.release()
    assert tool.calls == {}
    await tools.close()


def test_a_neighbour_of_the_same_name_comes_first(tmp_path, url):
    (tmp_path / "base_tool.py").write_text(
        "from verl.tools.base_tool import BaseTool as Base\nclass BaseTool(Base): own = 1\n"
    )
    tools = tools_of(tmp_path, my_search__py=TOOL, tools__yaml=YAML.format(url=url))
    assert tools.runners["search"].methods["execute"].fn.__self__.own == 1


def test_ray_itself_is_as_it_was(tmp_path):
    before = sys.modules.get("ray")
    (tmp_path / "with_ray.py").write_text("import ray\nclass Tool:\n    get = staticmethod(ray.get)\n")
    kind: Any = find_class("with_ray.Tool", folder=tmp_path, where="test")
    assert kind.get is in_process.get
    assert sys.modules.get("ray") is before


def test_what_is_not_here_comes_from_ray_itself():
    installed = pytest.importorskip("ray")
    with actors_in_process():
        import ray

        assert ray.cluster_resources is installed.cluster_resources
        assert ray.get is in_process.get
    assert sys.modules["ray"] is installed


def test_without_ray_its_other_parts_are_refused_in_a_line(tmp_path):
    (tmp_path / "wants.py").write_text(
        "import ray.util\nfrom ray.util import list_named_actors\n\n\nclass Tool:\n    pass\n"
    )
    code = (
        "import sys; sys.modules['ray'] = None\n"
        "from pathlib import Path\nfrom agentrl.core.plugins import find_class\n"
        f"find_class('wants.Tool', folder=Path({str(tmp_path)!r}), where='tools.yaml: tools[0]')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "UserError: tools.yaml: tools[0]: wants.Tool" in done.stderr
    assert "asks for ray.util.list_named_actors, which takes Ray itself" in done.stderr


def test_actors():
    with actors_in_process():
        import ray

    @ray.remote
    class Counter:
        def __init__(self, start=0):
            self.n = start

        def add(self, by):
            self.n += by
            return self.n

        async def later(self):
            await asyncio.sleep(0)
            return -self.n

        def fail(self):
            raise ValueError("no")

    @ray.remote(num_cpus=1)
    def double(x):
        return 2 * x

    counter = Counter.remote(3)  # type: ignore[attr-defined]
    assert ray.get([counter.add.remote(1), double.remote(ray.put(4))]) == [4, 8]
    assert ray.get(counter.later.remote()) == -4
    with pytest.raises(ValueError, match="no"):
        ray.get(counter.fail.remote())
    done, rest = ray.wait([double.remote(1)], timeout=5)
    assert (ray.get(done), rest) == ([2], [])


def test_search_meets_servers_of_all_kinds(url, monkeypatch):
    monkeypatch.setattr(tool_apis, "SEARCH_PAUSES", (0.01,))
    ask = tool_apis.perform_single_search_batch
    text, metadata = ask(url, ["busy"], topk=1)
    assert (metadata["status"], metadata["total_results"], "Title" in text) == ("success", 1, True)
    assert ask(url, [])[1]["status"] == "no_results"
    assert ask(url, ["missing"])[1]["status"] == "api_error"
    assert "no JSON" in ask(url, ["broken"])[0]
    assert ask("http://127.0.0.1:9/retrieve", ["q"])[1]["api_request_error"].startswith("API Call Failed: http://127")


class Fusion(BaseHTTPRequestHandler):
    """A sandbox that answers as its code says."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        kind, _, code = asked["code"].partition("|")
        run = {"status": "Finished", "return_code": 0, "stdout": code, "stderr": "", "execution_time": 0.1}
        answers = {
            "fine": {"status": "Success", "run_result": run},
            "fails": {"status": "Failed", "run_result": run | {"return_code": 1}},
            "slow": {"status": "Failed", "run_result": run | {"status": "TimeLimitExceeded"}},
            "compiles not": {"status": "Failed", "compile_result": {"status": "Finished", "return_code": 1}},
            "trouble": {"status": "SandboxError"},
        }
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answers[kind]).encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.mark.parametrize(
    ("code", "expected", "verdict", "status"),
    [
        ("fine|42\n", "42", True, "success"),
        ("fine|42", None, True, "success"),
        ("fine|43", "42", False, "wrong_answer"),
        ("fails|", "42", -2, "runtime_error"),
        ("slow|", "42", -3, "timeout"),
        ("compiles not|", "42", -4, "compile_error"),
        ("trouble|", "42", -1, "sandbox_error"),
    ],
)
def test_verdicts_of_a_sandbox(code, expected, verdict, status):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Fusion)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/run_code"
    given, metadata = process_single_case(0, None, expected, url, code, 5, 1024, "python")
    server.shutdown()
    assert (given, metadata["status"]) == (verdict, status)


def test_a_sandbox_that_is_not_there():
    verdict, metadata = process_single_case(0, "in", "out", "http://127.0.0.1:9/run_code", "1", 1, 1024, "python")
    assert (verdict, metadata["status"], metadata["input"]) == (-1, "api_error", "in")


def test_an_import_that_fails_inside_a_module_is_not_called_missing(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "in_a_package").mkdir()
    (tmp_path / "in_a_package" / "tool.py").write_text("import no_such_thing\n")
    with pytest.raises(UserError, match="in_a_package.tool.T: ModuleNotFoundError: No module named 'no_such_thing'"):
        find_class("in_a_package.tool.T", folder=tmp_path / "elsewhere", where="tools.yaml: tools[0]")


SERVER = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("counter")

@server.tool()
def add(n: int) -> str:
    return f"{n + 1}"

if __name__ == "__main__":
    server.run()
"""

MCP_TOOL = """
from fastmcp.exceptions import ClientError
from verl.tools.utils.mcp_clients.McpClientManager import ClientManager
from verl.tools.mcp_base_tool import MCPBaseTool
from .schemas import OpenAIFunctionToolSchema


class Shouting(MCPBaseTool):
    def _parse_tool_result(self, content):
        return " ".join(part.text + "!" for part in content), {"status": "success"}


class Asking(MCPBaseTool):
    async def execute(self, instance_id, parameters, **kwargs):
        try:
            await ClientManager.call_tool("subtract", parameters, 5)
        except ClientError as error:
            return str(error), 0.0, {}
"""


@pytest.mark.parametrize(("kind", "text"), [("Shouting", "3!"), ("Asking", "no MCP server has a tool 'subtract'")])
async def test_a_tool_over_verl_s_mcp_client(tmp_path, kind, text):
    pytest.importorskip("mcp", reason='pip install "agentrl[mcp]"')
    servers = {"mcpServers": {"counter": {"command": sys.executable, "args": [str(tmp_path / "server.py")]}}}
    entry = {"class_name": f"my_mcp.{kind}", "config": {"type": "mcp", "timeout": 20, "rate_limit": 4}}
    entry["mcp"] = {"mcp_servers_config_path": "servers.json", "tool_selected_list": ["add"]}
    files = {"server__py": SERVER, "servers__json": json.dumps(servers), "my_mcp__py": MCP_TOOL}
    tools = tools_of(tmp_path, **files, tools__yaml=json.dumps({"tools": [entry]}))
    session = tools.open("k", {}, None)
    assert (await session.call("add", {"n": 2})).text.startswith(text)
    await session.release()
    await tools.close()
