"""What a shell script consists of."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Word:
    """A word as it is written, quotes included."""

    raw: str
    line: int


@dataclass(frozen=True)
class Assignment:
    """`name=value`, `name[index]+=value` or `name=(values)`."""

    name: str
    index: str | None
    append: bool
    value: Word | tuple[Word, ...]


@dataclass
class Simple:
    """One command with its words."""

    line: int
    assignments: list[Assignment] = field(default_factory=list)
    words: list["Word | Assignment"] = field(default_factory=list)
    """Arrays after `declare`, `local` and the like are assignments among the words."""
    stdin: Word | None = None
    """The text of a here-document or a here-string."""
    silent: bool = False
    """Whether its output goes to a file."""


@dataclass
class Group:
    """`{ ...; }`, or `( ... )`, which changes nothing outside."""

    body: "list[Node]"
    subshell: bool


@dataclass
class If:
    """`if ... elif ... else`: (condition, body) in order."""

    branches: "list[tuple[list[Node], list[Node]]]"
    otherwise: "list[Node]"


@dataclass
class For:
    """`for name in words`; without `in` over the script's arguments."""

    name: str
    words: list[Word] | None
    body: "list[Node]"
    line: int


@dataclass
class CountedFor:
    """`for ((first; condition; step))`."""

    parts: tuple[str, str, str]
    body: "list[Node]"


@dataclass
class Loop:
    """`while`, or `until`."""

    condition: "list[Node]"
    body: "list[Node]"
    until: bool


@dataclass
class Case:
    """`case word in pattern) ... ;; esac`."""

    word: Word
    branches: "list[tuple[list[Word], list[Node]]]"


@dataclass
class Function:
    """A definition."""

    name: str
    body: "Node"


@dataclass
class Chain:
    """`a && b || c`: the first, then (operator, command)."""

    first: "Node"
    rest: "list[tuple[str, Node]]"


@dataclass
class Pipeline:
    """`! a | b`."""

    commands: "list[Node]"
    negated: bool


@dataclass
class Sum:
    """`(( expression ))`."""

    text: str


@dataclass
class Test:
    """`[[ words ]]`."""

    words: list[Word]


Node = Simple | Group | If | For | CountedFor | Loop | Case | Function | Chain | Pipeline | Sum | Test
