"""Code under verl's data sources: its rules, compared with its own files."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentrl.core.sandbox import Sandbox
from agentrl_verl.default_scores import default_compute_score, prime_code, sandbox_fusion
from agentrl_verl.scorers.code import compute_score, judge, last_block, same_output, same_value
from tests.from_verl.scorers.reference import REFERENCE, needs_reference

pytestmark = pytest.mark.integration

APPS = Path(__file__).with_name("apps.py")
OUTPUTS = [
    "3",
    "3\n",
    " 3",
    "3 \n\n",
    "3.0",
    "3.00001",
    "3.1",
    "1 2",
    "1  2",
    "1\n2",
    "1\n\n2",
    "1 \n 2",
    "2\n1",
    "yes",
]
OUTPUTS += ["Yes", "", "\n", "1.0\n2.0", "1\n2.0000001", "1,2", "nan", "inf", "-3", "1e0\n2", "x\n3", "1\r\n2", "1\t2"]
VALUES: list[Any] = [
    3,
    3.0,
    "3",
    True,
    None,
    [1, 2],
    [[1, 2]],
    [],
    [3],
    {"1": 2},
    [{"1": 2}],
    [{"1": 2}, 5],
    {"a": 2},
    1,
]
RETURNED = [
    "3",
    "3.0",
    "'3'",
    "True",
    "None",
    "[1, 2]",
    "(1, 2)",
    "[(1, 2)]",
    "[]",
    "[3]",
    "{1: 2}",
    "[{1: 2}]",
    "{'a': 2}",
]
RETURNED += ["1", "[[1, 2]]", "()", "{'1': 2}", "(3,)", "[(1, 2), (3, 4)]"]
PROGRAMS = [
    "n = int(input())\nprint(n * 2)",
    "import sys\nprint(2 * int(sys.stdin.read()))",
    "print(int(sqrt(4)) * int(input()))",  # the prelude's names
    "n = int(input())\nprint(n * 2)\nsys.exit(1)",
    "n = int(input())\nprint(n * 2)\nexit()",
    "n = int(input())\nprint(n * 2)\n1 / 0",
    "n = int(input())\ntotal = 0\ndef add():\n    global total\n    total += n\nadd()\nadd()\nprint(total)",
    "def main():\n    print(2 * int(input()))\nif __name__ == '__main__':\n    main()",
    'def main():\n    print(2 * int(input()))\nif __name__ == "__main__":\n    main()\nx = 1',
    "def main():\n    print(2 * int(input()))\nmain()\n",
    "class A:\n    def f(self, n):\n        return n * 2\nprint(A().f(int(input())))",
    "from math import floor\nn = floor(float(input()))\nfrom sys import stdout\nstdout.write(str(n * 2))",
    "print(2 * int(input())",
    "import math",
    "",
]
FUNCTIONS = [
    "def double(n):\n    return n * 2",
    "class Solution:\n    def double(self, n):\n        print('x')\n        return n * 2",
    "class Solution:\n    pass\ndef double(n):\n    return n * 2",
    "def double(n):\n    return str(n * 2)",
    "def other(n):\n    return n * 2",
]


def theirs(cases: list[dict[str, Any]], *options: str) -> list[bool]:
    """verl's verdicts."""
    asked = [sys.executable, str(APPS), str(REFERENCE), *options]
    ran = subprocess.run(asked, input=json.dumps(cases), capture_output=True, text=True, check=True)
    return [bool(result) for result in json.loads(ran.stdout)]


@needs_reference
def test_outputs_are_compared_as_verl_does() -> None:
    pairs = [(printed, expected) for printed in OUTPUTS for expected in OUTPUTS][::2]
    code = "import sys\nsys.stdout.write(sys.stdin.read())"
    asked = [{"code": code, "cases": {"inputs": [printed], "outputs": [expected]}} for printed, expected in pairs]
    found = [same_output(*pair) for pair in pairs]
    assert [pair for pair, ours, wanted in zip(pairs, found, theirs(asked), strict=True) if ours != wanted] == []
    assert sum(found) > 2 * len(OUTPUTS)


@needs_reference
def test_values_are_compared_as_verl_does() -> None:
    pairs = [(returned, value) for returned in RETURNED for value in VALUES]
    asked: list[dict[str, Any]] = [
        {
            "code": f"def f():\n    return {code}",
            "cases": {"fn_name": "f", "inputs": ["1"], "outputs": [json.dumps(value)]},
        }
        for code, value in pairs
    ]
    for case in asked:
        case["code"] = case["code"].replace("f()", "f(n)")
    found = [same_value(eval(code), json.loads(json.dumps(value))) for code, value in pairs]
    assert [pair for pair, ours, wanted in zip(pairs, found, theirs(asked), strict=True) if ours != wanted] == []


@needs_reference
def test_programs_and_functions_get_verls_verdict(runner: asyncio.Runner, sandbox: Sandbox) -> None:
    rows = [(code, {"inputs": ["4\n"], "outputs": ["8"]}) for code in PROGRAMS]
    rows += [(code, {"fn_name": "double", "inputs": ["4"], "outputs": ["8"]}) for code in FUNCTIONS]
    wanted = theirs([{"code": f"{code}\n", "cases": json.loads(json.dumps(row))} for code, row in rows], "apart")

    async def ours() -> list[float]:
        found = [compute_score("apps", f"```python\n{code}\n```", row, sandbox=sandbox) for code, row in rows]
        return [result["score"] for result in await asyncio.gather(*found)]

    scores = runner.run(ours())
    differing = [(code, score) for (code, _), score, right in zip(rows, scores, wanted, strict=True) if score != right]
    assert differing == []
    assert sum(scores) > 6


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("a ```python\nx\n``` b", "\nx\n"),
        ("```python\nx\n``` and ```python\ny", "\ny"),
        ("x", "x"),
        ("say ```\nx\n```", "say "),
    ],
)
def test_the_code_in_the_words(said: str, code: str) -> None:
    assert last_block(said) == code


class Elsewhere(Sandbox):
    """The embedded sandbox, which says that it is a server."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.url, self.memory_limit_mb, self.run = "http://here/run_code", 1024, sandbox.run  # type: ignore[method-assign]


def test_a_server_has_rules_of_its_own(runner: asyncio.Runner, sandbox: Sandbox) -> None:
    server = Elsewhere(sandbox)

    def score(code: str, **row: Any) -> float:
        return runner.run(compute_score("apps", f"```python\n{code}\n```", row, sandbox=server))["score"]

    assert score("print(3.0)", inputs=[""], outputs=["3"]) == 0.0  # as text
    assert score("n = 1\ndef f():\n    global n\n    n += 2\nf()\nprint(n)", inputs=[""], outputs=["3"]) == 1.0
    double = {"fn_name": "double", "inputs": ["4", "5"], "outputs": ["8", "10"]}
    assert score(FUNCTIONS[0], **double) == 1.0
    assert score(FUNCTIONS[1], **double) == 0.0  # what it prints is in the way
    assert score(FUNCTIONS[4], **double) == 0.0
    assert score("def double(n):\n    return [n, None]", fn_name="double", inputs=["4"], outputs=["[4, null]"]) == 1.0
    assert runner.run(compute_score("apps", "print(3)", {"inputs": [""], "outputs": ["3"]}, sandbox=server))["no_code"]


def test_the_functions_that_files_of_verl_import() -> None:
    half = {"inputs": [str(n) for n in range(12)], "outputs": [str(2 * min(n, 4)) for n in range(12)]}
    words = "```python\nprint(2 * int(input()))\n```"
    assert prime_code(words, json.dumps(half), continuous=True)[0] == 0.5
    assert prime_code(words, half)[0] is False
    assert prime_code(words, {"inputs": ["1"], "outputs": ["2"]})[0] is True
    score, metadata = sandbox_fusion(None, None, 512, words, half)
    assert (score, len(metadata), metadata[0]["status"]) == (pytest.approx(5 / 12), 12, "success")
    assert sandbox_fusion(None, None, None, words, half, continuous=True)[0] == 0.5
    assert sandbox_fusion("", None, None, "print(1)", half)[0] == 0.0
    assert default_compute_score("taco", words, half) == 0.5


@pytest.mark.parametrize("levels", [50, 200, 400, 900, 5000])
def test_code_of_any_depth_is_the_models_own(runner: asyncio.Runner, sandbox: Sandbox, levels: int) -> None:
    cases = {"inputs": [""], "outputs": ["1\n"]}
    for deep in (
        f"print(1 if {'not ' * levels}0 else 1)",
        f"print(({'(' * levels}1{')' * levels}))",
        f"print({'-' * levels}1)",
    ):
        code = f"```python\nif __name__ == '__main__':\n    print({deep})\n```"
        assert runner.run(judge(code, cases, sandbox, printed=False)) is not None
