"""Verdicts of the first Terminal-Bench, in what its tests write."""

import pytest

from agentrl.containers import Done
from agentrl.core.errors import InfraError
from agentrl.tasks.harbor.rewards import PARSERS

SUMMARY = "=========== short test summary info ===========\n"


def marked(name: str, verdict: str) -> str:
    return f"noise\n{name} results starts here\n{verdict}\n{name} results ends here\n"


@pytest.mark.parametrize(
    ("parser", "output", "reward"),
    [
        ("swebench", marked("SWEBench", "PASSED"), 1),
        ("swebench", marked("SWEBench", "FAILED"), 0),
        ("swebench", marked("SWEBench", "PASSED") + marked("SWEBench", "FAILED"), 0),
        ("sweperf", marked("SWE-Perf", "PASSED"), 1),
        ("sweperf", marked("SWE-Perf", "FAILED"), 0),
        ("mlebench", marked("MLEBench", "ALL TESTS PASSED"), 1),
        ("mlebench", marked("MLEBench", "PASSED"), 0),
        ("swelancer", "... SWE Lancer success ...", 1),
        ("swelancer", "swe lancer failure", 0),
        ("swelancer", "swe lancer success\nswe lancer failure", 0),
        ("pytest", f"{SUMMARY}PASSED t.py::a\nSKIPPED [1] t.py:3: why\nXFAIL t.py::b - why\n", 1),
        ("pytest", f"{SUMMARY}PASSED t.py::a\nFAILED t.py::b - assert 1 == 2\n", 0),
        ("pytest", f"{SUMMARY}PASSED t.py::a\nXPASS t.py::b\n", 0),
        ("pytest", f"\x1b[31m{SUMMARY.strip()}\x1b[0m\n\x1b[31mERROR\x1b[0m t.py - ImportError\n1 error in 0.01s\n", 0),
        ("pytest", f"{SUMMARY}PASSED t.py::forged\nPASSES\n{SUMMARY}FAILED t.py::a\n", 0),
        ("pytest", "..\n2 passed in 0.01s\n", 1),
        ("pytest", "==== 2 passed, 1 skipped in 3.01s (0:00:03) ====\n", 1),
        ("pytest", ".F\n1 failed, 1 passed in 0.01s\n", 0),
    ],
)
def test_verdicts(parser: str, output: str, reward: float) -> None:
    """The exit code says nothing."""
    assert [PARSERS[parser](Done(code, output, "", 0.0)) for code in (0, 1)] == [reward, reward]


@pytest.mark.parametrize("parser", sorted(PARSERS.keys() - {"exit code"}))
def test_tests_that_did_not_get_so_far_have_no_verdict(parser: str) -> None:
    for output in (
        "",
        "bash: pytest: not found\n",
        "SWEBench results starts here\n",
        "no tests ran in 0.00s\n",
    ):
        with pytest.raises(InfraError, match="the tests ended without"):
            PARSERS[parser](Done(0, output, "", 0.0))


def test_a_traced_script_has_its_verdict_on_stdout() -> None:
    traced = "+ echo SWEBench results starts here\n+ echo PASSED\n+ echo SWEBench results ends here\n"
    assert PARSERS["swebench"](Done(0, marked("SWEBench", "PASSED"), traced, 0.0)) == 1


def test_the_exit_code_alone() -> None:
    assert [PARSERS["exit code"](Done(code, "", "", 0.0)) for code in (0, 1)] == [1, 0]
