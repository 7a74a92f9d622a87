"""Names of packages that are imported when they are first asked for."""

import ast
from pathlib import Path


def type_imports(file: str) -> dict[str, str]:
    """The names that a module has for type checkers, by `from package.module import name as name`: their modules."""
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names if alias.asname == alias.name}
