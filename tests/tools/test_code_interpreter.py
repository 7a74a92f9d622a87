"""The code interpreter and its session, through their YAML and verl's, in the real sandbox."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentrl.core.errors import InfraError, UserError
from agentrl.core.sandbox import Sandbox
from agentrl.tools import ToolSet, load_tools
from agentrl.trajectory.trajectory import Outcome
from agentrl_sandbox.job import CommandResult, Job, Result

pytestmark = pytest.mark.integration

VERL = """
tools:
  - class_name: "verl.tools.sandbox_fusion_tools.SandboxFusionTool"
    config:
      {url}
      num_workers: 10
      enable_global_rate_limit: true
      rate_limit: 4
      default_timeout: 2
      default_language: "python"
      memory_limit_mb: 1024
      type: native
    tool_schema:
      type: "function"
      function:
        name: "code_interpreter"
        description: "A tool for executing code."
        parameters:
          type: "object"
          properties:
            code:
              type: "string"
              description: "The code to execute."
          required: ["code"]
"""


def load(path: str, sandbox: Sandbox | None = None) -> ToolSet:
    return load_tools(path, None, max_response=2000, unit="characters", side="middle", sandbox=sandbox)


async def answers(tools: ToolSet, name: str, *codes: str) -> list[Any]:
    session = tools.open("k", {}, None)
    try:
        await session.start()
        return [await session.call(name, {"code": code}) for code in codes]
    finally:
        await session.release()


@pytest.fixture
def verl_yaml(tmp_path: Path) -> str:
    file = tmp_path / "sandbox_fusion_tool_config.yaml"
    file.write_text(VERL.format(url=""))
    return str(file)


def with_config(folder: Path, name: str, **config: Any) -> str:
    """A copy of a ready-made YAML with other values in its config, beside a copy of the tool."""
    (folder / "code_interpreter.py").write_text(Path("tools/code_interpreter.py").read_text())
    content = yaml.safe_load(Path(name).read_text())
    content["tools"][0]["config"] |= config
    (folder / "own.yaml").write_text(yaml.safe_dump(content))
    return str(folder / "own.yaml")


async def test_what_the_program_prints_is_the_answer() -> None:
    tools = load("tools/code_interpreter.yaml")
    try:
        (half,) = await answers(tools, "code_interpreter", "print('\ud800')")
        odd = await answers(tools, "code_interpreter", "\0")
        codes = ["print(6 * 7)", "x = 1", "1 / 0", "import sys; print('a'); print('b', file=sys.stderr); sys.exit(3)"]
        results = await answers(tools, "code_interpreter", *codes, "print(x)")
    finally:
        await tools.close()
    assert half.outcome is Outcome.MODEL_ERROR
    assert "half of a surrogate pair (\\ud800)" in half.text
    assert {result.outcome for result in [*odd, *results]} == {Outcome.OK}
    assert [result.text for result in results[:2]] == ["42\n", "(no output)"]
    assert results[2].text.endswith("ZeroDivisionError: division by zero\n")
    assert results[3].text == "a\nb\n"
    assert "NameError" in results[4].text, "nothing is left of the last call"


async def test_what_ends_a_program_is_told(tmp_path: Path) -> None:
    tools = load(with_config(tmp_path, "tools/code_interpreter.yaml", default_timeout=2, memory_limit_mb=256))
    codes = [
        "print('begun', flush=True)\nwhile True: pass",
        "x = bytearray(600 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1",
        "import os; os.kill(os.getpid(), 11)",
        "while True: print('x' * 1000)",
    ]
    try:
        results = await answers(tools, "code_interpreter", *codes)
    finally:
        await tools.close()
    assert results[0].text == "begun\nError: stopped after 2 seconds."
    assert "MemoryError" in results[1].text or "more than 256 MiB" in results[1].text
    assert results[2].text == "Error: ended by SIGSEGV."
    assert results[3].text.endswith("Error: stopped, too much output.")
    assert {result.outcome for result in results} == {Outcome.OK}


async def test_verls_tool_by_its_old_name_keys_and_answers(verl_yaml: str) -> None:
    tools = load(verl_yaml)
    try:
        results = await answers(tools, "code_interpreter", "print(1)", "1 / 0", "while True: pass", "")
    finally:
        await tools.close()
    assert results[0].text == "1\n"
    assert results[1].text.endswith("ZeroDivisionError: division by zero\n")
    assert results[2].text == "no stdout here"
    assert results[3].text == ""


@pytest.mark.parametrize(
    ("config", "calls", "timeout"),
    [({}, 4, None), ({"enable_global_rate_limit": "false"}, 10, None), ({"timeout": "3", "num_workers": "2"}, 2, 3)],
)
def test_calls_at_once_are_limited_as_configured(
    verl_yaml: str, config: dict[str, str], calls: int, timeout: float | None
) -> None:
    file = Path(verl_yaml)
    content = yaml.safe_load(file.read_text())
    content["tools"][0]["config"] |= {key: yaml.safe_load(value) for key, value in config.items()}
    file.write_text(yaml.safe_dump(content))
    options = load(verl_yaml).runners["code_interpreter"].options
    assert (options.max_concurrency, options.timeout) == (calls, timeout)


class Broken(Sandbox):
    """A sandbox in trouble."""

    def __init__(self, answer: Result | Exception) -> None:
        super().__init__()
        self.answer = answer

    async def run(self, job: Job, *, client: str = "") -> Result:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    "answer",
    [
        InfraError("the pool is gone"),
        Result("x", runs=[CommandResult("Error", 0, None, b"", b"no python3")]),
        Result("x"),
    ],
)
async def test_trouble_of_the_sandbox_is_no_answer(answer: Any) -> None:
    (result,) = await answers(load("tools/code_interpreter.yaml", Broken(answer)), "code_interpreter", "print(1)")
    assert result.outcome is Outcome.INFRA_ERROR


def tool_of(tools: ToolSet, name: str) -> Any:
    """The object of a tool."""
    return tools.runners[name].methods["execute"].fn.__self__  # type: ignore[attr-defined]


def test_tools_and_rewards_share_the_runs_sandbox(verl_yaml: str) -> None:
    shared = Sandbox()
    tools = load("tools/code_interpreter.yaml", shared)
    assert tool_of(tools, "code_interpreter").sandbox is shared
    file = Path(verl_yaml)
    file.write_text(VERL.format(url="sandbox_fusion_url: http://127.0.0.1:9/run_code"))
    apart = tool_of(load(verl_yaml, shared), "code_interpreter").sandbox
    assert apart is not shared
    assert apart.url == "http://127.0.0.1:9/run_code"


async def test_a_session_keeps_its_state_and_is_a_trajectorys_own() -> None:
    sandbox = Sandbox()
    tools = load("tools/python_session.yaml", sandbox)
    try:
        one, two = tools.open("one", {}, None), tools.open("two", {}, None)
        cells = ["x = 20", "x + 1", "import math\nprint(math.tau > 6)\nx * 2", "1 / 0", "x"]
        said = [await one.call("python", {"code": code}) for code in cells]
        assert [result.text for result in said[:3]] == ["(no output)", "21\n", "True\n40\n"]
        assert "ZeroDivisionError: division by zero" in said[3].text
        assert said[4].text == "20\n", "an exception ends the cell, not the session"
        other = await two.call("python", {"code": "x"})
        assert "NameError" in other.text
        together = await asyncio.gather(*(two.call("python", {"code": f"y{n} = {n}\ny{n}"}) for n in range(4)))
        assert [result.text for result in together] == ["0\n", "1\n", "2\n", "3\n"]
        await asyncio.gather(one.release(), two.release())
        assert not tool_of(tools, "python").notebooks
    finally:
        await tools.close()
        await sandbox.close()


async def test_a_cell_that_overstays_ends_the_session(tmp_path: Path) -> None:
    tools = load(with_config(tmp_path, "tools/python_session.yaml", default_timeout=1))
    try:
        results = await answers(tools, "python", "x = 5", "while True: pass", "x", "x = 6\nx")
    finally:
        await tools.close()
    assert results[1].text == "Error: stopped after 1 seconds.\nThe session ended; variables are gone."
    assert "NameError" in results[2].text
    assert results[3].text == "6\n"


async def test_a_session_needs_a_server_that_knows_sessions() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()  # SandboxFusion's own server answers to this path and has no /health
        writer.write(b"HTTP/1.1 %s X\r\ncontent-length: 0\r\n\r\n" % (b"200" if b"/v1/ping" in line else b"404"))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/run_code"
    try:
        with pytest.raises(UserError, match="sessions need agentrl's own server"):
            await answers(load("tools/python_session.yaml", Sandbox(url)), "python", "1")
    finally:
        server.close()
