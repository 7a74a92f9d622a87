"""What a page shows: its blocks between fences, and the commands in them.

A block belongs to a file when the line above it ends in that file's name and a colon, or its first line is a comment
that begins with it. `bash` blocks are commands to type, `console` blocks commands with what they answer.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = {page.name: page for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]}
KINDS = {"bash", "console", "csv", "python", "yaml", "json", "toml", "text"}
IN_ORDER = ("README.md", "getting-started.md", "python.md", "evaluation.md", "extending.md")
"""Pages that a new user reads one after the other."""
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ABOVE = re.compile(r"`([\w./-]+\.(?:py|yaml|json|jsonl|sh|toml))`(?:,[^`\n]*)?:\s*$")
COMMENT = re.compile(r"#\s?([\w./-]+\.(?:py|yaml|sh))\b")


@dataclass(frozen=True)
class Block:
    kind: str
    text: str
    line: int  # of the page
    file: str | None  # that it shows
    section: str = ""
    """The id of the `##` heading above it."""

    @property
    def commands(self) -> list[str]:
        """What is typed, one command each, with lines that go on joined."""
        if self.file or self.kind not in ("bash", "console"):
            return []
        if self.text.startswith("#!"):
            return [self.text]
        lines = self.text.replace("\\\n", " ").splitlines()
        if self.kind == "console":
            return [line[2:] for line in lines if line.startswith("$ ")]
        return [line.strip() for line in lines if line.strip() and not line.startswith("#")]

    @property
    def answers(self) -> list[str]:
        """Of a console block: what stands below each command."""
        return [part.partition("\n")[2].strip() for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]]


def blocks(page: Path) -> Iterator[Block]:
    """All fenced blocks, from the first to the last."""
    text = page.read_text(encoding="utf-8")
    for found in FENCED.finditer(text):
        above = text[: found.start()]
        named = COMMENT.match(found[2]) or ABOVE.search(above)
        sections = re.findall(r"^## (.*)$", FENCED.sub("", above), re.MULTILINE)
        section = heading_id(sections[-1]) if sections else ""
        yield Block(found[1], found[2], above.count("\n") + 1, named[1] if named else None, section)


def section(name: str) -> Iterator[Block]:
    """The blocks of a section: `page.md#heading`."""
    page, _, heading = name.partition("#")
    return (block for block in blocks(PAGES[page]) if block.section == heading)


def heading_id(heading: str) -> str:
    """As GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def heading_ids(page: Path) -> set[str]:
    """Headings and anchors."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {*map(heading_id, headings), *re.findall(r'<a id="([^"]+)">', text)}


def commands(page: Path) -> list[str]:
    return [command for block in blocks(page) for command in block.commands]
