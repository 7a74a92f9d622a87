"""Measures families, each in a warm process of its own, and writes docs/models.md.

python -m tests.models.table --out docs/models.md      all families, which takes minutes
python -m tests.models.table qwen3_moe gemma4          the facts of two, as JSON lines
"""

import argparse
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.models.examples import EXAMPLES
from tests.models.families import FAMILIES
from tests.models.measure import measure
from tests.warm import Process

Row = dict[str, Any]
COLUMNS = {
    "family": "family",
    "example": "for example",
    "trains": "trains",
    "passes": "passes",
    "gap": "gap",
    "hf": "hf engine",
    "lora": "LoRA",
    "ulysses": "Ulysses",
    "replay": "replay",
    "images": "images",
    "export": "export",
}
GROUPS = {
    "dense": "Dense",
    "experts": "Experts",
    "hybrid": "Hybrids: attention with recurrent layers or convolutions",
    "vision": "Models that read images",
}
ONLY = {"images": ("vision",), "replay": ("experts", "hybrid", "vision")}
"""Groups that have a column."""
WIDTH = 90
"""Most characters of a reason."""
HEAD = """# Models

Each row is a family of [transformers](https://github.com/huggingface/transformers): a tiny random model of it, made
from its configuration class, went through `agentrl train` for two steps on a CPU (hf engine), once with all
parameters and once with LoRA, and through `agentrl merge`. `make models` measures the page again. Any other family
that transformers loads goes the same way: nothing here is a list of names, and what a model cannot do is found when
it is loaded.

- **trains**: two steps with a gradient.
- **passes**: *packed*: many sequences in one row of tokens without padding. *alone*: one sequence a pass, which gives
  the same numbers and is slower; the reason follows. Both are decided by a probe on the loaded model.
- **gap**: mean difference, in nats, of a token's log-prob between the hf engine and the trainer.
- **hf engine**: *own*: continuous batching with a cache between turns. *generate*: transformers' own. *one by one*:
  padding changes what the model computes. *recomputes*: its cache does too. SGLang and vLLM have families of their
  own.
- **LoRA**: an adapter of all linear layers trains, and merges into a whole model; *experts too*: with
  `model.target_parameters=all-experts`.
- **Ulysses**: whether the tokens of a sequence can be split among GPUs.
- **replay**: training can route each token to the experts of the rollout (`actor.router_replay.mode=R3`).
- **images**: rows with images train. *needs*: a package that was not installed where the page was made.
- **export**: the merged folder has each tensor of the model that the run began with, and plain transformers computes
  the same logits from it, to 1e-6.

On a GPU, recurrent layers compute a whole packed row where flash-linear-attention is installed. Its version 0.6 refuses
gradients on Hopper with a Triton before 3.7.1.

A model that reads images is loaded whole. For a run on text alone, `model.text_only=true` leaves its towers out of
memory, training and weight sync; an export has them as they were.
"""


def row(name: str, seconds: float = 400, keep: Path | None = None) -> Row:
    """The facts of one family. `keep`: a folder for its files, which are deleted otherwise."""
    place = keep or Path(tempfile.mkdtemp(prefix=f"family-{name}-"))
    process = Process(measure, name, place)
    facts: Row = {"family": name}
    try:
        if code := process.wait(seconds):
            facts["trains"] = f"no: exit code {code}: {process.said()[1][-WIDTH:]}"
    except subprocess.TimeoutExpired:
        facts["trains"] = f"no: not in {seconds:.0f} seconds"
    if (place / "row.json").exists():
        facts = json.loads((place / "row.json").read_text()) | facts
    if keep is None:
        shutil.rmtree(place, ignore_errors=True)
    return facts


def rows(names: Iterable[str], workers: int = 2) -> Iterable[Row]:
    """The facts of families, in order."""
    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(row, names)


def cells(facts: Row) -> dict[str, str]:
    """A row of the page by column."""
    family = FAMILIES[facts["family"]]
    found = {name: str(facts.get(name, "")) for name in COLUMNS}
    found |= {"family": f"`{family.name}`", "example": EXAMPLES[family.name], "hf": _decodes(facts)}
    if "gap" in facts:
        found["gap"] = f"{facts['gap']:.0e}"
    if not family.reads_images:
        found["images"] = ""
    if "makes" in facts:
        found["trains"] = facts["makes"]
    if not found["trains"].startswith("yes"):  # the others say the same
        found |= dict.fromkeys(("lora", "export", "hf", "images"), "")
    return {name: _short(text) for name, text in found.items()}


def _decodes(facts: Row) -> str:
    said = " ".join(facts.get("decodes", ()))
    words = {"whole sequence": "recomputes", "now 1 at a time": "one by one", "own generation": "generate"}
    return next((word for sign, word in words.items() if sign in said), "own")


PLAIN = (
    (r"^no: .*?(torchvision|num2words).*", lambda found: f"no: needs {found[1].lower()}"),
    (r"replay: (.*?) of a \w+ model.*", r"\1"),
    (r"model\.path: the adapter in \S+ cannot be loaded: ", ""),
    (r"^no: .*hf engine: ", "no: "),
    (r" by [\d.]+%.*", ""),
    (r"ulysses\S+: a \w+ model cannot be packed.*", "not packed"),
)
"""What errors say of this machine and these sizes, and what stands there for it."""


def _short(text: str) -> str:
    """The first sentence, without what a table cannot have."""
    text = " ".join(text.replace("|", "/").split())
    for pattern, plain in PLAIN:
        text = re.sub(pattern, plain, text, flags=re.IGNORECASE)
    for end in (". ", "; ", " ("):
        text = text.split(end)[0]
    return text if len(text) <= WIDTH else text[: WIDTH - 3].rsplit(" ", 1)[0] + " ..."


def page(found: Iterable[Row]) -> str:
    """docs/models.md."""
    parts, facts = [HEAD], list(found)
    for group, title in GROUPS.items():
        own = [cells(f) for f in facts if FAMILIES[f["family"]].group == group]
        columns = [name for name in COLUMNS if name not in ONLY or group in ONLY[name]]
        lines = [[COLUMNS[name] for name in columns], ["---"] * len(columns)]
        lines += [[line[name] for name in columns] for line in own]
        parts.append(f"## {title}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n")
    return "\n".join(parts)


def read_page(text: str) -> dict[str, dict[str, str]]:
    """The cells of each family on the page."""
    titles, found = list[str](), {}
    for line in text.splitlines():
        words = [word.strip() for word in line.strip("|").split("|")] if line.startswith("|") else []
        if words and words[0] == "family":
            titles = words
        elif words and words[0].startswith("`"):
            found[words[0].strip("`")] = dict(zip(titles, words, strict=True))
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=[])
    parser.add_argument("--out", type=Path, help="write the page")
    parser.add_argument("--rows", type=Path, nargs="*", help="facts that were measured, as JSON lines; later ones win")
    given = parser.parse_args()
    names = given.names or list(FAMILIES)
    known = [json.loads(line) for file in given.rows or () for line in file.read_text().splitlines()]
    measured = {facts["family"]: facts for facts in known}
    for facts in rows([name for name in names if not known or given.names]):
        measured[facts["family"]] = facts
        print(json.dumps(facts), flush=True)
    if given.out:
        given.out.write_text(page(measured[name] for name in FAMILIES if name in measured))


if __name__ == "__main__":
    main()
