"""Measures one family by the commands that people type: train, train with an adapter, merge.

Each fact is found on the run, its files and the loaded model; a fact that cannot be found is the error's first line.
"""

import io
import json
import logging
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from safetensors import safe_open

from agentrl.cli.main import main
from agentrl.tracking import read_metrics
from tests.models.families import FAMILIES, Family, folder

NEAR = 1e-6
"""Difference of two models that are the same, in nats."""
STEPS, LORA_STEPS = 2, 1
LENGTH = 12
"""Tokens of an answer."""
REWARD = "tests/models/score.py"


def measure(name: str, place: Path) -> None:
    """Write `place`/row.json: the family's facts by column."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    family, facts = FAMILIES[name], Facts(place / "row.json")
    began = time.monotonic()
    facts |= {"family": name, "group": family.group}
    base = facts.try_("makes", lambda: folder(family, place / "base"))
    if base is None:
        return
    rows = _rows(family, place, images=facts.images(family, base))
    facts.try_("model", lambda: facts.update(asked(base)))
    trained = facts.try_("trains", lambda: train(base, rows, place / "run", STEPS, facts))
    if trained:
        facts.try_("export", lambda: exported(family, base, place))
    facts.try_("lora", lambda: adapted(base, rows, place, facts))
    facts |= {"seconds": round(time.monotonic() - began, 1)}


class Facts(dict[str, Any]):
    """A row of the table, written with each fact."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __ior__(self, more: Any) -> "Facts":  # type: ignore[override,misc]
        self.update(more)
        self.file.write_text(json.dumps(self))
        return self

    def try_(self, column: str, find: Callable[[], Any]) -> Any:
        """What `find` returns, which is the fact where it is text; None, and the fact is the error, where it raises."""
        try:
            found = find()
        except Exception as error:  # the model's own code, or a refusal
            text = str(error).strip().splitlines() or [type(error).__name__]
            self |= {column: f"no: {text[0]}"}
            return None
        if isinstance(found, str):
            self |= {column: found}
        return found

    def images(self, family: Family, base: Path) -> bool:
        """Whether the family's processor reads images on this machine."""
        if not family.reads_images:
            return False
        return self.try_("images", lambda: _reads(base)) == "yes"


def _reads(base: Path) -> str:
    from agentrl.config.schema import Model
    from agentrl.training import load_processor, load_tokenizer

    model = Model(path=str(base))
    load_processor(model, load_tokenizer(model)).medium("image", {"image": Image.new("RGB", (56, 56), "red")})
    return "yes"


def _rows(family: Family, place: Path, *, images: bool) -> Path:
    from io import BytesIO

    shown = []
    for colour in ("red", "blue"):
        Image.new("RGB", (56, 56), colour).save(file := BytesIO(), "png")
        shown.append({"bytes": file.getvalue()})
    texts = ["<image> what is it?" if images else "what is it?", "a red picture, and what else is there?"]
    rows = [
        {
            "data_source": "families",
            "prompt": [{"role": "user", "content": text}],
            "reward_model": {"style": "rule", "ground_truth": "1"},
        }
        | ({"images": [shown[0]] if "<image>" in text else []} if images else {})
        for text in texts
    ]
    pq.write_table(pa.Table.from_pylist(rows), place / "rows.parquet")
    return place / "rows.parquet"


def asked(base: Path) -> dict[str, Any]:
    """What a loaded model says: packing, experts, sequence parallelism."""
    from agentrl.config.schema import Model
    from agentrl.training import load_model
    from agentrl.training.model.experts import expert_layers
    from agentrl.training.model.packing_probe import pack_where_exact
    from agentrl.training.parallel.ulysses import check_heads

    cpu = torch.device("cpu")
    model = load_model(Model(path=str(base), dtype="float32"), device=cpu, seed=0)
    with Said("agentrl") as said:
        packs = pack_where_exact(model, cpu)
    why = next((line.rpartition("not packed: ")[2] for line in said if "not packed" in line), "")
    facts = {"class": type(model.base).__name__, "passes": "packed" if packs else f"alone: {why}"}
    try:
        check_heads(model.config, packs, 2)
        facts["ulysses"] = "yes"
    except Exception as error:
        facts["ulysses"] = f"no: {error}"
    if expert_layers(model.base):
        facts["replay"] = _replays(model)
    return facts


def _replays(model: Any) -> str:
    from agentrl.training.model.routing_probe import routing_of

    try:
        routing_of(model, torch.device("cpu"), "replay")
    except Exception as error:
        return f"no: {error}"
    return "yes"


class Said(logging.Handler):
    """The messages of a logger in a context."""

    def __init__(self, name: str) -> None:
        super().__init__(logging.INFO)
        self.logger, self.lines = logging.getLogger(name), list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def __enter__(self) -> list[str]:
        self.logger.addHandler(self)
        return self.lines

    def __exit__(self, *_: Any) -> None:
        self.logger.removeHandler(self)


def train(base: Path, rows: Path, out: Path, steps: int, facts: Facts, *more: str) -> str:
    """`agentrl train` for a few steps. Raises RuntimeError with the command's own words."""
    said = agentrl(
        "train",
        f"model.path={base}",
        "model.dtype=float32",
        f"data.train_files={rows}",
        "data.train_batch_size=2",
        "data.max_prompt_length=256",
        f"data.max_response_length={LENGTH}",
        "actor.ppo_mini_batch_size=2",
        "actor.optim.lr=1e-3",
        "rollout.name=hf",
        "rollout.n=3",
        "rollout.ignore_eos=true",
        "rollout.max_num_seqs=8",
        "trainer.logger=[file]",
        f"reward.custom_reward_function.path={REWARD}",
        "reward.custom_reward_function.name=score",
        "trainer.device=cpu",
        f"trainer.total_training_steps={steps}",
        f"trainer.save_freq={steps}",
        "trainer.val_before_train=false",
        f"trainer.default_local_dir={out}",
        *more,
    )
    metrics = read_metrics(out / "metrics.jsonl")
    gap = max(line["rollout_gap/mean"] for line in metrics)
    if len(metrics) != steps or not max(line["actor/grad_norm"] for line in metrics) > 0:
        raise RuntimeError(f"{len(metrics)} of {steps} steps, gradient {metrics[-1]['actor/grad_norm']:.2g}")
    decodes = [line for line in said.splitlines() if "hf engine" in line]
    facts |= {"gap": max(gap, facts.get("gap", 0.0)), "decodes": decodes}
    return "yes"


def agentrl(*words: str) -> str:
    """A command in this process: what it prints. Raises RuntimeError with its error line."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(list(words))
    if code:
        said = " ".join(err.getvalue().split()).rpartition("error: ")[2]
        raise RuntimeError(said.rpartition("the most frequent cause ")[2])
    return out.getvalue() + err.getvalue()


def exported(family: Family, base: Path, place: Path) -> str:
    """Merge the run; its model has the source's tensors, and says what the trained parameters say."""
    agentrl("merge", str(place / "run"), str(place / "out"))
    before, after = _tensors(base), _tensors(place / "out")
    lost = sorted(before.keys() - after.keys())
    if before.keys() != after.keys():
        return f"no: {len(lost)} tensors lost, {len(after) - len(before) + len(lost)} new: {', '.join(lost[:3])}"
    shapes = [name for name in before if before[name] != after[name]]
    if shapes:
        return f"no: other shapes of {', '.join(shapes[:3])}"
    gap = _apart(family, base, place)
    return "yes" if gap <= NEAR else f"no: logits differ by {gap:.1g}"


def _tensors(place: Path) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for file in place.glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            found |= {name: opened.get_slice(name).get_shape() for name in opened.keys()}  # noqa: SIM118
    return found


@torch.no_grad()
def _apart(family: Family, base: Path, place: Path) -> float:
    """Largest difference of logits of the merged model and the source with the run's parameters."""
    from agentrl.training.checkpoint import folders
    from agentrl.training.checkpoint.resuming import newest

    own, merged = (family.head.from_pretrained(p, dtype=torch.float32).eval() for p in (base, place / "out"))
    _, state = folders.load(newest(str(place / "run")))
    saved = {n: t.whole() for part in ("fixed", "parameters") for n, t in state["policy"].get(part, {}).items()}
    state_dict = own.state_dict()
    unknown = saved.keys() - state_dict.keys()
    if unknown:
        raise RuntimeError(f"the checkpoint has other names: {sorted(unknown)[0]}")
    own.load_state_dict(state_dict | saved)
    ids = torch.randint(5, 250, (1, 24), generator=torch.Generator().manual_seed(0))
    logits = [model(input_ids=ids, use_cache=False).logits.float() for model in (own, merged)]
    return float((logits[0] - logits[1]).abs().max())


def adapted(base: Path, rows: Path, place: Path, facts: Facts) -> str:
    """Train an adapter of all linear layers, and of all experts, and merge it."""
    if "replay" not in facts:
        return _adapted(base, rows, place / "lora")
    try:
        return _adapted(base, rows, place / "experts", "model.target_parameters=all-experts") + ", experts too"
    except Exception as error:
        facts |= {"lora_experts": str(error)}
        return _adapted(base, rows, place / "lora")


def _adapted(base: Path, rows: Path, place: Path, *more: str) -> str:
    train(base, rows, place, LORA_STEPS, Facts(place.with_suffix(".json")), "model.lora_rank=4", *more)
    merged = place.with_name(f"{place.name}-merged")
    agentrl("merge", str(place), str(merged), "--merge-adapter")
    lost = _tensors(base).keys() ^ _tensors(merged).keys()
    return f"no: merging loses {sorted(lost)[0]}" if lost else "yes"


if __name__ == "__main__":
    measure(sys.argv[1], Path(sys.argv[2]))
