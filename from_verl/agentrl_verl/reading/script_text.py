"""The text of a shell script: the lines of its words, the variables that it needs, its commands where no bash ran."""

import re
import shlex
from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path

from agentrl_verl.reading.launches import Word, mark

REFERENCE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
NAME = r"(?<![\w.$-])([A-Za-z_]\w*)"
ASSIGNED = re.compile(rf"{NAME}(?:\[[^\]]*\])?\+?=|(?:\bread\b[^\n]*?|\bfor\s+|mapfile[^\n]*?){NAME}")
TESTED = re.compile(r"\$\{!?#?(\w+)[^}\w]")
"""A variable with a default, or another operator: bash knows what to do where it is not set."""
ARITHMETIC = re.compile(r"\(\((.*?)\)\)", re.DOTALL)
NOUNSET = re.compile(r"^\s*set\s+(-\w*u|.*-o\s+nounset)", re.MULTILINE)
OPERATOR = re.compile(r"\|\|?$|&&?$|;|[0-9&]?>")
"""Ends the words of a command."""
BY_BASH = {
    *("PWD", "OLDPWD", "HOME", "HOSTNAME", "PATH", "UID", "EUID", "USER", "PPID", "IFS", "BASHPID", "SHELL", "OSTYPE"),
    *("RANDOM", "SECONDS", "BASH_SOURCE", "LINENO", "FUNCNAME", "PIPESTATUS", "REPLY", "OPTARG", "OPTIND"),
}


def needed(texts: "Sequence[ScriptText]", given: Collection[str]) -> frozenset[str]:
    """Variables that scripts read without a default, and that neither they nor the environment set."""
    code = "\n".join(line for text in texts for line in text.lines)
    read = {name for pair in REFERENCE.findall(code) for name in pair if name and not name[0].isdigit()}
    own = {name for pair in ASSIGNED.findall(code) for name in pair if name}
    counted = set(re.findall(r"\w+", " ".join(ARITHMETIC.findall(code))))
    return frozenset(read - own - counted - set(TESTED.findall(code)) - BY_BASH - set(given))


class ScriptText:
    """A script as text."""

    def __init__(self, file: Path, text: str) -> None:
        self.file, self.text = file, text
        self.lines = ["" if line.lstrip().startswith("#") else line for line in self.text.splitlines()]

    def line_of(self, pattern: str, *, after: int = 0) -> int:
        """The first line with a pattern, at `after` or later if there is one; 0 where no line has it."""
        found = [number for number, line in enumerate(self.lines, 1) if re.search(pattern, line)]
        return next((number for number in found if number >= after), found[0] if found else 0)

    def place(self, words: Sequence[str], start: int) -> list[Word]:
        """Words of a command that begins at line `start`, each with the line that sets it."""
        placed, last = list[Word](), 0
        for word in words:
            key = re.match(r"[+~]*([\w./@-]+=)", word)
            exact = self.line_of(re.escape(word), after=last) if key else 0
            line = exact or (self.line_of(rf"(?<![\w.]){re.escape(key[1])}", after=last) if key else 0)
            last = line or last
            placed.append(Word(word, last or start))
        return placed

    @cached_property
    def commands(self) -> list[list[Word]]:
        """Commands as words, with a mark for each variable; no condition, loop or array is looked at."""
        found, number = list[list[Word]](), 0
        for joined in "\n".join(self.lines).replace("\\\n", "\\\0").split("\n"):
            parts = joined.split("\\\0")
            words = [Word(word, number + i) for i, part in enumerate(parts, 1) for word in _words(part)]
            number += len(parts)
            found += [words] if words else []
        return found


def _words(line: str) -> list[str]:
    shown = re.sub(r"\$(?:\{(\w+)[^}]*\}|(\w+)|\([^)]*\)|[@*])", lambda m: mark(m[1] or m[2] or "COMMAND"), line)
    try:
        words = shlex.split(shown, comments=True)
    except ValueError:  # a quote that another line ends
        words = [word for word in shown.split() if not {"'", '"', "(", ")"} & {*word}]
    end = next((number for number, word in enumerate(words) if OPERATOR.match(word)), None)
    return words[:end]
