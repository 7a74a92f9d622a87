"""Write the table of docs/hardware.md: GPUs, memory and step time of known models, foretold by the doctor.

    python benchmarks/hardware.py            # `make reference` runs it; --check only compares

shapes.json has the sizes of published configurations; no weight and no hub is needed.
"""

import argparse
import json
import re
import sys
import tempfile
from pathlib import Path

from agentrl.config import compose
from agentrl.config.schema import Config
from agentrl.doctor.hardware import table

PAGE = Path(__file__).parents[1] / "docs" / "hardware.md"
SHAPES = Path(__file__).parent / "shapes.json"
TABLE = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- end -->)", re.DOTALL)


def configs(folder: Path) -> dict[str, Config]:
    """The common settings of the recipes with each model, by its name."""
    found = {}
    for name, shape in json.loads(SHAPES.read_text()).items():
        place = folder / name
        place.mkdir()
        (place / "config.json").write_text(json.dumps(shape))
        found[name] = compose([f"model.path={place}"], config_name="recipes/base", checks=())
    return found


def page() -> str:
    """The page with the table of today."""
    with tempfile.TemporaryDirectory() as folder:
        made = table(configs(Path(folder)))
    return TABLE.sub(lambda _: f"\n{made}\n", PAGE.read_text())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit with 1 where the page is stale")
    made, args = page(), parser.parse_args()
    if args.check:
        sys.exit(made != PAGE.read_text())
    PAGE.write_text(made)
