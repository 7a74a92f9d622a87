"""Bash."""

from agentrl_sandbox.languages.recipe import Recipe

RECIPE = Recipe(
    name="bash",
    source="main.sh",
    run=("bash", "main.sh"),
    needs=("bash",),
    hello="read a b\necho $((a + b))\n",
)
