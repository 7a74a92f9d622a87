"""R by Rscript."""

from agentrl_sandbox.languages.recipe import Recipe

RECIPE = Recipe(
    name="R",
    source="main.R",
    run=("Rscript", "main.R"),
    needs=("Rscript",),
    hello='cat(sum(scan(file("stdin"), quiet = TRUE)), "\\n", sep = "")\n',
)
