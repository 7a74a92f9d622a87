"""Compound commands: groups, branches, loops, pipelines, tests."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager

from agentrl.config.sources.shell import tree
from agentrl.config.sources.shell.conditions import Condition
from agentrl.config.sources.shell.expand import Expander
from agentrl.config.sources.shell.marks import mark, unsure
from agentrl.config.sources.shell.patterns import matches
from agentrl.config.sources.shell.state import Field, State, Status
from agentrl.config.sources.shell.tree import Node


class Compounds:
    """The part of a shell that runs compound commands; each method takes one kind of node."""

    state: State
    expander: Expander
    printed: list[str]

    def leaving(self, *kinds: str) -> AbstractContextManager[None]:
        """As `Shell.leaving`."""
        raise NotImplementedError

    def body(self, nodes: Iterable[Node]) -> Status:
        """As `Shell.body`."""
        raise NotImplementedError

    def node(self, node: Node) -> Status:
        """As `Shell.node`."""
        raise NotImplementedError

    def either(self, *ways: Callable[[], Status]) -> Status:
        """As `Shell.either`."""
        raise NotImplementedError

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
