"""From a shell text to its tree.

Invariant: what does not parse is skipped, word by word, up to the next command: a script for bash always gives a tree.
"""

import re

from agentrl.config.sources.shell import tree
from agentrl.config.sources.shell.cursor import Cursor
from agentrl.config.sources.shell.scan import after_word
from agentrl.config.sources.shell.tree import Assignment, Node, Simple, Word

REDIRECTS = ("<", ">", ">>", "<<", "<<-", "<<<", "<&", ">&", "&>", "&>>", ">|")
ASSIGNED = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]]*)\])?(\+?)=", re.DOTALL)
DECLARING = ("export", "local", "declare", "typeset", "readonly")
NAME = re.compile(r"[\w.:-]+")


def parse(text: str, first_line: int = 1) -> list[Node]:
    """The commands of a text."""
    return Parser(text, first_line).commands(())


class Parser(Cursor):
    """Builds the tree of a text."""

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
        line = self._line()
        compound = self._compound(self._next())
        if compound is None:
            return self._simple(line)
        if not isinstance(compound, tree.Function):
            self._redirects(Simple(line))
        return compound

    def _compound(self, word: str) -> Node | None:
        """The compound command that begins with `word`; None for a simple command."""
        readers = {"if": self._if, "for": self._for, "while": self._loop, "until": self._until_loop, "case": self._case}
        if word in readers:
            self._word()
            return readers[word]()
        if word == "[[":
            return self._test()
        if self.text.startswith("((", self.at):
            return tree.Sum(self._parenthesised()[1:-1])
        if word == "{" or self._operator() == "(":
            return self._group()
        if word == "function" or re.match(r"[\w.:-]+[ \t]*\([ \t]*\)", self.text[self.at :]):
            return self._function()
        return None

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

    def _until_loop(self) -> Node:
        return self._loop(until=True)

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
