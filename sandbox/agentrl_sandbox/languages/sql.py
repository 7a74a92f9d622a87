"""SQL by sqlite3, in a database that is empty and forgotten afterwards; the first error ends the run."""

from agentrl_sandbox.languages.recipe import Recipe

RECIPE = Recipe(
    name="sql",
    source="main.sql",
    run=("sqlite3", "-bail", ":memory:", ".read main.sql"),
    needs=("sqlite3",),
    hello="create table t (x int);\ninsert into t values (19), (23);\nselect sum(x) from t;\n",
)
