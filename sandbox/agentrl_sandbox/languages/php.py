"""PHP; `<?php` is put in front where it is missing."""

from agentrl_sandbox.languages.recipe import Recipe


def opened(code: str) -> str:
    """The code within PHP's tags."""
    return code if "<?php" in code else f"<?php\n{code}"


RECIPE = Recipe(
    name="php",
    source="main.php",
    prepare=opened,
    run=("php", "-f", "main.php"),
    needs=("php",),
    hello="[$a, $b] = explode(' ', fgets(STDIN));\necho $a + $b, PHP_EOL;\n",
)
