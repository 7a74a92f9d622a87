"""The tables of a task's file, read field by field.

Invariants: a value of the wrong type is one clear line that names file and field; a field that no code read is known by
name, so that it can be reported; a variable of this machine's environment is handed over where it is passed by name
alone.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from agentrl.core.errors import UserError

TEMPLATE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")
PASS_ENV = "rollout.containers.pass_env"
Passed = Collection[str] | None
"""Environment variables of this machine that a task may have; None: it is looked at, and not run."""
SIZES = {"": 2**-20, "K": 2**-10, "M": 1, "G": 2**10, "T": 2**20}
LARGEST = 1e15


class Fields:
    """One table. `file` and `table` say where it stands, for messages."""

    def __init__(self, values: Mapping[str, Any], file: str, table: str = "", *, passed: Passed = ()) -> None:
        self.values, self.file, self.table, self.passed = values, file, table, passed
        self.notes: list[str] = []
        """Fields without an effect, here and in its tables."""
        self._read: set[str] = set()
        self._tables: dict[str, Fields] = {}

    def get(self, key: str) -> Any:
        """The value as it is, None where there is none."""
        self._read.add(key)
        return self.values.get(key)

    def text(self, key: str) -> str | None:
        """A text. Raises UserError for another type."""
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            raise self.wrong(key, value, "a text")
        return value

    def number(self, key: str, default: float) -> float:
        """A number of 0 or more. Raises UserError for anything else."""
        value = self.get(key)
        if value is None:
            return default
        written = isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)?", value)
        number = float(value) if written else value
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < LARGEST:
            raise self.wrong(key, value, "a number, 0 or more")
        return number

    def megabytes(self, key: str, old: str) -> int | None:
        """MiB, also from the older field `old`, a text such as "2G". Raises UserError."""
        older = self.size(old)
        return older if self.get(key) is None else int(self.number(key, 0)) or None

    def size(self, key: str, *, in_bytes: bool = False) -> int | None:
        """MiB of a text such as "2G"; `in_bytes`: of a plain number too. None: no limit. Raises UserError."""
        value = self.get(key)
        found = re.fullmatch(r"\s*(\d{1,15}(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", str(value), re.IGNORECASE)
        if value is None or (found and (found[2] or in_bytes)):
            return int(float(found[1]) * SIZES[found[2].upper()]) or None if found else None
        raise self.wrong(key, value, 'a size such as "2G"')

    def texts(self, key: str) -> dict[str, str]:
        """Name -> text, with `${NAME}` and `${NAME:-default}` from this machine's environment. Raises UserError."""
        entries = self.sub(key)
        return {name: entries._resolved(name) for name in entries.values}

    def names(self, key: str) -> tuple[str, ...]:
        """A list of texts. Raises UserError for anything else."""
        value = self.get(key) or []
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self.wrong(key, value, "a list of texts")
        return tuple(value)

    def sub(self, key: str) -> "Fields":
        """A table in it, empty where there is none. Raises UserError where it is no table."""
        value = self.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise self.wrong(key, value, "a table")
        made = Fields(value or {}, self.file, f"{self.table}{key}.", passed=self.passed)
        made.notes = self.notes
        return self._tables.setdefault(key, made)

    def unread(self) -> Iterator[str]:
        """Dotted names of fields that no code has read."""
        yield from (f"{self.table}{key}" for key in self.values if key not in self._read)
        for table in self._tables.values():
            yield from table.unread()

    def wrong(self, key: str, value: Any, right: str) -> UserError:
        """The error for a value that is not `right`."""
        return UserError(f"{self.file}: {self.table}{key} is {repr(value)[:200]}: write {right}")

    def _resolved(self, name: str) -> str:
        value = self.get(name)
        if isinstance(value, Mapping | list) or value is None:
            raise self.wrong(name, value, "a text")
        template = TEMPLATE.fullmatch(str(value))
        return str(value) if template is None else self.variable(name, template[1], template[2])

    def variable(self, key: str, name: str, default: str | None) -> str:
        """A variable of this machine's environment, for the field `key`. Raises UserError where it is not passed."""
        passed, there = name in (self.passed or ()), name in os.environ
        if passed and there:
            return os.environ[name]
        if default is None and self.passed is not None:
            fix = "set it" if passed else f"allow it with {PASS_ENV}=[{name}], or leave the task out"
            raise UserError(f"{self.file}: {self.table}{key} needs the environment variable {name}: {fix}")
        if there:
            self.notes.append(f"{self.table}{key} asks for {name} of this machine, which {PASS_ENV} hands over")
        return default or ""
