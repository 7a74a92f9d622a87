"""Mistakes of newcomers: exit code, seconds and the printed line, each in its own process.

    python benchmarks/mistakes.py                 # all of them, as a table
    python benchmarks/mistakes.py --only "CSV"    # kinds with this word

`tests/cli/mistakes.py` lists them, and `tests/cli/test_mistakes.py` checks that each line names the mistake and the
fix.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.cli.mistakes import MISTAKES, Mistake, prepare  # noqa: E402

WIDTH = 110
"""Characters of a line that are shown."""


def line(mistake: Mistake) -> str:
    """A row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = prepare(mistake, Path(folder))
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "agentrl", *arguments],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
        )
        seconds = time.perf_counter() - start
        said = [text for text in (done.stdout + done.stderr).splitlines() if mistake.culprit.split(" ")[0] in text]
        text = (said or (done.stderr or done.stdout).splitlines() or [""])[-1].replace(f"{folder}/", "")
    return f"{mistake.kind:<44} {done.returncode:>3} {seconds:>6.1f}  {text[:WIDTH]}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="WORD", help="kinds that have this word")
    only = parser.parse_args().only
    sys.stdout.write(f"{'mistake':<44} {'code':>3} {'s':>5}  line\n")
    for mistake in MISTAKES:
        if only in mistake.kind:
            sys.stdout.write(line(mistake) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
