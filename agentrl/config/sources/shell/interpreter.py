"""Walks through a script, and hands over each command that it would start.

Invariant: where a condition is not known both ways are walked, and what differs afterwards is a mark; a way that leaves
the script is not the way that the rest of it takes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agentrl.config.sources.shell import tree
from agentrl.config.sources.shell.builtins import BUILTINS
from agentrl.config.sources.shell.conditions import Condition
from agentrl.config.sources.shell.expand import Expander, Missing
from agentrl.config.sources.shell.marks import mark, unsure
from agentrl.config.sources.shell.parse import parse
from agentrl.config.sources.shell.patterns import matches
from agentrl.config.sources.shell.state import Field, Leave, State, Status, merged, start
from agentrl.config.sources.shell.tree import Assignment, Node, Simple, Word
from agentrl.core.errors import UserError

STEPS = 20_000
"""Commands after which a script is taken to have no end."""
DEPTH = 30
"""Functions and scripts within one another."""


@dataclass(frozen=True)
class Command:
    """A program that a script starts."""

    words: tuple[Field, ...]
    line: int
    file: Path
    certain: bool
    """Whether no unknown condition decides about it."""
    stdin: str | None = None


@dataclass(frozen=True)
class Ended:
    """What is known of a command that was not started."""

    output: str | None = None
    """None: nobody knows it."""
    status: Status = "started"


class Shell:
    """A script and where it is. `started` is called for each command that bash would not do itself.

    Without `arguments` nobody knows what $1 is.
    """

    def __init__(
        self,
        file: Path,
        environment: dict[str, str],
        arguments: Sequence[str] | None,
        started: "Callable[[Shell, Command], Ended]",
    ) -> None:
        self.file, self.started = file, started
        self.state: State = start(file, environment, arguments)
        self.expander = Expander(lambda: self.state, self.output)
        self.printed: list[str] = []
        """What has been written to stdout."""
        self.missing: list[tuple[int, str]] = []
        """Line and text where a variable that is not set ended the script, or a part of it."""
        self.steps, self.unknowns, self.depth, self.line = 0, 0, 0, 0

    def run(self) -> None:
        """All of the script. Raises UserError when it does not end, or is no text."""
        try:
            text = self.file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{self.file} is no shell script: {error}") from error
        try:
            with self.leaving("exit", "return", "break", "continue"):
                self.body(parse(text))
        except RecursionError:
            raise UserError(f"{self.file}: its commands stand within one another without an end") from None

    @contextmanager
    def leaving(self, *kinds: str) -> Iterator[None]:
        """Go on behind this when one of `kinds` leaves it."""
        try:
            yield
        except Leave as left:
            self.state.status = left.status
            if left.kind not in kinds:
                raise
        except Missing as missing:
            if "exit" not in kinds:
                raise
            self.missing.append((self.line, str(missing)))

    def script(self, file: Path, arguments: Sequence[Field], *, same: bool) -> None:
        """Another script: `source` in the `same` shell, `bash` in one of its own, with what is exported."""
        outer, held, self.file = self.file, self.state, file
        state = held if same else self._own(file)
        state.arguments = tuple(arguments) if arguments or not same else state.arguments
        self.state = state
        try:
            with self.leaving("return" if same else "exit"), self._deeper():
                self.body(parse(file.read_text(encoding="utf-8")))
        finally:
            self.file = outer
            self.state = self.state if same else held

    def text(self, text: str, line: int) -> Status:
        """`eval`: a text as commands of this script."""
        return self.body(parse(text, line))

    def inner(self, text: str, line: int, arguments: Sequence[Field]) -> None:
        """`bash -c`: a text as commands of a shell of its own."""
        held, self.state = self.state, self._own(self.file)
        self.state.arguments = tuple(arguments)
        try:
            with self.leaving("exit"), self._deeper():
                self.body(parse(text, line))
        finally:
            self.state = held

    def _own(self, file: Path) -> State:
        exported = {name: value for name, value in self.state.variables.items() if name in self.state.exported}
        return State(exported, (), self.state.folder, str(file), exported=self.state.exported)

    @contextmanager
    def _deeper(self) -> Iterator[None]:
        self.depth += 1
        if self.depth > DEPTH:
            raise UserError(f"{self.file}: its functions or scripts call each other without an end")
        try:
            yield
        finally:
            self.depth -= 1

    def output(self, text: str) -> str:
        """What the commands of `$(...)` print."""
        held, outer, self.printed = self.state, self.printed, []
        self.state = held.copy()
        try:
            with self.leaving("exit", "return", "break", "continue"), self._deeper():
                self.body(parse(text))
            found = "".join(self.printed)
        finally:
            status, self.state, self.printed = self.state.status, held, outer
        self.state.status = status
        return found.rstrip("\n")

    def body(self, nodes: Iterable[Node]) -> Status:
        """Commands one after another."""
        status: Status = "ok"
        for node in nodes:
            status = self.node(node)
        return status

    def node(self, node: Node) -> Status:
        """One command, of whatever kind."""
        self.steps += 1
        if self.steps > STEPS:
            raise UserError(f"{self.file}: a loop of it does not end")
        status: Status = getattr(self, f"_{type(node).__name__.lower()}")(node)
        left = self.state.status if self.state.status not in ("0", mark("STATUS")) else "1"
        self.state.status = {"ok": "0", "failed": left}.get(status, mark("STATUS"))
        return status

    def either(self, *ways: Callable[[], Status]) -> Status:
        """Walk several ways from here, and go on with what they have in common."""
        before, ends, left = self.state, [], None
        self.unknowns += 1
        for way in ways:
            self.state = before.copy()
            try:
                way()
                ends.append(self.state)
            except Leave as leaving:
                left = leaving
        self.unknowns -= 1
        self.state = before
        if not ends and left:
            raise left
        self.state = merged(ends)
        return "unknown"

    def _simple(self, node: Simple) -> Status:
        self.line = node.line
        if not node.words:
            self.state.status = "0"
            for assignment in node.assignments:
                self.assign(assignment)
            return {"0": "ok", "1": "failed"}.get(self.state.status, "started")  # type: ignore[return-value]
        first, *rest = node.words
        fields = self.expander.fields([first]) if isinstance(first, Word) else []
        name = fields[0].text if fields else ""
        if name in ("export", "local", "declare", "typeset", "readonly"):
            return self._declared(name, rest)
        fields += self.expander.fields(word for word in rest if isinstance(word, Word))
        if not fields:
            return "ok"
        return self._called(node, fields)

    def _called(self, node: Simple, fields: list[Field]) -> Status:
        held = {one.name: self.state.get(one.name) for one in node.assignments}
        exported = self.state.exported
        for assignment in node.assignments:
            self.assign(assignment)
        self.state.exported |= frozenset(held)
        printed = len(self.printed)
        stdin = None if node.stdin is None else self.expander.text(node.stdin.raw)
        name = fields[0].text
        try:
            if name in self.state.functions:
                return self._function_called(name, fields[1:])
            if name in BUILTINS:
                return BUILTINS[name](self, fields, stdin)
            return self._started(node, fields, stdin)
        finally:
            if node.silent:
                del self.printed[printed:]
            if held:
                for variable, value in held.items():
                    self.state.put(variable, value)
                self.state.exported = exported

    def _started(self, node: Simple, fields: list[Field], stdin: str | None) -> Status:
        ended = self.started(self, Command(tuple(fields), node.line, self.file, not self.unknowns, stdin))
        if ended.output != "":
            self.printed.append(mark("COMMAND") if ended.output is None else ended.output)
        return ended.status

    def _function_called(self, name: str, fields: list[Field]) -> Status:
        held, known = self.state.arguments, self.state.arguments_known
        self.state.arguments, self.state.arguments_known = tuple(fields), True
        self.state.locals = (*self.state.locals, {})
        status: Status = "ok"
        self.state.status = ""
        with self.leaving("return"), self._deeper():
            status = self.node(self.state.functions[name])
        if self.state.status not in ("", "0") and status == "ok":
            status = "failed"
        *outer, own = self.state.locals
        self.state.locals = tuple(outer)
        for variable, value in own.items():
            self.state.put(variable, value)
        self.state.arguments, self.state.arguments_known = held, known
        return status

    def _declared(self, name: str, words: Sequence[Word | Assignment]) -> Status:
        """`export a=1 b`, `local`, `declare -A`."""
        options = [word.raw for word in words if isinstance(word, Word) and word.raw.startswith("-")]
        table = any("A" in option for option in options)
        for word in words:
            if isinstance(word, Word) and word.raw.startswith("-"):
                continue
            names = [word.name] if isinstance(word, Assignment) else [one.text for one in self.expander.fields([word])]
            for variable in names:
                if name in ("local", "declare", "typeset") and "-g" not in options:
                    self.state.make_local(variable)
                if table and not isinstance(self.state.get(variable), dict):
                    self.state.put(variable, {})
            if isinstance(word, Assignment):
                self.assign(word)
            elif name == "local":
                self.state.put(names[0], None)
            if name == "export" or any("x" in option for option in options):
                self.state.exported |= frozenset(names)
        return "ok"

    def assign(self, found: Assignment) -> None:
        """`name=value` and its kin."""
        state, old = self.state, self.state.get(found.name)
        if isinstance(found.value, tuple):
            state.put(found.name, self._listed(found, old))
            return
        text = self.expander.text(found.value.raw)
        if found.index is not None or isinstance(old, tuple | dict):
            state.put(found.name, self._placed(found, old, text))
        else:
            state.put(found.name, (old or "") + text if found.append else text)

    def _listed(self, found: Assignment, old: "object") -> "tuple[Field, ...] | dict[str, str]":
        assert isinstance(found.value, tuple)
        if isinstance(old, dict):
            pairs = [word.raw.partition("]=") for word in found.value]
            named = {self.expander.text(key.lstrip("[")): self.expander.text(value) for key, _, value in pairs}
            return {**old, **named} if found.append else named
        before = (
            old
            if isinstance(old, tuple)
            else (Field(old, found.value[0].line),)
            if isinstance(old, str) and old and found.value
            else ()
        )
        return (*(before if found.append else ()), *self.expander.fields(found.value))

    def _placed(self, found: Assignment, old: "object", text: str) -> "tuple[Field, ...] | dict[str, str]":
        """`name[index]=text`; without an index the first one."""
        line = found.value.line if isinstance(found.value, Word) else 0
        if isinstance(old, dict):
            key = self.expander.text(found.index or "0")
            return {**old, key: old.get(key, "") + text if found.append else text}
        fields = list(_elements(old))
        number = self.expander.number(found.index or "0")
        number = len(fields) if number is None or number > 10_000 else number
        fields += [Field("", line)] * (number + 1 - len(fields))
        fields[number] = Field(fields[number].text + text if found.append else text, line)
        return tuple(fields)

    def _group(self, node: tree.Group) -> Status:
        if not node.subshell:
            return self.body(node.body)
        held, self.state = self.state, self.state.copy()
        try:
            with self.leaving("exit"):
                return self.body(node.body)
        finally:
            self.state = held
        return "ok"

    def _if(self, node: tree.If) -> Status:
        return self._branch(node, 0)

    def _branch(self, node: tree.If, number: int) -> Status:
        if number == len(node.branches):
            return self.body(node.otherwise)
        condition, body = node.branches[number]
        status = self.body(condition)
        if status in ("unknown", "started"):
            return self.either(lambda: self.body(body), lambda: self._branch(node, number + 1))
        return self.body(body) if status == "ok" else self._branch(node, number + 1)

    def _for(self, node: tree.For) -> Status:
        fields = self.state.arguments if node.words is None else self.expander.fields(node.words)
        with self.leaving("break"):
            for one in fields:
                self.state.put(node.name, one.text)
                with self.leaving("continue"):
                    self.body(node.body)
        return "ok"

    def _countedfor(self, node: tree.CountedFor) -> Status:
        first, condition, step = node.parts
        self.expander.number(first)
        with self.leaving("break"):
            while self.expander.number(condition or "1"):
                with self.leaving("continue"):
                    self.body([*node.body, tree.Sum("1")])
                self.expander.number(step)
        return "ok"

    def _loop(self, node: tree.Loop) -> Status:
        with self.leaving("break"):
            while (status := self.body(node.condition)) in (("failed",) if node.until else ("ok",)):
                with self.leaving("continue"):
                    self.body([*node.body, tree.Sum("1")])
            if status in ("unknown", "started"):
                self.either(lambda: self._once(node.body), lambda: "ok")
        return "ok"

    def _once(self, body: list[Node]) -> Status:
        with self.leaving("break", "continue"):
            return self.body(body)
        return "ok"

    def _case(self, node: tree.Case) -> Status:
        text = self.expander.known(self.expander.text(node.word.raw))
        if unsure(text):
            return self.either(*(lambda body=body: self.body(body) for _, body in node.branches), lambda: "ok")
        for words, body in node.branches:
            if any(matches(text, self.expander.pattern(word.raw)) for word in words):
                return self.body(body)
        return "ok"

    def _function(self, node: tree.Function) -> Status:
        self.state.functions[node.name] = node.body
        return "ok"

    def _chain(self, node: tree.Chain) -> Status:
        status = self.node(node.first)
        for number, (sign, right) in enumerate(node.rest):
            if status == "unknown":
                rest = tree.Chain(right, node.rest[number + 1 :])
                return self.either(lambda rest=rest: self._chain(rest), lambda: "ok")  # type: ignore[misc]
            if (status == "failed") == (sign == "||"):
                status = self.node(right)
        return status

    def _pipeline(self, node: tree.Pipeline) -> Status:
        if len(node.commands) == 1:
            status = self.node(node.commands[0])
            return {"ok": "failed", "failed": "ok"}.get(status, status) if node.negated else status  # type: ignore[return-value]
        held, printed = self.state, len(self.printed)
        for command in node.commands:
            self.state = held.copy()
            with self.leaving("exit"):
                self.node(command)
        self.state = held
        del self.printed[printed:]
        self.printed.append(mark("COMMAND"))
        return "started"

    def _sum(self, node: tree.Sum) -> Status:
        number = self.expander.number(node.text)
        return "unknown" if number is None else "ok" if number else "failed"

    def _test(self, node: tree.Test) -> Status:
        """`[[ ]]`: words are not split, and the right side is a pattern."""
        signs = {"==", "=", "!="}
        texts: list[str] = []
        for before, word in zip([None, *node.words], node.words, strict=False):
            shaped = before is not None and before.raw in signs
            texts.append((self.expander.pattern if shaped else self.expander.text)(word.raw))
        return self.tested(texts, shapes=True)

    def tested(self, words: Sequence[str], *, shapes: bool) -> Status:
        """What `test` answers."""
        known = [self.expander.known(word) for word in words]
        condition = Condition(known, lambda name: self.state.get(name) is not None, self.expander.number, shapes=shapes)
        answer = condition.value()
        if condition.groups is not None:
            self.state.put("BASH_REMATCH", tuple(Field(group, 0) for group in condition.groups))
        return "unknown" if answer is None else "ok" if answer else "failed"


def _elements(value: object) -> tuple[Field, ...]:
    """What an array begins with: its elements, or the text that the variable held."""
    if isinstance(value, tuple):
        return value
    return (Field(value, 0),) if isinstance(value, str) and value else ()
