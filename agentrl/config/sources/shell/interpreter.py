"""Walks through a script, and hands over each command that it would start.

Invariant: where a condition is not known both ways are walked, and what differs afterwards is a mark; a way that leaves
the script is not the way that the rest of it takes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agentrl.config.sources.shell.assignments import Assignments
from agentrl.config.sources.shell.builtins import BUILTINS
from agentrl.config.sources.shell.compounds import Compounds
from agentrl.config.sources.shell.expand import Expander, Missing
from agentrl.config.sources.shell.marks import mark
from agentrl.config.sources.shell.parse import parse
from agentrl.config.sources.shell.state import Field, Leave, State, Status, merged, start
from agentrl.config.sources.shell.tree import Node, Simple, Word
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


class Shell(Compounds, Assignments):
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
            self.declare(name, rest)
            return "ok"
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
