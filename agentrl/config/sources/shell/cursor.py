"""A position in a shell text: the next word, operator or here-document.

Invariant: blanks, continued lines and comments are skipped before each word and operator.
"""

import re
from bisect import bisect_right

from agentrl.config.sources.shell.scan import BLANK, after_parenthesis, after_piece, after_word, end_of_line
from agentrl.config.sources.shell.tree import Simple, Word

OPERATOR = re.compile(r";;&|;;|;&|&&|\|\||\|&|&>>|&>|<<<|<<-|<<|<&|>&|>>|>\||[;&|<>()\n]")


class Cursor:
    """Reads words and operators from left to right."""

    def __init__(self, text: str, first_line: int = 1) -> None:
        self.text, self.at, self.first_line = text.replace("\r\n", "\n"), 0, first_line
        self.breaks = [i for i, sign in enumerate(self.text) if sign == "\n"]
        self.documents: list[tuple[Simple, str, bool]] = []
        """Here-documents that begin at the next line: (command, delimiter, whether tabs go)."""

    def _parenthesised(self) -> str:
        """What stands between parentheses, which are taken too."""
        self._skip()
        start = self.at
        self.at = after_parenthesis(self.text, self.at)
        return self.text[start + 1 : self.at - 1]

    def _lines(self) -> None:
        while self._operator() == "\n":
            self._take("\n")

    def _skip(self) -> None:
        """Over blanks, continued lines and a comment."""
        while self.at < len(self.text):
            if self.text[self.at] in BLANK:
                self.at += 1
            elif self.text.startswith("\\\n", self.at):
                self.at += 2
            elif self.text[self.at] == "#":
                self.at = end_of_line(self.text, self.at)
            else:
                return

    def _operator(self) -> str:
        """The operator that comes next, or ""."""
        self._skip()
        found = OPERATOR.match(self.text, self.at)
        if found and found[0] in ("<", ">") and self.text[self.at : self.at + 2] in ("<(", ">("):
            return ""
        return found[0] if found else ""

    def _take(self, sign: str) -> None:
        if self._operator() == sign:
            self.at += len(sign)
            if sign == "\n" and self.documents:
                self._read_documents()

    def _read_documents(self) -> None:
        """The here-documents of the line that has just ended."""
        for command, delimiter, tabs in self.documents:
            plain = delimiter.strip("\"'\\")
            start, lines = self._line(), []
            while self.at < len(self.text):
                end = end_of_line(self.text, self.at)
                line = self.text[self.at : end]
                self.at = min(end + 1, len(self.text))
                line = line.lstrip("\t") if tabs else line
                if line == plain:
                    break
                lines.append(line + "\n")
            command.stdin = Word(_document("".join(lines), quoted=plain != delimiter), start)
        self.documents = []

    def _next(self) -> str:
        """The word that comes next, which is not taken."""
        self._skip()
        return self.text[self.at : after_word(self.text, self.at)]

    def _word(self) -> Word:
        self._skip()
        line, start = self._line(), self.at
        self.at = after_word(self.text, self.at)
        return Word(self.text[start : self.at], line)

    def _line(self) -> int:
        return bisect_right(self.breaks, self.at - 1) + self.first_line


def _document(text: str, *, quoted: bool) -> str:
    """A here-document as a quoted word."""
    if quoted:
        return "'" + text.replace("'", "'\\''") + "'"
    pieces, at = [], 0
    while at < len(text):
        end = after_piece(text, at) if text[at] in "\\`$" else at + 1
        pieces.append('\\"' if text[at] == '"' else text[at:end])
        at = end
    return f'"{"".join(pieces)}"'
