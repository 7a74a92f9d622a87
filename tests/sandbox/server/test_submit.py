"""POST /submit and the dataset calls, on rows that the request brings along."""

import json

import pytest

from agentrl_sandbox.server.extraction import all_blocks, best
from agentrl_sandbox.server.submit import same_output

ADD = "print(sum(map(int, input().split())))"
CASES = [("1 2", "3"), ("4 5", "9"), ("7 8", "15")]


def row(cases=CASES, **fields):
    return {"id": 1, "test": [{"input": {"stdin": i}, "output": {"stdout": o}} for i, o in cases], **fields}


def submit(server, completion, data=None, language="python", **config):
    body = {
        "dataset": "mine",
        "id": 1,
        "completion": completion,
        "config": {"language": language, "provided_data": data or row(), **config},
    }
    return server.post("/submit", body)


@pytest.mark.parametrize(
    ("actual", "expected", "same"),
    [
        ("3\n", "3", True),
        ("  a b \n c\n\n", "A B\nC", True),
        ("a\n\nb", "a\nb", False),
        ("1.0000001", "1", True),
        ("1.001", "1", False),
        ("0.1", "1e-1", True),
        ("yes", "YES ", True),
        ("1 2", "1.0 2.0", False),
        ("", "", True),
        ("3", "", False),
        ("nan", "1", False),
        ("inf", "1", False),
        ("0", "1e-20", True),
        ("a\r\nb", "a\nb", True),
    ],
)
def test_outputs_are_compared_line_by_line(actual, expected, same):
    assert same_output(actual, expected) is same


@pytest.mark.parametrize(
    ("completion", "language", "code", "kind"),
    [
        ("Text\n```python\na = 1\n```\nmore\n```python\nb\n```", "python", "a = 1", "fenced"),
        ("```cpp\nint x;\n```\n```py\na\n```", "python", "a", "fenced"),
        ("```\nplain\n```", "python", "plain", "fenced"),
        ("```JS\nx\n```", "nodejs", "x", "fenced"),
        ("Sure:\n```python\na = 1\nb", "python", "a = 1\nb", "incomplete_fenced"),
        ("```python\ndone\n```\n```python\nnot", "python", "done", "fenced"),
        (
            "Here it is:\nimport os\n\ndef f():\n    return 1\n\nprint(f())\nHope that helps!",
            "python",
            "import os\n\ndef f():\n    return 1\n\nprint(f())",
            "heuristic",
        ),
        ("echo hi", "bash", "echo hi", "heuristic"),
        ("Only words.", "python", "", "empty"),
        ("", "cpp", "", "empty"),
    ],
)
def test_extraction(completion, language, code, kind):
    assert best(all_blocks(completion, language), language) == (code, kind)


def test_extraction_of_hostile_text_takes_no_time():
    for text in ("```" * 50_000, "`" * 200_000, "```a\n" * 30_000, "import x\n" + "a." * 100_000, "a, " * 60_000):
        all_blocks(text, "python")
        all_blocks(text, "sql")


def test_accepted(server):
    status, result = submit(server, f"```python\n{ADD}\n```")
    assert (status, result["accepted"], result["extracted_code"], result["extracted_type"]) == (
        200,
        True,
        ADD,
        "fenced",
    )
    assert [test["passed"] for test in result["tests"]] == [True] * 3
    test = result["tests"][1]
    assert test["test_info"] == {"input": {"stdin": "4 5"}, "output": {"stdout": "9"}}
    assert (test["exec_info"]["status"], test["exec_info"]["run_result"]["stdout"]) == ("Success", "9\n")
    assert {"id", "accepted", "extracted_code", "full_code", "test_code", "tests", "extracted_type", "extra"} == set(
        result
    )


def test_the_first_failure_ends_it_unless_all_are_asked_for(server):
    wrong = "```python\nprint(3)\n```"
    _, result = submit(server, wrong)
    assert (result["accepted"], [test["passed"] for test in result["tests"]]) == (False, [True, False])
    _, result = submit(server, wrong, extra={"run_all_cases": True})
    assert [test["passed"] for test in result["tests"]] == [True, False, False]
    _, result = submit(server, "```python\nraise SystemExit(1)\n```", extra={"run_all_cases": True})
    assert [test["exec_info"]["status"] for test in result["tests"]] == ["Failed"] * 3


def test_the_right_output_and_a_failing_return_code_do_not_pass(server):
    _, result = submit(server, f"```python\n{ADD}\nraise SystemExit(1)\n```")
    assert not result["accepted"]


def test_a_compiled_language_that_does_not_compile(server):
    _, result = submit(server, "```cpp\nint main( {\n```", language="cpp", compile_timeout=60)
    assert (result["accepted"], len(result["tests"])) == (False, 1)
    assert result["tests"][0]["exec_info"]["compile_result"]["return_code"] == 1


def test_rows_as_a_list_and_tests_as_json_text(server):
    other = row([("0", "wrong")]) | {"id": 2}
    mine = row() | {"test": json.dumps(row()["test"])}
    assert submit(server, f"```\n{ADD}\n```", [other, mine])[1]["accepted"]


def test_long_tests_are_shortened_in_the_reply_unless_asked_for(server):
    data = row([("x" * 5000, "5000")])
    code = "```python\nprint(len(input()))\n```"
    assert len(submit(server, code, data)[1]["tests"][0]["test_info"]["input"]["stdin"]) < 1100
    full = submit(server, code, data, extra={"return_full_case": True})[1]
    assert len(full["tests"][0]["test_info"]["input"]["stdin"]) == 5000


def test_a_requests_own_extraction_runs_in_the_sandbox(server):
    logic = "import os\nsubmit_code_blocks([CodeBlock(priority=50, code=completion.split('|')[1], language='python')])"
    _, result = submit(server, f"the answer|{ADD}|ends", custom_extract_logic=logic)
    assert (result["accepted"], result["extracted_code"]) == (True, ADD)
    status, reply = submit(server, "x", custom_extract_logic="raise ValueError('mine')")
    assert status == 400
    assert "mine" in reply["detail"]


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"language": None}, "config.language"),
        ({"data": {"id": 1, "test": []}}, "1 to 1000 tests"),
        ({"data": {"id": 1}}, "1 to 1000 tests"),
        ({"data": {"id": 1, "test": "{"}}, "not JSON"),
        ({"data": {"id": 1, "test": [{"input": {}, "output": {}}]}}, "stdin"),
        ({"data": [{"id": 9}]}, "no row has the id"),
        ({"dataset_type": "HumanEvalDataset"}, "not served here"),
        ({"language": "lean"}, "not installed"),
    ],
)
def test_what_cannot_be_tested_is_a_400_and_never_a_rejected_answer(server, fields, word):
    status, reply = submit(server, f"```\n{ADD}\n```", **fields)
    assert status == 400
    assert word in reply["detail"]


def test_without_rows_there_is_nothing_to_test_on(server):
    body = {"dataset": "humaneval", "id": 1, "completion": "x", "config": {"language": "python"}}
    status, reply = server.post("/submit", body)
    assert (status, "provided_data" in reply["detail"]) == (400, True)


def test_dataset_calls(server):
    data = [row(content=f"Task {number}.") | {"id": number} for number in range(5)]
    body = {"dataset": "mine", "config": {"provided_data": data, "language": "cpp"}}
    assert server.post("/list_ids", body) == (200, [0, 1, 2, 3, 4])
    prompts = server.post("/get_prompts", body | {"offset": 1, "limit": 2})[1]
    assert [prompt["id"] for prompt in prompts] == [1, 2]
    assert prompts[0]["prompt"].startswith("Task 1.\n\n")
    assert server.post("/get_prompt_by_id", body | {"id": 4})[1]["id"] == 4
    assert server.post("/get_metrics", body | {"results": []}) == (200, {})
    assert server.post("/get_metrics_function", body) == (200, {"function": None})
