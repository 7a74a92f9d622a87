"""`agentrl config check`: report line by line how agentrl reads a verl YAML file or shell script."""

import argparse
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from agentrl_verl.reading.file_check import Checked
    from agentrl_verl.reading.program_settings import Source
    from agentrl_verl.reading.verdicts import Verdict

SHOWN = {
    "same": ("=", "green", "", ("is unchanged", "are unchanged")),
    "moved": ("+", "green", "", ("has another name here", "have another name here")),
    "differs": ("!", "yellow", "", ("works slightly differently", "work slightly differently")),
    "own": ("~", "cyan", "", ("is for your own code", "are for your own code")),
    "anyway": ("·", "dim", "", ("is agentrl's behaviour anyway", "are agentrl's behaviour anyway")),
    "ignored": ("-", "dim", "no effect: ", ("has no effect", "have no effect")),
    "refused": ("✗", "bold red", "refused: ", ("would stop the run", "would stop the run")),
    "unknown": ("?", "bold red", "unknown: ", ("is unknown", "are unknown")),
    "wrong": ("✗", "bold red", "wrong: ", ("has a wrong value", "have a wrong value")),
}
"""By kind of verdict: its sign and style, what stands before its text, and words for one and for several."""


def configure(parser: argparse.ArgumentParser) -> None:
    """The file, and what is shown of it."""
    parser.add_argument("file", type=Path, metavar="FILE", help="YAML file (with its defaults list) or shell script")
    parser.add_argument(
        "arguments", nargs="*", metavar="ARGUMENT", help="arguments of the script, such as more settings"
    )
    parser.add_argument("--command", choices=["train", "sft", "eval"], help="the command it is for (default: guessed)")
    parser.add_argument(
        "--only",
        choices=["all", "trouble"],
        default="all",
        help="trouble: show only lines with a problem or a difference",
    )


def run(args: argparse.Namespace) -> int:
    """Print the report; 1 if a setting would stop a run, or nothing can be checked. Raises UserError."""
    from rich.console import Console

    from agentrl.core.resources import find
    from agentrl_verl.reading.file_check import check_sources
    from agentrl_verl.reading.scripts import read_sources

    file = find(args.file, what="agentrl config check")
    console = Console(highlight=False, soft_wrap=True)
    found = list(check_sources(read_sources(file, args.arguments), args.command, files=True))
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
            rows.append((place, *SHOWN[verdict.kind][:2], _setting(verdict), _outcome(verdict)))
    width = max((len(place) for place, *_ in rows), default=0)
    return [
        Text.assemble((place.rjust(width), "dim"), " ", (mark, style), " ", setting, (f"  {outcome}".rstrip(), style))
        for place, mark, style, setting, outcome in rows
    ]


def _standing_in(name: str) -> str:
    from agentrl_verl.reading.defaults import table

    return "verl's" if name.partition(".yaml")[0] in table()["files"] else "agentrl's own"


def _setting(verdict: "Verdict") -> str:
    from agentrl.config.names import written

    text = re.sub(r"\$\{oc\.env:(\w+)\}", r"$\1", f"{verdict.given.path}={written(verdict.given.value)}")
    return text if len(text) <= 100 else f"{text[:97]}..."


def _outcome(verdict: "Verdict") -> str:
    new = f"→ {verdict.home}" if verdict.home and verdict.home != verdict.given.path else ""
    reason = SHOWN[verdict.kind][2] + verdict.text
    return "; ".join(part for part in (new, reason) if part)


def _summary(console: "Console", verdicts: "list[Verdict]", source: "Source", again: int) -> None:
    counts = Counter(verdict.kind for verdict in verdicts)
    found = {kind: number for kind in SHOWN if (number := counts[kind])}  # type: ignore[index]
    parts = [f"{number} {SHOWN[kind][3][number > 1]}" for kind, number in found.items()]
    parts += [f"{len(source.mistakes)} cannot be read"] if source.mistakes else []
    parts += [f"{again} as above"] if again else []
    console.print(f"\n{len(verdicts)} settings: {', '.join(parts)}")
