"""`agentrl config`: explain keys, check files written for verl, write the reference of all keys.

agentrl config explain rollout.n actor_rollout_ref.rollout.tensor_parallel_size
agentrl config check run_grpo.sh
agentrl config reference --out docs/config-reference.md
"""

import argparse
import re
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.core.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from agentrl.cli.check import Checked
    from agentrl.config.explain import Explanation
    from agentrl.config.sources import Source
    from agentrl.config.verdict import Verdict


MARKS = {
    "same": ("=", "green"),
    "moved": ("+", "green"),
    "differs": ("!", "yellow"),
    "anyway": ("·", "dim"),
    "ignored": ("-", "dim"),
    "refused": ("✗", "bold red"),
    "unknown": ("?", "bold red"),
    "wrong": ("✗", "bold red"),
}
COUNTED = {
    "same": ("is unchanged", "are unchanged"),
    "moved": ("has another name here", "have another name here"),
    "differs": ("works slightly differently", "work slightly differently"),
    "anyway": ("is agentrl's behaviour anyway", "are agentrl's behaviour anyway"),
    "ignored": ("has no effect", "have no effect"),
    "refused": ("would stop the run", "would stop the run"),
    "unknown": ("is unknown", "are unknown"),
    "wrong": ("has a wrong value", "have a wrong value"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the sub-commands."""
    commands = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    explain = commands.add_parser("explain", help="show type, default, meaning and old names of keys")
    explain.add_argument("keys", nargs="+", metavar="KEY", help="a key, a section, or a verl name")
    check = commands.add_parser("check", help="report line by line how agentrl reads a verl YAML file or shell script")
    check.add_argument("file", type=Path, metavar="FILE", help="YAML file (with its defaults list) or shell script")
    check.add_argument(
        "arguments", nargs="*", metavar="ARGUMENT", help="arguments of the script, such as more settings"
    )
    check.add_argument("--command", choices=["train", "sft", "eval"], help="the command it is for (default: guessed)")
    check.add_argument(
        "--only",
        choices=["all", "trouble"],
        default="all",
        help="trouble: show only lines with a problem or a difference",
    )
    reference = commands.add_parser("reference", help="print all keys, or all algorithms, as Markdown")
    reference.add_argument("what", nargs="?", choices=["keys", "algorithms"], default="keys", help="default: keys")
    reference.add_argument("--out", type=Path, metavar="FILE", help="write to FILE instead of stdout")


def run(args: argparse.Namespace) -> int:
    """Run the sub-command; `check` returns 1 if a setting would stop a run."""
    actions = {"explain": _explain, "check": _check, "reference": _reference}
    return actions[args.action](args)


def _reference(args: argparse.Namespace) -> int:
    from agentrl.config.algorithm_reference import algorithm_reference
    from agentrl.config.reference import reference

    text = reference() if args.what == "keys" else algorithm_reference()
    if args.out is None:
        sys.stdout.write(text)
    else:
        args.out.write_text(text, encoding="utf-8")
    return 0


def _explain(args: argparse.Namespace) -> int:
    from rich.console import Console

    from agentrl.config.explain import explain
    from agentrl.config.schema.commands import SCHEMAS

    console, unknown = Console(highlight=False, soft_wrap=True), []
    for name in args.keys:
        try:
            for explanation in explain(name, SCHEMAS):
                _print_explanation(console, name, explanation)
        except UserError as error:
            unknown.append(str(error))
    if unknown:
        raise UserError("; ".join(unknown))
    return 0


def _print_explanation(console: "Console", name: str, found: "Explanation") -> None:
    from rich.markup import escape

    from agentrl.config.names import written

    title = found.name if name == found.name else f"{name} [not bold]is[/] {found.name}"
    commands = ", ".join(f"agentrl {command}" for command in found.commands)
    console.print(f"\n[bold]{title}[/]  [dim]{commands}[/]")
    lines: list[tuple[str, str]] = []
    if found.key is not None:
        lines += [
            ("type", " | ".join(found.words) or found.key.type_name),
            *zip(("or", "written"), found.own or (), strict=False),
            ("default", written(found.key.default)),
            ("meaning", found.key.doc),
        ]
    if found.section is not None:
        lines += [("section", " ".join((found.section.__doc__ or "").split())), ("keys", ", ".join(found.below))]
    lines += [("in verl", text) for text in found.verl_defaults]
    lines += [("unlike verl", text) for text in found.differs]
    lines += [(action, f"{entry}{': ' if text else ''}{text}") for entry, action, text in found.fates]
    lines += [("old names", ", ".join(found.old_names))] if found.old_names else []
    for label, text in lines:
        console.print(f"  [cyan]{label:<12}[/]{escape(text)}")


def _check(args: argparse.Namespace) -> int:
    from rich.console import Console

    from agentrl.cli.check import check_sources
    from agentrl.config.sources import read_sources
    from agentrl.core.resources import find

    file = find(args.file, what="agentrl config check")
    console = Console(highlight=False, soft_wrap=True)
    found = list(check_sources(read_sources(file, args.arguments), args.command))
    if not found:
        console.print(f"[bold]{file.name}[/] starts no program with settings")
    shown: set[tuple[str, str, str]] = set()
    for checked in found:
        _print_checked(console, checked, file, shown, quiet=args.only == "trouble")
    return int(not found or any(checked.stops for checked in found))


def _print_checked(
    console: "Console", checked: "Checked", file: Path, shown: set[tuple[str, str, str]], *, quiet: bool
) -> None:
    """Print a program's settings, without those that an earlier program of the script has too."""
    from rich.text import Text

    if not checked.served:
        console.print(Text.assemble((f"{file.name}:{checked.source.line} ", "dim"), (checked.reason, "bold red")))
        return
    keys = [(checked.command, one.given.path, str(one.given.value)) for one in checked.verdicts]
    fresh = [one for one, key in zip(checked.verdicts, keys, strict=True) if key not in shown]
    shown.update(keys)
    console.print(f"[bold]{_title(checked, file)}[/] as settings of [bold]agentrl {checked.command}[/]\n")
    for line in _lines(fresh, checked.source, file, quiet=quiet):
        console.print(line)
    for note in checked.unset:
        console.print(Text.assemble(("unset  ", "yellow"), note))
    for text, stops in checked.complaints:
        console.print(Text.assemble(("together  ", "bold red" if stops else "yellow"), text))
    _summary(console, checked.verdicts, checked.source, len(checked.verdicts) - len(fresh))


def _title(checked: "Checked", file: Path) -> str:
    source = checked.source
    by_ray = ", by ray job submit" if source.launcher == "ray" else ""
    perhaps = "" if source.certain else ", found in the text (bash did not start it: values of variables are unknown)"
    return f"{file.name}:{source.line} {source.program}{by_ray}{perhaps}" if source.program else file.name


def _lines(verdicts: "list[Verdict]", source: "Source", file: Path, *, quiet: bool) -> "list[Text]":
    """One line per setting: line number, setting, result."""
    from rich.text import Text

    rows = [
        (str(line), "·", "dim", f"lists {name}", f"the file is missing; {_standing_in(name)} defaults are used instead")
        for line, name in source.includes
    ]
    rows += [(str(line), "✗", "bold red", text, "") for line, text in source.mistakes]
    lost = "is not passed: the command ends above it, at a comment or a line without \\"
    rows += [(str(line), "!", "yellow", text, lost) for line, text in source.lost]
    for verdict in verdicts:
        if not quiet or verdict.kind not in ("same", "moved", "anyway"):
            given = verdict.given
            place = str(given.line) if given.file.name == file.name else f"{given.file.name}:{given.line}"
            rows.append((place, *MARKS[verdict.kind], _setting(verdict), _outcome(verdict)))
    width = max((len(place) for place, *_ in rows), default=0)
    return [
        Text.assemble((place.rjust(width), "dim"), " ", (mark, style), " ", setting, (f"  {outcome}".rstrip(), style))
        for place, mark, style, setting, outcome in rows
    ]


def _standing_in(name: str) -> str:
    from agentrl.config.verl_defaults import table

    return "verl's" if name in table()["files"] else "agentrl's own"


def _setting(verdict: "Verdict") -> str:
    from agentrl.config.names import written

    text = re.sub(r"\$\{oc\.env:(\w+)\}", r"$\1", f"{verdict.given.path}={written(verdict.given.value)}")
    return text if len(text) <= 100 else f"{text[:97]}..."


def _outcome(verdict: "Verdict") -> str:
    new = f"→ {verdict.home}" if verdict.home and verdict.home != verdict.given.path else ""
    prefixes = {"unknown": "unknown: ", "ignored": "no effect: ", "refused": "refused: ", "wrong": "wrong: "}
    reason = prefixes.get(verdict.kind, "") + verdict.text
    return "; ".join(part for part in (new, reason) if part)


def _summary(console: "Console", verdicts: "list[Verdict]", source: "Source", again: int) -> None:
    counts = Counter(verdict.kind for verdict in verdicts)
    found = {kind: counts[kind] for kind in COUNTED if counts[kind]}  # type: ignore[index]
    parts = [f"{number} {COUNTED[kind][number > 1]}" for kind, number in found.items()]
    parts += [f"{len(source.mistakes)} cannot be read"] if source.mistakes else []
    parts += [f"{again} as above"] if again else []
    console.print(f"\n{len(verdicts)} settings: {', '.join(parts)}")
