"""Rows in the shapes that SWE sets publish, of one tiny repository: `add` subtracts, and its tests say so.

`DOCKERFILE` makes the image of each: the repository at /testbed, with the bug but for SWE-smith's, whose rows bring it.
"""

import json
from typing import Any

BUG, FIX = "return a - b", "return a + b"
CODE = "def add(a, b):\n    {}\n\n\ndef same(a):\n    return a\n"
TESTS = "from calc import add, same\n\n\ndef test_same():\n    assert same(3) == 3\n"
NEW_TEST = "\n\ndef test_add():\n    assert add(2, 3) == 5\n"
TEST_PATCH = """\
diff --git a/tests/test_calc.py b/tests/test_calc.py
--- a/tests/test_calc.py
+++ b/tests/test_calc.py
@@ -3,3 +3,7 @@
<>
 def test_same():
     assert same(3) == 3
+
+
+def test_add():
+    assert add(2, 3) == 5
""".replace("<>", " ")
BUG_PATCH = """\
diff --git a/calc.py b/calc.py
--- a/calc.py
+++ b/calc.py
@@ -1,5 +1,5 @@
 def add(a, b):
-    return a + b
+    return a - b
<>
<>
 def same(a):
""".replace("<>", " ")
F2P, P2P = ["tests/test_calc.py::test_add"], ["tests/test_calc.py::test_same"]
ISSUE = "add(2, 3) gives -1."
R2E_RUN = "python3 -m pytest -rA r2e_tests\n"
SUMMARY = {"test_add": "PASSED", "\x1b[1mtest_same\x1b[0m - x": "PASSED"}
SHARED = {"problem_statement": ISSUE, "base_commit": "0" * 40, "version": "1.0"}
AS_TEXT = {"FAIL_TO_PASS": json.dumps(F2P), "PASS_TO_PASS": json.dumps(P2P)}
AS_LISTS = {"FAIL_TO_PASS": F2P, "PASS_TO_PASS": P2P}

ROWS: dict[str, dict[str, Any]] = {
    "swe-bench": {
        **SHARED,
        **AS_TEXT,
        "instance_id": "psf__requests-1",
        "repo": "psf/requests",
        "test_patch": TEST_PATCH,
        "patch": "the answer",
        "hints_text": "",
        "environment_setup_commit": "1",
    },
    "swe-gym": {
        **SHARED,
        **AS_LISTS,
        "instance_id": "iterative__dvc-2",
        "repo": "iterative/dvc",
        "test_patch": TEST_PATCH,
    },
    "swe-smith": {
        **AS_LISTS,
        "instance_id": "calc__calc.12345678.func__1",
        "repo": "swesmith/calc__calc.12345678",
        "problem_statement": ISSUE,
        "patch": BUG_PATCH,
        "image_name": "jyangballin/swesmith.x86_64.calc_1776_calc.12345678",
    },
    "r2e-gym": {
        "repo_name": "calc",
        "commit_hash": "abc123",
        "docker_image": "namanjain12/calc_final:abc123",
        "problem_statement": f"[ISSUE]\n{ISSUE}\n[/ISSUE]",
        "expected_output_json": json.dumps(SUMMARY),
        "prompt": "not the issue",
    },
    "swe-rebench": {
        **SHARED,
        **AS_LISTS,
        "instance_id": "calc__calc-3",
        "repo": "calc/calc",
        "test_patch": TEST_PATCH,
        "docker_image": "swerebench/sweb.eval.x86_64.calc_1776_calc-3",
        "install_config": {"test_cmd": "pytest --no-header -rA --tb=line -W ignore", "log_parser": "parse_log_pytest"},
    },
    "swe-bench-live": {
        **SHARED,
        **AS_LISTS,
        "instance_id": "calc__calc-4",
        "repo": "calc/calc",
        "test_patch": TEST_PATCH,
        "test_cmds": ["pytest -rA"],
        "log_parser": "pytest",
    },
}
ROWS["nemo-gym"] = {
    "responses_create_params": {
        "input": [],
        "metadata": {
            "instance_id": "iterative__dvc-2",
            "problem_statement": ISSUE,
            "dataset_name": "SWE-Gym/SWE-Gym",
            "instance_dict": json.dumps(ROWS["swe-gym"]),
        },
    }
}


def dockerfile(base: str, kind: str) -> str:
    """The image of a set's row."""
    code = CODE.format(FIX if kind == "swe-smith" else BUG)
    tests = TESTS + (NEW_TEST if kind in ("swe-smith", "r2e-gym") else "")
    files = {"calc.py": code, "tests/test_calc.py": tests, "conftest.py": ""}
    if kind == "r2e-gym":
        files = {"calc.py": code, "conftest.py": "", "run_tests.sh": R2E_RUN, "../r2e_tests/test_1.py": tests}
    lines = [f"RUN mkdir -p $(dirname {name}) && printf %b {escaped(text)} > {name}" for name, text in files.items()]
    git = "git init -q && git config user.email a@b && git config user.name a && git add -A && git commit -qm start"
    return "\n".join([f"FROM {base}", "WORKDIR /testbed", *lines, f"RUN {git}", ""])


def escaped(text: str) -> str:
    """A text for printf in a Dockerfile."""
    return "'" + text.replace("\n", "\\n") + "'"
