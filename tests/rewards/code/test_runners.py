"""Test code that ends as unittest, pytest, doctest and numpy's users end it: right solutions pass, wrong ones fail."""

# ruff: noqa: E501 - programs
import pytest

from tests.rewards.code.conftest import Grade

pytestmark = pytest.mark.integration

CASE = "import unittest, sys, os\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(f(2), 4)\n"
RUN = "r = unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromTestCase(T))\n"
UNITTEST = [
    CASE + end
    for end in (
        "unittest.main()",
        "unittest.main(exit=False)",
        "unittest.main(argv=['x'], exit=False, verbosity=2)",
        "if __name__ == '__main__':\n    unittest.main()",
        "def run():\n    unittest.main()\nrun()",
        "try:\n    unittest.main()\nexcept SystemExit as e:\n    print(e.code)",
        "try:\n    unittest.main()\nexcept SystemExit as e:\n    assert e.code == 0",
        RUN,
        RUN + "assert r.wasSuccessful()",
        RUN + "sys.exit(not r.wasSuccessful())",
        RUN + "os._exit(0 if r.wasSuccessful() else 1)",
        RUN + "if not r.wasSuccessful(): raise SystemExit('bad')",
        RUN + "quit()",
        "s = unittest.TestSuite()\ns.addTest(T('test'))\nr = unittest.TestResult()\ns.run(r)\nprint(r)",
        "T('test').debug()",
        "unittest.TextTestRunner().run(unittest.TestLoader().loadTestsFromModule(sys.modules['__main__']))",
        "unittest.TextTestRunner().run(unittest.TestLoader().discover('.'))",
        "exit(0 if unittest.main(exit=False).result.wasSuccessful() else 1)",
        "sys.exit(0)",
        "",
    )
]
FUNCTIONS = """import pytest, sys
@pytest.fixture
def two(): return 2
@pytest.mark.parametrize("x,y", [(2, 4), (3, 6)])
def test_f(x, y): assert f(x) == y
class TestG:
    def test_it(self, two): assert f(two) == pytest.approx(4.0)
"""
PYTEST = [
    FUNCTIONS + end
    for end in ("pytest.main()", "sys.exit(pytest.main(['-x', __file__]))", "assert pytest.main(['-q', 'test_f.py']) == 0")
] + ["def test_f():\n    assert f(2) == 4", "def test_f():\n    if f(2) != 4: raise ValueError"]  # fmt: skip
DOCTEST = [
    'def shown():\n    """\n    >>> f(2)\n    4\n    """\nimport doctest, sys, unittest\n' + end
    for end in (
        "doctest.testmod()",
        "sys.exit(doctest.testmod().failed)",
        "doctest.run_docstring_examples(shown, {'f': f})",
        "unittest.TextTestRunner().run(doctest.DocTestSuite())",
    )
]
ENDS = [*UNITTEST, *PYTEST, *DOCTEST]
NUMPY = [
    "assert (f(2) == [2, 4, 3.5]).all()",
    "assert all(f(2) == [2, 4, 3.5])",
    "assert f(2).tolist() == [2, 4, 3.5]",
    "x = f(2)\nassert x.shape == (3,) and x[2] == 3.5 and x.sum() == 9.5 and x.dtype == float",
    "import numpy as np\nassert (f(2) == np.array([2, 4, 3.5])).all() == True",
    "import numpy as np\nassert isinstance(f(2), np.ndarray) and np.allclose(f(2), [2, 4, 3.5])",
    "import numpy as np\nassert np.array_equal(f(2), [2, 4, 3.5]), f(2)",
    "import numpy as np\nnp.testing.assert_allclose(f(2), [2, 4, 3.5])",
    "assert np.max(np.abs(f(2) - np.array([2, 4, 3.5]))) < 1e-6",
    "import numpy\ndef check(g):\n    for k in range(3):\n        assert numpy.isclose(g(k), [k, 2 * k, 3.5]).all()\ncheck(f)",
    "import numpy as np, unittest\nclass T(unittest.TestCase):\n    def test(self): np.testing.assert_array_equal(f(2), [2, 4, 3.5])\nunittest.main()",
]
ARRAY = "import numpy as np\ndef f(x): return np.array([x, 2 * x, {}])"
CASES = {
    "a truth of numpy's": ("import numpy as np\ndef f(x): return np.bool_(x {} 1)", ">", "<", "assert f(2).all() and not f(0)\nassert f(2) == True"),
    "a number of numpy's": ("import numpy as np\ndef f(x): return np.float32(x {} 0.5)", "+", "-", "assert f(2) == 2.5\nassert f(2).item() == 2.5 and f(2).dtype == 'float32'"),
    "an array changed in place": ("def f(a): a *= {}", "2", "3", "import numpy as np\na = np.arange(4).reshape(2, 2)\nf(a)\nassert (a == [[0, 2], [4, 6]]).all()"),
    "an array as an argument": ("def f(a): return {} @ a", "a.T", "a", "import numpy as np\na = np.arange(4.0).reshape(2, 2)\nassert np.allclose(f(a), a.T @ a)"),
    "an array where a list is due": ("import numpy as np\ndef f(x): return {}([1, 2])", "list", "np.array", "assert f(2) == [1, 2]"),
    "a function as an argument": ("def f(g): return g(2) + {}", "0", "1", "import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(f(lambda x: 2 * x), 4)\nunittest.main()"),
    "input patched": ("def f(): return int(input()) * {}", "2", "3", "from unittest import TestCase, main, mock\nclass T(TestCase):\n    @mock.patch('builtins.input', return_value='2')\n    def test(self, _): self.assertEqual(f(), 4)\nmain()"),
    "input patched by pytest": ("def f(): return int(input()) * {}", "2", "3", "def test_f(monkeypatch):\n    monkeypatch.setattr('builtins.input', lambda: '2')\n    assert f() == 4"),
    "input patched, names of tests": ("def f(): return int(input()) * {}", "2", "3", "from unittest import mock\ntests = test_cases = ['2']\ndef test(case, due):\n    with mock.patch('builtins.input', return_value=case):\n        if f() != due: raise ValueError\nfor case in test_cases: test(case, 4)"),
    "waits": ("async def f(x): return {} * x", "2", "3", "import unittest\nclass T(unittest.IsolatedAsyncioTestCase):\n    async def test(self): self.assertEqual(await f(2), 4)\nunittest.main()"),
    "an exit that is due": ("import sys\ndef f(x):\n    {}sys.exit(3)", "", "0 and ", "import pytest\nwith pytest.raises(SystemExit):\n    f(1)"),
    "a repr": ("class P:\n    def __repr__(self): return 'P{}'", "()", "(1)", "assert repr(P()) == 'P()'"),
}  # fmt: skip


@pytest.mark.prevents(
    "test code that ends in `unittest.main()`, `pytest.main()` or without an assert scores right solutions 0 or "
    "wrong ones 1"
)
@pytest.mark.parametrize(
    ("solution", "right", "wrong", "scripts"),
    [("def f(x): return {}", "2 * x", "5", ENDS), (ARRAY, "3.5", "3.6", NUMPY)]
    + [(solution, right, wrong, [script]) for solution, right, wrong, script in CASES.values()],
    ids=["ends", "numpy", *CASES],
)
def test_right_solutions_pass_and_wrong_ones_fail(
    verdict: Grade, solution: str, right: str, wrong: str, scripts: list[str]
) -> None:
    for choice, due in ((right, []), (wrong, scripts)):
        found = verdict(solution.replace("{}", choice), {"assert_case": scripts}, total=1000.0)
        failed = [script for script, result in zip(scripts, found.results, strict=True) if result is not True]
        assert failed == due, [about["stderr"] for about in found.metadata]


EXITS = [
    "import sys\ndef f(*_): sys.exit(0)",
    "import os\ndef f(*_): os._exit(0)",
    "import unittest\ndef f(*_): raise unittest.SkipTest",
    "import pytest\ndef f(*_): pytest.skip()",
    "def f(*_): raise KeyboardInterrupt",
]


@pytest.mark.parametrize("hack", EXITS)
def test_a_solution_ends_no_test(verdict: Grade, hack: str) -> None:
    one_of_each = [UNITTEST[0], PYTEST[0], DOCTEST[0], NUMPY[-4]]
    found = verdict(hack, {"assert_case": one_of_each}, total=1000.0)
    assert found.score == 0.0, found.results
    assert not found.forgeable


@pytest.mark.parametrize("hack", EXITS[:2])
def test_an_exit_in_the_tests_own_process_is_no_pass(verdict: Grade, hack: str) -> None:
    scripts = ["open\nif f(2) != 4: raise ValueError", f"open\n{CASE}unittest.main()"]
    assert verdict(hack, {"assert_case": scripts}).score == 0.0
