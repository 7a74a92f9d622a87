"""Measures families, each in a warm process of its own."""

import json
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.models.families import FAMILIES
from tests.models.measure import measure
from tests.warm import Process


def row(name: str, seconds: float = 300, keep: Path | None = None) -> dict[str, Any]:
    """The facts of one family."""
    place = Path(tempfile.mkdtemp(prefix=f"family-{name}-"))
    try:
        process = Process(measure, name, place)
        try:
            process.wait(seconds)
        except Exception as error:
            return {"family": name, "trains": f"no: {type(error).__name__}"}
        facts: dict[str, Any] = json.loads((place / "row.json").read_text()) if (place / "row.json").exists() else {}
        if process.poll():
            facts["died"] = process.said()[1][-400:]
        return {"family": name} | facts
    finally:
        if keep is None:
            shutil.rmtree(place, ignore_errors=True)


def rows(names: list[str], workers: int = 2) -> list[dict[str, Any]]:
    """The facts of families."""
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(row, names))


if __name__ == "__main__":
    began = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        for facts in pool.map(row, sys.argv[1:] or list(FAMILIES)):
            print(json.dumps(facts), flush=True)
    print(time.monotonic() - began, file=sys.stderr)
