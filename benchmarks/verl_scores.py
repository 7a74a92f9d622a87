"""Compares agentrl's scores of verl's data sets with verl's own code, case by case: `make setup` installs both.

.venv/bin/python benchmarks/verl_scores.py --cases 1000
"""

import argparse
import contextlib
import io
import logging
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.from_verl.scorers.cases import cases, scorers
from tests.from_verl.scorers.reference import outcome


def main() -> None:
    """One line per scorer, then the cases that differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=300, help="random cases beside the table (300)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore", SyntaxWarning)
    print(f"{'scorer':<32}{'cases':>8}{'equal':>8}{'different':>11}")
    differing = []
    for name in scorers():
        number, found = compare(name, options.cases, options.seed)
        print(f"{name:<32}{number:>8}{number - len(found):>8}{len(found):>11}", flush=True)
        differing += found
    print("\n".join(["", *differing]) if differing else "\nnone differs")
    sys.exit(bool(differing))


def compare(name: str, number: int, seed: int) -> tuple[int, list[str]]:
    """The number of cases, and the cases that differ."""
    ours, theirs = scorers()[name]
    asked, differing = 0, []
    for args, kwargs in cases(name, seed=seed, number=number):
        with contextlib.redirect_stdout(io.StringIO()):
            wanted = outcome(theirs, *args, **kwargs)
        said = outcome(ours, *args, **kwargs)
        asked += 1
        if said != wanted:
            differing.append(f"{name}: {args} {kwargs or ''}: {said} here, {wanted} in verl")
    return asked, differing


if __name__ == "__main__":
    main()
