"""Rows of SWE sets: their images, commands and logs, by the rules of each set."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.schema import Data
from agentrl.core.errors import UserError
from agentrl.data.dataset import source_rows
from agentrl.tasks.swe.logs import shares, statuses, summary
from agentrl.trajectory.row import Row
from tests.tasks.swe.published import F2P, P2P, ROWS

MADE = {
    "swe-bench": ("swebench/sweb.eval.x86_64.psf_1776_requests-1", "pytest -rA tests/test_calc.py"),
    "swe-gym": ("xingyaoww/sweb.eval.x86_64.iterative_s_dvc-2", "pytest -rA tests/test_calc.py"),
    "nemo-gym": ("xingyaoww/sweb.eval.x86_64.iterative_s_dvc-2", "pytest -rA tests/test_calc.py"),
    "swe-smith": (ROWS["swe-smith"]["image_name"], "--tb=no --verbose tests/test_calc.py"),
    "r2e-gym": (ROWS["r2e-gym"]["docker_image"], "bash run_tests.sh"),
    "swe-rebench": (ROWS["swe-rebench"]["docker_image"], "-W ignore tests/test_calc.py"),
    "swe-bench-live": ("starryzhang/sweb.eval.x86_64.calc_1776_calc-4", "pytest -rA"),
}


def read(folder: Path, *rows: dict[str, Any], query: str = "") -> list[Row]:
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(source_rows(f"swe:{file}{query}", Data(), "data.train_files"))


@pytest.mark.parametrize("kind", ROWS)
def test_a_published_row_has_its_image_and_command(kind: str, tmp_path: Path) -> None:
    (row,) = read(tmp_path, ROWS[kind], query="?memory_mb=512")
    container = row.extra_info["task"]["container"]
    assert (container["image"], container["memory_mb"], container["workdir"]) == (MADE[kind][0], 512, "/testbed")
    assert container["verify"].endswith(MADE[kind][1])
    assert row.prompt[0]["content"].endswith("\n\nadd(2, 3) gives -1.")
    assert row.scores_itself
    assert "the answer" not in str(row)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"repo": "no/body", "test_cmd": "pytest"},
            "rows.jsonl:2: no column names its image, and its set is unknown: add a column image_name",
        ),
        ({"repo": "no/body", "image_name": "x"}, "nothing says how the tests of no/body run: add a column test_cmd"),
        ({"log_parser": "parse_log_jest"}, "nothing reads logs of 'jest'"),
        ({"FAIL_TO_PASS": "[]"}, "FAIL_TO_PASS is '[]': write a list of tests there"),
        ({"FAIL_TO_PASS": "no json"}, "FAIL_TO_PASS is 'no json': write a list of tests there"),
        ({"PASS_TO_PASS": "5"}, "PASS_TO_PASS is '5': write a list of tests there"),
        ({"PASS_TO_PASS": [1]}, "PASS_TO_PASS is '[1]': write a text, or a list of texts there"),
        ({"problem_statement": None}, "problem_statement is 'None': write a text there"),
        ({"instance_id": 5}, "instance_id is '5': write a text there"),
        ({"test_cmd": ["a", 5]}, "test_cmd is \"['a', 5]\": write a text, or a list of texts there"),
        ({"FAIL_TO_PASS": "[1]"}, "FAIL_TO_PASS is '[1]': write a list of tests there"),
    ],
)
def test_a_row_that_no_rule_reads_is_refused_or_left_out(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    rows = ROWS["swe-bench"], {**ROWS["swe-bench"], **change}
    with pytest.raises(UserError) as caught:
        read(tmp_path, *rows)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(read(tmp_path, *rows, query="?broken=skip")) == 1


def test_names_choose_instances(tmp_path: Path) -> None:
    rows = ROWS["swe-bench"], ROWS["swe-gym"], ROWS["r2e-gym"]
    assert [row.extra_info["instance_id"] for row in read(tmp_path, *rows, query="?name=*__dvc-*")] == [
        "iterative__dvc-2"
    ]


def test_django_has_modules_for_files(tmp_path: Path) -> None:
    patch = "".join(f"diff --git a/{f} b/{f}\n" for f in ("tests/forms_tests/tests.py", "tests/forms_tests/a.html"))
    change = {"repo": "django/django", "instance_id": "django__django-1", "test_patch": patch}
    (row,) = read(tmp_path, {**ROWS["swe-bench"], **change})
    assert row.extra_info["task"]["container"]["verify"].endswith("--parallel 1 forms_tests.tests")


LOGS = {
    "pytest": (
        "tests/a.py::one PASSED [ 50%]\nFAILED tests/a.py::two - no\n\x1b[32mPASSED\x1b[0m b::x[/tmp/y/z]\nnoise",
        {"tests/a.py::one": "PASSED", "tests/a.py::two": "FAILED", "b::x[/tmp/y/z]": "PASSED", "b::x[/z]": "PASSED"},
    ),
    "django": (
        "test_a (m.T) ... ok\ntest_b (m.T) ... FAIL\ntest_c (m.T) ... a line\nok\ntest_d (m.T) ... skipped 'x'\n",
        {"test_a (m.T)": "ok", "test_b (m.T)": "FAIL", "test_c (m.T)": "ok", "test_d (m.T)": "skipped"},
    ),
    "sympy": (
        "test_a ok\ntest_b F\n____ sympy/x.py:test_b ____\n",
        {"test_a": "ok", "test_b": "F", "sympy/x.py:test_b": "____"},
    ),
    "gotest": ("--- PASS: TestA (0.00s)\n    --- FAIL: TestA/b (0.1s)\n", {"TestA": "PASS", "TestA/b": "FAIL"}),
    "cargo": ("test a::b ... ok\ntest c ... FAILED\n", {"a::b": "ok", "c": "FAILED"}),
}


@pytest.mark.parametrize("kind", LOGS)
def test_logs_are_read(kind: str) -> None:
    log, found = LOGS[kind]
    assert statuses(log, kind) == found


def test_all_tests_count_and_skips_only_where_they_passed_before() -> None:
    log = f"PASSED {F2P[0]}\nSKIPPED {P2P[0]}\n"
    assert shares(log, "pytest", {"FAIL_TO_PASS": F2P, "PASS_TO_PASS": P2P}) == {"fail_to_pass": 1, "pass_to_pass": 1}
    assert shares(log, "pytest", {"FAIL_TO_PASS": P2P, "PASS_TO_PASS": []}) == {"fail_to_pass": 0}
    assert summary("x::t PASSED\n= short test summary info =\nFAILED a.py::T::t - b\nPASSED a.py::u\n") == {
        "T.t": "FAILED",
        "u": "PASSED",
    }
