"""Ruby."""

from agentrl_sandbox.languages.recipe import Recipe

RECIPE = Recipe(
    name="ruby",
    source="main.rb",
    run=("ruby", "main.rb"),
    needs=("ruby",),
    hello="puts gets.split.sum(&:to_i)\n",
)
