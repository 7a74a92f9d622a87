"""From a shell text to its tree.

Invariant: what does not parse is skipped, word by word, up to the next command: a script for bash always gives a tree.
"""

import re
from bisect import bisect_right

from agentrl.config.sources.shell import tree
from agentrl.config.sources.shell.scan import BLANK, after_parenthesis, after_piece, after_word, end_of_line
from agentrl.config.sources.shell.tree import Assignment, Node, Simple, Word

OPERATOR = re.compile(r";;&|;;|;&|&&|\|\||\|&|&>>|&>|<<<|<<-|<<|<&|>&|>>|>\||[;&|<>()\n]")
REDIRECTS = ("<", ">", ">>", "<<", "<<-", "<<<", "<&", ">&", "&>", "&>>", ">|")
ASSIGNED = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]]*)\])?(\+?)=", re.DOTALL)
DECLARING = ("export", "local", "declare", "typeset", "readonly")
NAME = re.compile(r"[\w.:-]+")


def parse(text: str, first_line: int = 1) -> list[Node]:
    """The commands of a text."""
    return Parser(text, first_line).commands(())


class Parser:
    """Reads a text from left to right."""

    def __init__(self, text: str, first_line: int = 1) -> None:
        self.text, self.at, self.first_line = text.replace("\r\n", "\n"), 0, first_line
        self.breaks = [i for i, sign in enumerate(self.text) if sign == "\n"]
        self.documents: list[tuple[Simple, str, bool]] = []
        """Here-documents that begin at the next line: (command, delimiter, whether tabs go)."""

    def commands(self, ends: tuple[str, ...]) -> list[Node]:
        """Commands up to one of the words `ends`, which is not taken, or to the end of the text."""
        found: list[Node] = []
        while True:
            while (sign := self._operator()) in ("\n", ";", "&"):
                self._take(sign)
            if self.at >= len(self.text) or sign in (";;", ";&", ";;&") or self._next() in ends:
                return found
            if sign == ")" and ")" in ends:
                return found
            before = self.at
            found.append(self._chain())
            self.at += self.at == before  # never stands still

    def _chain(self) -> Node:
        first, rest = self._pipeline(), []
        while (sign := self._operator()) in ("&&", "||"):
            self._take(sign)
            self._lines()
            rest.append((sign, self._pipeline()))
        return tree.Chain(first, rest) if rest else first

    def _pipeline(self) -> Node:
        negated = False
        while self._next() in ("!", "time"):
            negated ^= self._word().raw == "!"
        commands = [self._command()]
        while (sign := self._operator()) in ("|", "|&"):
            self._take(sign)
            self._lines()
            commands.append(self._command())
        return tree.Pipeline(commands, negated) if negated or len(commands) > 1 else commands[0]

    def _command(self) -> Node:
        word, line = self._next(), self._line()
        readers = {"if": self._if, "for": self._for, "while": self._loop, "until": self._loop, "case": self._case}
        if word in readers:
            self._word()
            node = readers[word]() if word != "until" else self._loop(until=True)
        elif word == "[[":
            node = self._test()
        elif self.text.startswith("((", self.at):
            node = tree.Sum(self._parenthesised()[1:-1])
        elif word == "{" or self._operator() == "(":
            node = self._group()
        elif word == "function" or re.match(r"[\w.:-]+[ \t]*\([ \t]*\)", self.text[self.at :]):
            return self._function()
        else:
            return self._simple(line)
        self._redirects(Simple(line))
        return node

    def _if(self) -> Node:
        branches, otherwise = [], []
        while True:
            condition = self._until("then")
            branches.append((condition, self.commands(("elif", "else", "fi"))))
            word = self._word().raw if self.at < len(self.text) else "fi"
            if word == "else":
                otherwise = self._until("fi")
            if word != "elif":
                return tree.If(branches, otherwise)

    def _for(self) -> Node:
        self._skip()
        line = self._line()
        if self.text.startswith("((", self.at):
            first, condition, step = [*self._parenthesised()[1:-1].split(";"), "", ""][:3]
            return tree.CountedFor((first, condition, step), self._body())
        name, words = self._word().raw, None
        self._lines()
        if self._next() == "in":
            self._word()
            words = self._words()
        return tree.For(name, words, self._body(), line)

    def _body(self) -> list[Node]:
        while self._operator() in (";", "\n"):
            self._take(self._operator())
        opened = self._word().raw
        return self._until("}" if opened == "{" else "done")

    def _loop(self, until: bool = False) -> Node:
        condition = self._until("do")
        return tree.Loop(condition, self._until("done"), until)

    def _case(self) -> Node:
        word, branches = self._word(), []
        self._lines()
        self._word()  # in
        while True:
            self._lines()
            if self.at >= len(self.text) or self._next() == "esac":
                break
            if self._operator() == "(":
                self._take("(")
            before, patterns = self.at, [self._word()]
            while self._operator() == "|":
                self._take("|")
                patterns.append(self._word())
            self._take(")")
            branches.append((patterns, self.commands(("esac",))))
            if (sign := self._operator()) in (";;", ";&", ";;&"):
                self._take(sign)
            self.at += self.at == before
        self._word()
        return tree.Case(word, branches)

    def _group(self) -> Node:
        subshell = self._operator() == "("
        self.at += 1
        body = self.commands((")",) if subshell else ("}",))
        self._skip()
        self.at += 1
        return tree.Group(body, subshell)

    def _function(self) -> Node:
        if self._next() == "function":
            self._word()
            self._skip()
        found = NAME.match(self.text, self.at)
        name = found[0] if found else ""
        self.at += len(name)
        if self._operator() == "(":
            self._parenthesised()
        self._lines()
        return tree.Function(name, self._command())

    def _test(self) -> Node:
        self._word()
        words: list[Word] = []
        while self.at < len(self.text) and self._next() != "]]":
            sign = self._operator()
            pattern = bool(words) and words[-1].raw == "=~"
            if sign and not pattern:
                self._take(sign)
                words += [Word(sign, self._line())] if sign != "\n" else []
            else:
                words.append(self._pattern() if pattern else self._word())
        self._word()
        return tree.Test(words)

    def _pattern(self) -> Word:
        """A regular expression may hold `(`, `|` and `)`."""
        self._skip()
        line, start = self._line(), self.at
        while self.at < len(self.text) and self.text[self.at] not in " \t\n":
            self.at = max(after_word(self.text, self.at), self.at + 1)
        return Word(self.text[start : self.at], line)

    def _simple(self, line: int) -> Node:
        command = Simple(line)
        while True:
            if self._redirects(command):
                continue
            sign = self._operator()
            if sign or self.at >= len(self.text):
                return command
            assigned = ASSIGNED.match(self.text, self.at)
            first = command.words[0] if command.words else None
            declaring = isinstance(first, Word) and first.raw in DECLARING
            if assigned and (not command.words or declaring):
                command_words = command.words if declaring else command.assignments
                command_words.append(self._assignment(assigned))
            else:
                command.words.append(self._word())

    def _assignment(self, found: re.Match[str]) -> Assignment:
        self.at = found.end()
        if self.text[self.at : self.at + 1] != "(":
            line, start = self._line(), self.at
            self.at = after_word(self.text, self.at)
            return Assignment(found[1], found[2], bool(found[3]), Word(self.text[start : self.at], line))
        self.at += 1
        words = self._words(lines=True)
        self._take(")")
        return Assignment(found[1], found[2], bool(found[3]), tuple(words))

    def _words(self, lines: bool = False) -> list[Word]:
        """Words up to an operator; `lines`: over line breaks."""
        words: list[Word] = []
        while self.at < len(self.text):
            sign = self._operator()
            if lines and sign == "\n":
                self._take(sign)
            elif sign:
                break
            else:
                words.append(self._word())
        return words

    def _redirects(self, command: Simple) -> bool:
        """Take a redirection, if there is one."""
        self._skip()
        number = re.match(r"\d+(?=[<>])|\{\w+\}(?=[<>])", self.text[self.at : self.at + 30])
        start = self.at
        self.at += len(number[0]) if number else 0
        sign = self._operator()
        if sign not in REDIRECTS or self.text[self.at : self.at + 2] in ("<(", ">("):
            self.at = start
            return False
        self._take(sign)
        line = self._line()
        target = self._word()
        if sign in ("<<", "<<-"):
            self.documents.append((command, target.raw, sign == "<<-"))
        elif sign == "<<<":
            command.stdin = Word(target.raw, line)
        elif sign in (">", ">>", "&>", "&>>", ">|") and (number is None or number[0] == "1"):
            command.silent = True
        return True

    def _until(self, end: str) -> list[Node]:
        found = self.commands((end,) if end != "then" else ("then",))
        self._word()
        return found

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
