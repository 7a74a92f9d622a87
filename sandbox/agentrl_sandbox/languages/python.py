"""Python, by a pre-forked interpreter or as `python3 main.py`."""

from agentrl_sandbox.languages.recipe import PYTHON, Recipe

RECIPE = Recipe(
    name="python",
    source="main.py",
    run=(PYTHON, "main.py"),
    needs=(PYTHON,),
    hello="print(sum(map(int, input().split())))",
    zygote=True,
)
