"""Write the table of docs/hardware.md: GPUs, memory and step time of known models, foretold as `agentrl plan` does.

    python benchmarks/hardware.py            # `make reference` runs it; --check only compares

shapes.json has the sizes of published configurations; no weight and no hub is needed.
"""

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from agentrl.config import compose
from agentrl.config.schema import Config
from agentrl.doctor.forecast import Layout
from agentrl.doctor.memory import TIGHT, Size, size_of
from agentrl.doctor.plan import with_settings
from agentrl.doctor.speeds import STORED

PAGE = Path(__file__).parents[1] / "docs" / "hardware.md"
SHAPES = Path(__file__).parent / "shapes.json"
TABLE = re.compile(r"(?<=<!-- table -->\n).*?(?=<!-- end -->)", re.DOTALL)


MEMORIES = (24, 48, 80, 141)
"""GiB of a GPU: RTX 4090, L40S, H100, H200."""
COUNTS = (1, 2, 4, 8, 16, 32, 64)
HEAD = f"| model | parameters | trained | {' | '.join(f'{have} GiB' for have in MEMORIES)} | step on H100s |"


def table(configs: dict[str, Config]) -> str:
    """Markdown with two rows a model, by its name: LoRA, and all weights."""
    rows = [row for name, config in configs.items() for row in _rows(name, config)]
    return "\n".join([HEAD, "| --- | ---: | --- " + "| ---: " * (len(MEMORIES) + 1) + "|", *rows]) + "\n"


def _rows(name: str, config: Config) -> Iterator[str]:
    for trained, rank in (("LoRA", config.model.lora_rank or 16), ("all", 0)):
        mine = with_settings(config, {"model.lora_rank": rank, "model.dtype": "bfloat16"})
        size = size_of(mine)
        found = {have: fewest(mine, size, have) for have in MEMORIES}
        cells = [f"{layout.ranks} x {max(layout.memory()):.0f}" if layout else "more" for layout in found.values()]
        layout = found[80]
        seconds = f"{layout.seconds()['step']:.0f} s on {layout.ranks}" if layout else ""
        yield f"| {name} | {size.parameters / 1e9:.1f}B | {trained} | {' | '.join(cells)} | {seconds} |"


def fewest(config: Config, size: Size, memory: float) -> Layout | None:
    """Trainer and servers on the least number of GPUs with so many GiB; None: more than COUNTS has."""
    layouts = (on(config, size, gpus, memory) for gpus in COUNTS)
    return next((layout for layout in layouts if max(layout.memory()) <= TIGHT * memory), None)


def on(config: Config, size: Size, gpus: int, memory: float = 80) -> Layout:
    """Trainer and servers on so many GPUs, a server on as many of a machine as heads allow."""
    sharding = {"actor.fsdp_config.reshard_after_forward": gpus > 1} | (
        {"actor.fsdp_config.expert_parallel_size": min(gpus, 8)} if size.experts and gpus >= 8 else {}
    )
    tensor = next(split for split in (8, 4, 2, 1) if gpus % split == 0 and size.sizes.heads % split == 0)
    places = {"trainer.nnodes": max(gpus // 8, 1), "trainer.n_gpus_per_node": min(gpus, 8)}
    settings = places | sharding | {"rollout.tensor_model_parallel_size": tensor}
    return Layout(with_settings(config, settings), size, replace(STORED["h100"], memory=memory))


def configs(folder: Path) -> dict[str, Config]:
    """The common settings of the recipes with each model, by its name."""
    found: dict[str, Config] = {}
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
