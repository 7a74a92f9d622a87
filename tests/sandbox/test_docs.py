"""What docs/sandbox.md shows is what happens."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.tools import load_tools
from agentrl_sandbox.languages import RECIPES

pytestmark = pytest.mark.integration

PAGE = (Path(__file__).parents[2] / "docs" / "sandbox.md").read_text(encoding="utf-8")
TOOL, PROGRAM = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
YAML = """
tools:
  - class_name: sorter.Sorter
    tool_schema:
      function: {name: sorter, description: d, parameters: {type: object, properties: {code: {type: string}}}}
"""


@pytest.mark.parametrize(
    ("code", "said"),
    [("print(*sorted(input().split()))", "sorted"), ("print(input())", "not sorted"), ("print('1 2')", "not sorted")],
)
async def test_the_tool_of_ones_own(tmp_path: Path, code: str, said: str) -> None:
    (tmp_path / "sorter.py").write_text(TOOL)
    (tmp_path / "sorter.yaml").write_text(YAML)
    yaml = str(tmp_path / "sorter.yaml")
    tools = load_tools(yaml, None, max_response=100, unit="characters", side="middle")
    session = tools.open("k", {}, None)
    try:
        assert (await session.call("sorter", {"code": code})).text == said
    finally:
        await session.release()
        await tools.close()


def test_from_python() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout == "[b'16\\n', b'25\\n']\n"


def test_the_languages_listed_are_those_there_are() -> None:
    listed = re.search(r"## Languages\n\n(.*?),\s+where", PAGE, re.DOTALL)
    assert listed is not None
    assert re.split(r",\s+|\s+and\s+", listed[1]) == list(RECIPES)
