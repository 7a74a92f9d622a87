"""Lua."""

from agentrl_sandbox.languages.recipe import Recipe

RECIPE = Recipe(
    name="lua",
    source="main.lua",
    run=("lua", "main.lua"),
    needs=("lua",),
    hello='local a, b = io.read("n", "n")\nprint(a + b)\n',
)
