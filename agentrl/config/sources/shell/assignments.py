"""Assignments and declarations: `name=value`, `name+=(...)`, `name[i]=value`, `declare`, `local`, `export`."""

from collections.abc import Sequence

from agentrl.config.sources.shell.expand import Expander
from agentrl.config.sources.shell.state import Field, State
from agentrl.config.sources.shell.tree import Assignment, Word

LOCAL = ("local", "declare", "typeset")
"""Commands that declare a variable of a function, unless they have -g."""


class Assignments:
    """The part of a shell that sets variables."""

    state: State
    expander: Expander

    def declare(self, name: str, words: Sequence[Word | Assignment]) -> None:
        """`export a=1 b`, `local`, `declare -A`; `name`: the command."""
        options = [word.raw for word in words if isinstance(word, Word) and word.raw.startswith("-")]
        for word in words:
            if isinstance(word, Assignment):
                self._make([word.name], name, options)
                self.assign(word)
                self._export([word.name], name, options)
            elif not word.raw.startswith("-"):
                names = [one.text for one in self.expander.fields([word])]
                self._make(names, name, options)
                if name == "local":
                    self.state.put(names[0], None)
                self._export(names, name, options)

    def _make(self, names: Sequence[str], name: str, options: Sequence[str]) -> None:
        """Make variables local, or tables, as the command and its options ask."""
        table = any("A" in option for option in options)
        for variable in names:
            if name in LOCAL and "-g" not in options:
                self.state.make_local(variable)
            if table and not isinstance(self.state.get(variable), dict):
                self.state.put(variable, {})

    def _export(self, names: Sequence[str], name: str, options: Sequence[str]) -> None:
        if name == "export" or any("x" in option for option in options):
            self.state.exported |= frozenset(names)

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


def _elements(value: object) -> tuple[Field, ...]:
    """What an array begins with: its elements, or the text that the variable held."""
    if isinstance(value, tuple):
        return value
    return (Field(value, 0),) if isinstance(value, str) and value else ()
