"""Python's pytest, with the code as the one test module."""

from agentrl_sandbox.languages.recipe import PYTHON, Recipe

RECIPE = Recipe(
    name="pytest",
    source="test_main.py",
    run=(PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_main.py"),
    needs=(PYTHON,),
    modules=("pytest",),
    # The plugins that happen to be installed beside it are no part of a verdict.
    env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    hello="def test_sum():\n    assert 19 + 23 == 42\n",
    expected=b"1 passed",
)
