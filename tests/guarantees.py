"""The page of known failure modes, from the tests that are marked with `pytest.mark.prevents("the failure")`.

python tests/guarantees.py --out docs/guarantees.md
"""

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
MARK = "pytest.mark.prevents"
HEAD = """# Known failure modes and the tests that cover them

Look up a failure that you know from other frameworks, and a test (below `tests/`) that fails if it happens here; its
name says what happens instead. `make reference` writes this page from the tests that `pytest.mark.prevents` marks.
"""


def page() -> str:
    """The page as Markdown: a table for each folder of tests."""
    lines, folder = [HEAD.rstrip()], ""
    for file in sorted(TESTS.rglob("test_*.py")):
        name = file.relative_to(TESTS)
        for failure, test in prevented(file):
            room = name.parts[0] if len(name.parts) > 1 else "all"
            if room != folder:
                lines += [f"\n## {room}\n", "| failure | test |", "| --- | --- |"]
                folder = room
            lines.append(f"| {failure} | `{name}::{test}` |")
    return "\n".join(lines) + "\n"


def prevented(file: Path) -> Iterator[tuple[str, str]]:
    """(failure, name of the test) for each marker of a file."""
    text = file.read_text()
    if MARK not in text:
        return
    for node in ast.parse(text).body:
        for call in getattr(node, "decorator_list", []):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == MARK:
                yield ast.literal_eval(call.args[0]), node.name  # type: ignore[attr-defined]  # it has decorators


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the page to write")
    parser.parse_args().out.write_text(page())
