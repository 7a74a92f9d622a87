"""Bounds the size of what a chat template makes: templates are programs that came with a checkpoint.

Jinja's sandbox keeps them from files and from Python's internals, and not from `'a' * 3000000000`. Here each operator,
method and filter is checked before it runs, by the size of its result.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from string import Formatter
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_SIZE = 1 << 25
"""Characters, items or bits of one value, and characters of a conversation."""
FORMAT_WIDTH = re.compile(r"[%:.<>^=)][-+ #0z]*(\d+)")
"""A width in a format."""
WRITER_NAMES = (
    "string tojson pprint join center indent wordwrap replace urlize format % safe upper lower capitalize title trim "
    "striptags escape e forceescape urlencode xmlattr truncate wordcount"
)
WRITERS = frozenset(WRITER_NAMES.split())
"""Filters and operators that write out containers."""


class Bounded(dict[str, Any]):
    """Filters, each checked before its call."""

    def __setitem__(self, name: str, function: Callable[..., Any]) -> None:
        at = int(hasattr(function, "jinja_pass_arg"))  # the first argument may be the environment

        @wraps(function)
        def bounded(*args: Any, **named: Any) -> Any:
            subject = list(args[at]) if isinstance(args[at], Iterator) else args[at]
            others = (named[key] for key in sorted(named, reverse=True))  # of replace: old, new
            check("%" if name == "format" else name, subject, (*args[at + 1 :], *others))
            return function(*args[:at], subject, *args[at + 1 :], **named)

        super().__setitem__(name, bounded)


class Buffer(list[str]):
    """The parts of a macro or a block."""

    size = 0

    def append(self, part: str) -> None:
        """One more part."""
        self.extend((part,))

    def extend(self, parts: Iterable[str]) -> None:
        """More parts."""
        for part in parts:
            self.size += len(part)
            _require(self.size)
            super().append(part)


class Generator(CodeGenerator):
    """Compiles `~` into a checked call, and buffers with a limit."""

    def buffer(self, frame: Frame) -> None:
        """Collect what follows."""
        super().buffer(frame)
        self.writeline(f"{frame.buffer} = environment.buffer()")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        """`a ~ b`."""
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with bounds."""

    code_generator_class = Generator
    buffer = Buffer
    intercepted_binops = frozenset(("*", "**", "+", "%"))

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        filters, self.filters = self.filters, Bounded()
        for name, function in filters.items():
            self.filters[name] = function
        self.globals.pop("lipsum")
        self.finalize = shown

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """The text of a template, a macro or a block."""
        found = Buffer()
        found.extend(parts)
        return "".join(found)

    def joined(self, parts: Iterable[Any]) -> str:
        """The parts of `~` as one text."""
        return self.concat(str(shown(part)) for part in parts)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """An operator's result."""
        check(operator, left, right if isinstance(right, tuple) else (right,))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **named: Any) -> Any:
        """The result of a method or a function."""
        method = getattr(__obj, "__wrapped__", __obj)  # jinja wraps str.format
        name, subject = getattr(method, "__name__", ""), getattr(method, "__self__", None)
        if name == "join" and args:
            args = (list(args[0]),)
            check(name, args[0], (subject,))
        else:
            check(name, subject, (*args, *named.values()))
        return super().call(__context, __obj, *args, **named)


def bound_templates() -> None:
    """Let transformers render all chat templates within these bounds."""
    from transformers.utils import chat_template_utils

    vars(chat_template_utils)["ImmutableSandboxedEnvironment"] = BoundedEnvironment


def shown(value: Any) -> Any:
    """A value that the template writes out."""
    _require(_weight(value))
    return value


def check(name: str, subject: Any, args: Sequence[Any]) -> None:
    """Raises SecurityError where an operation's result would be too large."""
    if name in WRITERS:
        _require(_weight(subject))
    rule = RULES.get(name)
    _require(rule(subject, args) if rule is not None and (args or name in WRITERS) else 0)


def _require(size: int) -> None:
    if size > MAX_SIZE:
        raise SecurityError(f"it makes more than {MAX_SIZE} characters")


def _weight(value: Any, known: dict[int, int] | None = None) -> int:
    """Characters of a value written out; `known`: those of containers, by id, as one may stand in many places."""
    parts = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    if not parts:
        return max(_size(value), 1)
    known = {} if known is None else known
    if id(value) not in known:
        known[id(value)] = sum(_weight(part, known) for part in parts)
    return known[id(value)]


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes | list | tuple | dict) else 0


def _number(value: Any) -> int:
    return abs(value) if isinstance(value, int) else 0


def _padded(subject: Any, args: Sequence[Any]) -> int:
    """Each line and each tab may become as wide as a number says, or begin with a text."""
    lines = 1 + len(subject.splitlines()) + subject.count("\t") if isinstance(subject, str) else 1
    widest, longest = (max(map(measure, args), default=0) for measure in (_number, _size))
    return lines * widest + lines * longest * isinstance(subject, str)


def _formatted(subject: Any, args: Sequence[Any]) -> int:
    if isinstance(subject, int | float):
        return 0
    text = str(subject)
    wide = sum(int(digits[:9]) for digits in FORMAT_WIDTH.findall(text))
    return wide + max(map(_number, args), default=0) + _weight([subject, *args]) * (1 + text.count("{"))


def _filled(text: Any, args: Sequence[Any]) -> int:
    """Fields of `format`, whose widths may be arguments."""
    nested = any("{" in (spec or "") for _, _, spec, _ in Formatter().parse(text))
    return MAX_SIZE + 1 if nested else _formatted(text, args)


def _written(value: Any, args: Sequence[Any]) -> int:
    return _weight(value) * (1 + sum(_number(a) + _size(a) for a in args))


PADDING_NAMES = "center ljust rjust zfill expandtabs indent batch slice round to_bytes"
RULES: dict[str, Callable[[Any, Sequence[Any]], int]] = {
    "*": lambda a, b: _size(a) * _number(b[0]) + _size(b[0]) * _number(a) + _bits(a) + _bits(b[0]),
    "**": lambda a, b: _bits(a) * _number(b[0]),
    "+": lambda a, b: _size(a) + sum(map(_size, b)),
    "%": _formatted,
    "format": _filled,
    "format_map": _filled,
    "translate": lambda text, args: _size(text) * _weight(args[0]),
    "sum": lambda items, args: _weight(items),
    "replace": lambda text, args: _size(text) + _count(text, args[0]) * _size(args[1]),
    "join": lambda items, args: sum(map(_weight, items)) + len(items) * sum(map(_size, args)),
}
RULES |= dict.fromkeys(PADDING_NAMES.split(), _padded)
RULES |= dict.fromkeys(("string", "tojson", "pprint"), _written)
RULES |= dict.fromkeys(("urlize", "wordwrap"), lambda text, args: len(str(text)) * (1 + sum(map(_size, args))))


def _count(text: Any, part: Any) -> int:
    return text.count(part) if isinstance(text, bytes) else str(text).count(str(part))


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 0
