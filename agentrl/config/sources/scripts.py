"""Shell scripts, read word by word: no shell runs.

Variables that the script sets, and sums of numbers, are worked out; what only a shell knows is marked.
"""

import ast
import operator
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from agentrl.config.sources.given import Given, Source
from agentrl.config.sources.yaml_files import YamlFiles
from agentrl.errors import UserError

ARGUMENT = re.compile(r"[+~]{0,2}[A-Za-z_][\w-]*([./@][\w./@-]+)+=.*", re.DOTALL)
"""A setting has a dot or a slash in its name; shell variables have none."""
ASSIGNMENT = re.compile(r"^\s*(?:export\s+|local\s+|readonly\s+)?([A-Za-z_]\w*)=(.*)$")
VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)(?::?[-=]([^{}$]*))?\}|\$([A-Za-z_]\w*)")
"""The innermost first: a default may hold other variables."""
UNSET = re.compile("\x02(\\w+)\x03")
"""What only a shell knows, marked."""
ARITHMETIC = re.compile(r"\$\(\((.+?)\)\)(?!\))")
LAUNCHED = re.compile(r"--(nnodes|nproc[-_]per[-_]node)=(\d+)")
"""How many processes torchrun starts."""
PWD = re.compile(r"\$\(pwd\)|`pwd`")
COMMAND = re.compile(r"\$\([^()]*\)|`[^`]*`")


class Script:
    """A shell script, read word by word: no shell runs."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.source = Source()
        self.variables: dict[str, str] = {}
        self.options: dict[str, tuple[int, str]] = {}
        """Line and value of --config-path and --config-name."""

    def read(self) -> Source:
        """Settings among its words, with variables of the script's own filled in."""
        for first, text in _commands(self.file.read_text(encoding="utf-8")):
            assigned = ASSIGNMENT.match(text)
            if assigned and "\n" not in text and not ARGUMENT.match(text.strip()):
                self.variables[assigned[1]] = self._filled(assigned[2].strip().strip("\"'"))
                continue
            for line, word in _words(self._filled(text), first):
                self._word(line, word)
        self._chosen_file()
        return self.source

    def _chosen_file(self) -> None:
        """Read the YAML that the script names, where it can be found: its settings come first."""
        line, name = self.options.get("--config-name", (0, ""))
        if not name:
            return
        folder = Path(self.options.get("--config-path", (0, "."))[1])
        for place in (folder, self.file.parent / folder):
            if (file := place / f"{name.removesuffix('.yaml')}.yaml").is_file():
                own, self.source.settings = self.source.settings, []
                YamlFiles(self.source, file.parent).read(file, "")
                self.source.settings += own
                return
        self.source.includes.append((line, f"{name}.yaml, which --config-name names"))

    def _word(self, line: int, word: str) -> None:
        if word.startswith(("verl.", "agentrl.")):
            self.source.program = word
        elif word.startswith(("--config-name=", "--config-path=")):
            option, _, value = word.partition("=")
            self.options[option] = (line, value)
        elif launched := LAUNCHED.fullmatch(word):
            key = "nnodes" if launched[1] == "nnodes" else "n_gpus_per_node"
            self.source.settings.append(Given(self.file, line, f"trainer.{key}", int(launched[2])))
        elif ARGUMENT.fullmatch(word) and not word.startswith("-"):
            self._setting(line, word)

    def _setting(self, line: int, text: str) -> None:
        from agentrl.config.overrides import parse_override

        try:
            override = parse_override(_hydra_safe(text))
        except UserError as error:
            self.source.mistakes.append((line, str(error)))
            return
        name = override.get_key_element().lstrip("+~")
        if "@" in name or "/" in name:
            self.source.includes.append((line, text))  # the choice of a file
        elif not override.is_delete():
            self.source.settings += _flat(Given(self.file, line, name, override.value()))

    def _filled(self, text: str) -> str:
        """The text with variables, sums and commands worked out as far as that goes; marks where it does not."""

        def value(match: re.Match[str]) -> str:
            default = match[2].strip("\"'") if match[2] is not None else _mark(match[1] or match[3])
            return self.variables.get(match[1] or match[3], default)

        text = PWD.sub(lambda _: str(Path.cwd()), text)
        text = COMMAND.sub(_mark("COMMAND"), ARITHMETIC.sub(lambda match: self._worked_out(match[1]), text))
        while VARIABLE.search(text):
            text = VARIABLE.sub(value, text)
        return text

    def _worked_out(self, expression: str) -> str:
        """`1024 * (n + 1)`, where it is made of numbers and the script's own variables."""
        named = re.sub(r"\$?([A-Za-z_]\w*)", lambda match: self.variables.get(match[1], match[0]), expression)
        if not re.fullmatch(r"[\d\s+*/%()-]+", named):
            return _mark("NUMBER")
        try:
            return str(_arithmetic(ast.parse(named.strip(), mode="eval").body))
        except (SyntaxError, ValueError, ZeroDivisionError):
            return _mark("NUMBER")


OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


def _arithmetic(node: ast.expr) -> int:
    """Raises ValueError for what a shell could not work out either."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](_arithmetic(node.left), _arithmetic(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_arithmetic(node.operand)
    raise ValueError(f"{ast.dump(node)} is no arithmetic")


def _mark(name: str) -> str:
    return f"\x02{name}\x03"


def _hydra_safe(text: str) -> str:
    """What only a shell knows as a word that Hydra can read."""
    return UNSET.sub(r"${oc.env:\1}", text)


def _flat(given: Given) -> Iterator[Given]:
    """`a={b: 1}` as `a.b=1`."""
    if not isinstance(given.value, Mapping) or not given.value:
        yield given
        return
    for name, value in given.value.items():
        yield from _flat(Given(given.file, given.line, f"{given.path}.{name}", value))


def _commands(text: str) -> Iterator[tuple[int, str]]:
    """(number of its first line, text) of each command; continued lines stay together, comments are gone."""
    held: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        line = re.sub(r"(^|\s)#.*$", r"\1", line).rstrip()
        held.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            yield number - len(held) + 1, "\n".join(held)
            held = []
    if held:
        yield number - len(held) + 1, "\n".join(held)


def _words(text: str, first: int) -> Iterator[tuple[int, str]]:
    """Words with the line that each is on; a line whose quotes do not close is cut at blanks."""
    for number, line in enumerate(text.split("\n"), start=first):
        try:
            words = shlex.split(line, posix=True)
        except ValueError:
            words = line.replace('"', " ").replace("'", " ").split()
        yield from ((number, word.strip("()")) for word in words)
