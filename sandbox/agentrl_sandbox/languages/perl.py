"""Perl."""

from agentrl_sandbox.languages.recipe import Recipe

RECIPE = Recipe(
    name="perl",
    source="main.pl",
    run=("perl", "main.pl"),
    needs=("perl",),
    hello='my ($a, $b) = split " ", <STDIN>;\nprint $a + $b, "\\n";\n',
)
