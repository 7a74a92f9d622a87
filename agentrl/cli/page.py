"""Help for commands that take a configuration: their page, and the list of keys."""

import argparse
from functools import partial
from types import ModuleType

from rich.console import Console, Group
from rich.padding import Padding
from rich.text import Text

from agentrl.cli.commands import Command
from agentrl.config.choices import words_of
from agentrl.config.keys import Key, nearest, schema_keys, schema_sections
from agentrl.config.names import written
from agentrl.config.schema.commands import SCHEMAS
from agentrl.core.errors import UserError

HOW = """Settings come from the defaults, then a YAML file, then the command line.

  [cyan]KEY=VALUE[/]        sets one key: rollout.n=8, data.val_files=\\[a.parquet,b.parquet], data.val_files=null
  [cyan]GROUP=NAME[/]       selects a preset: algorithm=rloo
  [cyan]--config-name[/]    selects an experiment: a YAML file that lists presets under `defaults` and changes some keys

verl's names work: actor_rollout_ref.rollout.n means rollout.n."""


def print_page(command: Command, module: ModuleType) -> None:
    """Print the description of a command with its examples, presets, sections of keys, and the command's options."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"[bold]agentrl {command.name}[/] [KEY=VALUE ...]: {command.help}\n")
    console.print(HOW)
    console.print(Text(f"\n{module.__doc__}".rstrip()))
    schema = SCHEMAS[command.keys]
    _print_presets(console, command.name, schema)
    _print_sections(console, schema)
    _print_options(console, command.name, module)


def _print_presets(console: Console, command: str, schema: type) -> None:
    from agentrl.config.presets import shipped

    console.print("\n[bold]Presets[/]")
    sections = {*schema_sections(schema), ""}
    for group, names in shipped().items():
        if group not in sections:
            continue
        label = f"{group}=" if group else "--config-name"
        fitting = [name for name in names if group or _kind(name) == _kind(command)]
        console.print(f"  [cyan]{label:<16}[/] {', '.join(fitting)}")


def _kind(name: str) -> str:
    """The command that an experiment is for: `demo_sft` is for sft."""
    return "sft" if name.endswith("sft") else "eval" if name in ("eval", "generate") else "train"


def _print_sections(console: Console, schema: type) -> None:
    keys = schema_keys(schema)
    console.print(
        f"\n[bold]Keys[/]  [dim]{len(keys)} keys; --help-keys lists all, --help-keys WORD those about WORD[/]"
    )
    for path, section in schema_sections(schema).items():
        count = sum(key.rpartition(".")[0] == path for key in keys)
        if path:
            doc = (section.__doc__ or "").partition(":")[0].split(". ")[0].replace("\n", " ").rstrip(".")
            console.print(f"  [cyan]{path:<30}[/] {count:>3}  {' '.join(doc.split())}")


def _print_options(console: Console, command: str, module: ModuleType) -> None:
    wide = partial(argparse.HelpFormatter, max_help_position=48, width=120)  # an option and its help on one line
    parser = argparse.ArgumentParser(prog=f"agentrl {command}", add_help=False, formatter_class=wide)
    module.configure(parser)
    parser.add_argument("--traceback", action="store_true", help="show the full traceback of an error")
    options = parser.format_help().partition("options:")[2]
    console.print(f"\n[bold]Options[/]{options.rstrip()}", markup=True)


def print_keys(schema: type, word: str = "") -> None:
    """Print keys whose name or meaning contains `word`, with type and default. Raises UserError if there is none."""
    console = Console(highlight=False)
    section = None
    for key in matching(schema, word):
        parent = key.path.rpartition(".")[0]
        if parent != section:
            section = parent
            doc = " ".join((schema_sections(schema)[section].__doc__ or "").split())
            console.print(f"\n[bold]{section}[/]  [dim]{doc}[/]\n")
        console.print(_entry(key))


def matching(schema: type, word: str) -> list[Key]:
    """Keys whose name or meaning contains `word`. Raises UserError if there is none."""
    keys = schema_keys(schema)
    found = [key for key in keys.values() if word in key.path or word.lower() in key.doc.lower()]
    if not found:
        guess = nearest(word, keys)
        fix = f"did you mean {guess}?" if guess else "`agentrl train --help-keys` lists all"
        raise UserError(f"{word}: no key has this in its name or meaning; {fix}")
    return found


def _entry(key: Key) -> Group:
    words = words_of(key.path)
    kind = " | ".join(words) if words and len(words) <= 4 else key.type_name
    head = Text.assemble("  ", (key.path, "cyan"), f" = {written(key.default)}  ", (kind, "dim"))
    return Group(head, Padding(Text(key.doc), (0, 0, 0, 6)))
