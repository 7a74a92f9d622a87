"""TypeScript by tsx, which strips the types and does not check them."""

from agentrl_sandbox.languages.recipe import Recipe

RECIPE = Recipe(
    name="typescript",
    source="main.ts",
    run=("tsx", "main.ts"),
    needs=("tsx", "node"),
    hello=(
        "import { readFileSync } from 'node:fs';\n"
        "const numbers: number[] = readFileSync(0, 'utf8').split(' ').map(Number);\n"
        "console.log(numbers.reduce((a: number, b: number) => a + b));\n"
    ),
)
