"""JavaScript by Node.js."""

from agentrl_sandbox.languages.recipe import HEAP, Recipe

RECIPE = Recipe(
    name="nodejs",
    source="main.js",
    run=("node", f"--max-old-space-size={HEAP}", "main.js"),
    needs=("node",),
    hello="const [a, b] = require('fs').readFileSync(0, 'utf8').split(' ').map(Number);\nconsole.log(a + b);\n",
)
