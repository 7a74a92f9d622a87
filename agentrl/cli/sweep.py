"""`agentrl train -m KEY=A,B ...`: run each combination, one after another.

Hydra's `choice(...)` and `range(...)` work too. All combinations are checked before the first run starts. Each run is a
process with its own folder, named by its settings: the same command again resumes unfinished runs.
"""

import argparse
import itertools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from agentrl.cli.common import add_config_arguments, chosen_file
from agentrl.core.errors import InfraError, UserError
from agentrl.core.paths import shown

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

    from agentrl.config.validate import Check

LONGEST = 80
"""Longest name of a folder, in characters."""
PLAIN = re.compile(r"[^\w.+-]+")
METRICS = ("val/success", "val/reward_mean", "rollout/reward_mean", "val/loss", "train/loss")
"""The table shows the first of them that a run has."""


@dataclass(frozen=True)
class Job:
    """One run of a sweep."""

    name: str
    """The settings as a folder name."""
    overrides: list[str]


def configure(parser: argparse.ArgumentParser) -> None:
    """Overrides and the options around them, with `-m` as in Hydra."""
    add_config_arguments(parser)
    parser.add_argument(
        "--multirun", "-m", action="store_true", help="run each combination of KEY=A,B values, one after another"
    )


def jobs(overrides: Sequence[str]) -> list[Job]:
    """All combinations of the values, in the order of the overrides. Raises UserError."""
    from agentrl.config.overrides import parse_override

    parsed = [parse_override(text) for text in overrides]
    swept = [override.get_key_element().lstrip("+~") for override in parsed if override.is_sweep_override()]
    if not swept:
        raise UserError("-m: no setting has several values; write KEY=A,B")
    ends = Counter(key.rpartition(".")[2] for key in swept)  # a folder has the last part of a key, or all of it
    short = {key: last if ends[last := key.rpartition(".")[2]] == 1 else key for key in swept}
    values = [_values(text, override) for text, override in zip(overrides, parsed, strict=True)]
    found = [_job(combination, short) for combination in itertools.product(*values)]
    same = Counter(job.name for job in found)
    return [Job(f"{job.name}_{i}", job.overrides) if same[job.name] > 1 else job for i, job in enumerate(found)]


def sweep(args: argparse.Namespace, command: str, folder_key: str, schema: type, checks: "Iterable[Check]") -> int:
    """Run all combinations; returns the exit code. A run writes to `trainer.<folder_key>`.

    Raises UserError before anything runs, and InfraError if runs failed.
    """
    from agentrl.config import resolve

    file, where = chosen_file(args) or command, {"config_dir": args.config_dir, "program": args.program}
    planned = [
        (job, resolve(job.overrides, config_name=file, schema=schema, checks=checks, **where).config.trainer)
        for job in jobs(args.overrides)
    ]
    codes: dict[str, int] = {}
    for i, (job, trainer) in enumerate(planned):
        place = f"{getattr(trainer, folder_key)}/{job.name}"
        sys.stderr.write(f"run {i + 1} of {len(planned)}: {shown(place)}\n")
        name = f"{trainer.experiment_name}-{job.name}"
        own = [*job.overrides, f"trainer.{folder_key}='{place}'", f"trainer.experiment_name='{name}'"]
        codes[place] = _run([command, *_options(args), *own])
        if codes[place] in (130, 143):
            return codes[place]
    _report(codes)
    if failed := sum(code != 0 for code in codes.values()):
        raise InfraError(f"{failed} of {len(codes)} runs failed; run the same command again to retry them")
    return 0


def _options(args: argparse.Namespace) -> list[str]:
    named = {"--config-name": args.config_name, "--config-dir": args.config_dir, "--program": args.program}
    return [part for option, value in named.items() if value is not None for part in (option, value)]


def _run(arguments: list[str]) -> int:
    """Run the command in a child process. Ctrl-C reaches both: the run ends as it would alone."""
    child = subprocess.Popen([sys.executable, "-m", "agentrl", *arguments])
    interrupted = False
    while True:
        try:
            code = child.wait()
        except KeyboardInterrupt:
            interrupted = True
        else:
            return 130 if interrupted else code


def _report(codes: dict[str, int]) -> None:
    """Print the result of each run on stdout."""
    table = Table("run", "result", "step", box=None, pad_edge=False)
    for place, code in codes.items():
        step, result = _last(Path(place)) if code == 0 else ("", f"failed, exit code {code}")
        table.add_row(shown(place), result, step)
    console = Console(highlight=False)
    console.print(table)
    common = Path(next(iter(codes))).parent
    console.print(f"compare them with `agentrl view {shown(common)}`")


def _last(folder: Path) -> tuple[str, str]:
    """Last step and value of the first of METRICS that the run has."""
    from agentrl.view.curves import Curves

    curves = Curves(folder / "metrics.jsonl")
    curves.refresh()
    for name in METRICS:
        steps, values = curves.thinned(name)
        if steps:
            return str(steps[-1]), f"{name} {values[-1]:.4g}"
    return "", "no metrics"


def _values(text: str, override: "Override") -> list[tuple[str, str | None]]:
    """(override, swept value or None) for each value. Raises UserError."""
    if not override.is_sweep_override():
        return [(text, None)]
    if not override.is_discrete_sweep() or text.partition("=")[2].startswith("glob("):
        raise UserError(f"{text}: -m takes lists (KEY=A,B), choice(...) and range(...)")
    key = override.get_key_element()
    return [(f"{key}={value}", value) for value in override.sweep_string_iterator()]


def _job(combination: Sequence[tuple[str, str | None]], short: dict[str, str]) -> Job:
    parts = [
        f"{short[text.partition('=')[0].lstrip('+~')]}-{value}" for text, value in combination if value is not None
    ]
    return Job(PLAIN.sub("-", "_".join(parts))[:LONGEST], [text for text, _ in combination])
