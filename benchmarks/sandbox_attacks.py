"""Attacks on the sandbox: every class of attack, in every tier that starts on this host, as root and as a user.

    python benchmarks/sandbox_attacks.py [--quick]

`docker` is the tier that is chosen where the kernel refuses what Docker's default settings refuse.
"""

import argparse
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.sandbox.attacks import launch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="leave out the attacks that take seconds")
    options = [] if parser.parse_args().quick else ["--slow"]
    console = Console(width=120)
    table = Table(Column("attack", no_wrap=True), title="contained / tried")
    cells: dict[str, list[str]] = defaultdict(list)
    notes: list[str] = []
    with launch.stage() as folder:
        for situation in launch.SITUATIONS:
            for user in launch.USERS:
                start, *attacks = launch.attack(folder, situation, user, *options)
                table.add_column(f"{situation}\n{user}", justify="right", no_wrap=True)
                column(cells, len(table.columns) - 2, attacks)
                notes += remarks(f"{situation} as {user}", start, attacks)
    for family in sorted(
        cells, key=lambda name: (not name[0].isdigit(), int(name.split()[0]) if name[0].isdigit() else 0)
    ):
        table.add_row(family, *cells[family])
    console.print(table)
    for note in notes:
        console.print(note, markup=False, highlight=False)


def column(cells: dict[str, list[str]], index: int, attacks: list[dict[str, Any]]) -> None:
    """Fill in one situation."""
    tried: dict[str, list[bool]] = defaultdict(list)
    for attack in attacks:
        if attack["contained"] is not None:
            tried[attack["family"]].append(attack["contained"])
    for family, results in tried.items():
        cells[family] += ["-"] * (index - len(cells[family])) + [f"{sum(results)}/{len(results)}"]


def remarks(name: str, start: dict[str, Any], attacks: list[dict[str, Any]]) -> list[str]:
    """Notes below the table: tiers that did not start, attacks not tried, attacks not contained."""
    if not start["started"]:
        return [f"{name}: does not start: {start['why']}; fix: {start['fix']}"]
    words = {None: "not tried", False: "NOT CONTAINED"}
    open_ones = [attack for attack in attacks if attack["contained"] in words]
    lines = [f"{name}: {words[a['contained']]}: {a['family']}: {a['name']}: {a['why']}" for a in open_ones]
    return [f"{name}: runs in the tier {start['tier']}, user id {start['uid']}", *lines]


if __name__ == "__main__":
    main()
