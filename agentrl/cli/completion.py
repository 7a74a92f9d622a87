"""`agentrl completion`: set up shell completion of commands, options, keys and values.

agentrl completion bash >> ~/.bashrc
agentrl completion zsh  >> ~/.zshrc
agentrl completion fish >  ~/.config/fish/completions/agentrl.fish

It works in the next shell. Keys are completed section by section; after `=`, values: words, presets, true and false,
files.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Iterable, Mapping

from agentrl.cli.commands import Parser, commands
from agentrl.config.keys import Key, schema_keys
from agentrl.core.compatibility import Command

SHELLS = ("bash", "zsh", "fish")
FILES = ("path", "file", "files", "dir")
"""Last words of keys that name files."""
VERL = "actor_rollout_ref."
"""verl's prefix of the sections MOVED."""
MOVED = ("actor.", "model.", "ref.", "rollout.")


def configure(parser: argparse.ArgumentParser) -> None:
    """The shell."""
    parser.add_argument("shell", choices=SHELLS, help="your shell")


def run(args: argparse.Namespace) -> None:
    """Print the lines for the shell's start-up file."""
    import argcomplete

    sys.stdout.write(argcomplete.shellcode(["agentrl"], shell=args.shell).strip() + "\n")


def answer() -> None:
    """Print completions and exit if a shell asks for them."""
    import argcomplete

    parser = _parser(os.environ.get("COMP_LINE", ""))
    argcomplete.autocomplete(parser, always_complete_options="long")


def _parser(line: str) -> argparse.ArgumentParser:
    """A parser of all commands; only modules of commands in `line` are imported."""
    parser = Parser(prog="agentrl")
    added = parser.add_subparsers()
    for command in commands().values():
        below = added.add_parser(command.name, help=command.help)
        if command.name in line.split():
            command.load().configure(below)
            _complete_keys(below, command)
    return parser


def _complete_keys(parser: argparse.ArgumentParser, command: Command) -> None:
    if not command.keys:
        return
    from agentrl.config.presets import shipped
    from agentrl.config.schema.commands import SCHEMAS

    schema = SCHEMAS[command.keys]

    def complete(prefix: str, **_: object) -> list[str]:
        return candidates(prefix, schema_keys(schema), shipped())

    for action in parser._actions:  # argparse has no public list of them
        if action.dest == "overrides":
            action.completer = complete  # type: ignore[attr-defined]
        elif action.dest == "config_name":
            action.completer = lambda **_: shipped()[""]  # type: ignore[attr-defined]


def candidates(word: str, keys: Mapping[str, Key], presets: Mapping[str, list[str]]) -> list[str]:
    """Completions of `word`: the next section, a whole key with `=`, or a key with a value."""
    name, equals, value = word.partition("=")
    if equals:
        return [f"{name}={choice}" for choice in _values(name, value, keys, presets)]
    names = [*(f"{key}=" for key in keys), *(f"{group}=" for group in presets if group)]
    if word.startswith(VERL):
        names = [VERL + name for name in names if name.startswith(MOVED)]
    return _next_sections(word, names)


def _next_sections(word: str, names: Iterable[str]) -> list[str]:
    """Names that begin with `word`, each up to its next dot; a single section is expanded further."""
    fitting = [name for name in names if name.startswith(word)]
    found = sorted({_up_to_dot(name, len(word)) for name in fitting})
    while len(found) == 1 and found[0].endswith("."):
        found = sorted({_up_to_dot(name, len(found[0])) for name in fitting})
    return found


def _up_to_dot(name: str, start: int) -> str:
    end = name.find(".", start)
    return name if end < 0 else name[: end + 1]


def _values(name: str, value: str, keys: Mapping[str, Key], presets: Mapping[str, list[str]]) -> list[str]:
    from agentrl.config.choices import words_of

    name = name.removeprefix(VERL)
    if name in presets:
        return presets[name]
    key = keys.get(name)
    if key is None:
        return []
    if name.rpartition(".")[2].rpartition("_")[2] in FILES:
        return _files(value)
    words = list(words_of(name))
    words += ["true", "false"] if "bool" in key.type_name else []
    return [*words, *(["null"] if "null" in key.type_name else [])]


def _files(prefix: str) -> list[str]:
    from argcomplete.completers import FilesCompleter

    return [shlex.quote(file) if " " in file else file for file in FilesCompleter()(prefix)]
