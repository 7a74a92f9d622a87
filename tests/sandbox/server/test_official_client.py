"""The unmodified client from the package index, and verl's unmodified reward code, against our server."""

import importlib.util
import sys
import threading
from pathlib import Path

import pytest
import sandbox_fusion as sf

VERL = Path(sys.prefix) / "reference/verl/utils/reward_score/sandbox_fusion/utils.py"


@pytest.fixture
def client(server):
    sf.set_endpoint(server.url)
    return sf


def test_run_code(client):
    request = client.RunCodeRequest(code="print(input())", stdin="hi", language="python", run_timeout=10)
    reply = client.run_code(request, max_attempts=1)
    assert reply.status == client.RunStatus.Success
    assert (reply.run_result.stdout, reply.run_result.return_code) == ("hi\n", 0)


async def test_run_code_async(client):
    request = client.RunCodeRequest(code="raise SystemExit(2)", language="python")
    reply = await client.run_code_async(request, max_attempts=1)
    assert (reply.status, reply.run_result.return_code) == (client.RunStatus.Failed, 2)


@pytest.mark.parametrize(
    ("language", "code", "seconds", "summary"),
    [
        ("python", "print(1)", 10, "ok"),
        ("python", "1/0", 10, "failed"),
        ("python", "while True: pass", 1, "slow"),
        ("cpp", "int main( {", 10, "uncompiled"),
    ],
)
def test_summaries(client, language, code, seconds, summary):
    names = client.SummaryMapping(Success="ok", RunFailed="failed", RunTimeout="slow", CompileFailed="uncompiled")
    request = client.RunCodeRequest(code=code, language=language, run_timeout=seconds, compile_timeout=60)
    assert client.summary_run_code_result(client.run_code(request, max_attempts=1), names) == summary


def test_an_unavailable_language_raises(client):
    request = client.RunCodeRequest(code="x", language="lean")
    with pytest.raises(Exception, match="language not installed: lean"):
        client.run_code(request, max_attempts=1)


def test_run_jupyter(client):
    request = client.RunJupyterRequest(cells=["a = 20", "a + 1", "raise ValueError('no')", "print(a)"])
    reply = client.run_jupyter(request, max_attempts=1)
    assert reply.status == client.RunStatus.Success
    assert reply.cells[1].display == [{"text/plain": "21"}]
    assert (reply.cells[2].error[0]["ename"], reply.cells[2].error[0]["evalue"]) == ("ValueError", "no")
    assert reply.cells[3].stdout == "20\n"


def test_prompts_and_submit(client):
    row = {
        "id": 3,
        "content": "Add two numbers.",
        "labels": {"level": "easy"},
        "test": [{"input": {"stdin": "1 2"}, "output": {"stdout": "3"}}],
    }
    config = client.TestConfig(dataset_type="CommonOJDataset", language="python", provided_data=row)
    [prompt] = client.get_prompts(client.GetPromptsRequest(dataset="mine", config=config))
    assert (prompt.id, prompt.labels) == (3, {"level": "easy"})
    assert prompt.prompt.startswith("Add two numbers.\n\n")
    by_id = client.get_prompt_by_id(client.GetPromptByIdRequest(dataset="mine", config=config, id=3))
    assert by_id == prompt
    completion = "```python\nprint(sum(map(int, input().split())))\n```"
    request = client.SubmitRequest(dataset="mine", id=3, config=config, completion=completion)
    result = client.submit(request, max_attempts=1)
    assert (result.accepted, result.extracted_type) == (True, "fenced")
    assert result.tests[0].exec_info.run_result.stdout == "3\n"


@pytest.fixture(scope="module")
def verl():
    assert VERL.exists(), "run `make setup`: it fetches the reference code"
    spec = importlib.util.spec_from_file_location("reference_verl_sandbox", VERL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(verl, server, in_outs, code, **options):
    return verl.check_correctness(f"{server.url}/run_code", in_outs, code, **options)


def test_verls_codes(verl, server):
    in_outs = {"inputs": ["1", "2", "3", "4"], "outputs": ["1", "x", "3\n", "4"]}
    code = "n = int(input())\nif n == 3: 1/0\nif n == 4:\n    while True: pass\nprint(n)"
    results, metadata = check(verl, server, in_outs, code, timeout=2)
    assert results == [True, False, -2, -3]
    assert [case["status"] for case in metadata] == ["success", "wrong_answer", "runtime_error", "timeout"]


def test_verls_compile_errors_and_missing_languages(verl, server):
    in_outs = {"inputs": ["", ""], "outputs": ["", ""]}
    results, metadata = check(verl, server, in_outs, "int main( {", language="cpp", timeout=30)
    assert results == [-4, -4]
    assert metadata[0]["status"] == "compile_error"
    results, metadata = check(verl, server, in_outs, "x", language="lean")
    assert results == [-1, -1]
    assert metadata[0]["status"] == "sandbox_error"


def test_verls_functions_and_asserts(verl, server):
    in_outs = {"fn_name": "add", "inputs": ["1\n2", "[1]\n[2]"], "outputs": ["3", "[1, 2]"]}
    results, _ = check(verl, server, in_outs, "class Solution:\n    def add(self, a, b): return a + b")
    assert results == [True, True]
    in_outs = {"inputs": [None, None], "outputs": [None, None], "assert_case": ["assert f(1) == 2", "assert f(1) == 3"]}
    results, _ = check(verl, server, in_outs, "def f(x): return x + 1")
    assert results == [True, -2]


def test_verls_mixed_load_of_100_cases(verl, server):
    expected = {0: True, 1: False, 2: -2, 3: -3, 4: True}
    code = (
        "kind, n = map(int, input().split())\nif kind == 2: raise ValueError\nimport time\n"
        "if kind == 3: time.sleep(60)\n"
        "if kind == 4: print('x' * 100_000)\nelse: print(n)"
    )
    cases = [(number % 5 if number % 20 == 3 or number % 5 != 3 else 0, number) for number in range(100)]
    outputs = ["x" * 100_000 if kind == 4 else str(number + (kind == 1)) for kind, number in cases]
    in_outs = {"inputs": [f"{kind} {number}" for kind, number in cases], "outputs": outputs}
    semaphore = threading.Semaphore(16)
    results, _ = check(verl, server, in_outs, code, timeout=3, concurrent_semaphore=semaphore)
    assert results == [expected[kind] for kind, _ in cases]
