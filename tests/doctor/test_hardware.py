"""The table of GPUs: near what was measured, as the page shows it, and every recipe fits where it says."""

import json
import runpy
from pathlib import Path

import pytest

from agentrl.config import compose
from agentrl.doctor.hardware import HEAD, fewest, gpu_memory, rollout_seconds, step_seconds, table, update_seconds
from agentrl.doctor.memory import TIGHT, size_of

ROOT = Path(__file__).parents[2]
SHAPES = json.loads((ROOT / "benchmarks/shapes.json").read_text())
RECIPES = sorted(file.stem for file in (ROOT / "configs/recipes").glob("*_*gpu.yaml"))
PUBLISHED = {"Qwen3-1.7B": 1.72, "Qwen3-4B": 4.02, "Qwen3-8B": 8.19, "Qwen3-30B-A3B": 30.5, "Qwen2.5-VL-3B": 3.75}
H200 = 4.8e12


def of(name: str, folder: Path, *settings: str, preset: str = "recipes/base"):
    (folder / "config.json").write_text(json.dumps(SHAPES[name]))
    config = compose([f"model.path={folder}", *settings], config_name=preset, checks=())
    return config, size_of(config)


def test_the_measured_step_is_near(tmp_path: Path) -> None:
    """64 x 8 answers of 512 tokens to prompts of 256, Qwen3-1.7B's shape, one H200: 8.45 and 7.5 seconds."""
    config, size = of("Qwen3-1.7B", tmp_path, "model.enable_gradient_checkpointing=false")
    rollouts = rollout_seconds(size, 1, 512, 256, 512, 512, bandwidth=H200)
    assert rollouts == pytest.approx(8.45, rel=0.2)
    assert update_seconds(config, size, 512, 768, 512) == pytest.approx(7.5, rel=0.2)


def test_more_gpus_take_less_of_each(tmp_path: Path) -> None:
    config, size = of("Qwen3-8B", tmp_path)
    needs = [gpu_memory(config, size, gpus) for gpus in (1, 2, 4, 8)]
    assert needs == sorted(needs, reverse=True)
    assert fewest(config, size, 80)[0] > 1
    assert fewest(config, size, 8) == (0, 0.0)
    lora, smaller = of("Qwen3-8B", tmp_path, "model.lora_rank=16")
    assert fewest(lora, smaller, 80)[0] == 1
    assert sum(step_seconds(lora, smaller, 4)) < sum(step_seconds(lora, smaller, 1)) / 2


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_composes_and_fits(recipe: str, tmp_path: Path) -> None:
    preset = f"recipes/{recipe}"
    path = str(compose([], config_name=preset, checks=()).model.path)
    name = path.partition("/")[2].removesuffix("-Instruct")
    config, size = of(name, tmp_path, preset=preset)
    assert size.parameters / 1e9 == pytest.approx(PUBLISHED[name], rel=0.01)
    gpus, memory = config.trainer.n_gpus_per_node, 141 if recipe == "qwen3_30b_a3b_1gpu" else 80
    assert recipe.endswith(f"_{gpus}gpu")
    assert gpu_memory(config, size, gpus) <= TIGHT * memory
    assert size.trained < size.parameters / 40 or gpus == 8
    runs = ["data.train_files=rows.jsonl", "reward.custom_reward_function.path=reward.py", f"model.path={tmp_path}"]
    rows = [json.dumps({"prompt": "What?", "ground_truth": "1"})] * 64
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    (tmp_path / "reward.py").write_text("def compute_score(data_source, solution_str, ground_truth): return 1.0\n")
    runs = [setting.replace("=r", f"={tmp_path}/r") for setting in runs]
    compose(runs, config_name=preset)


def test_the_page_lists_the_recipes() -> None:
    page = (ROOT / "docs/hardware.md").read_text()
    assert [recipe for recipe in RECIPES if f"`recipes/{recipe}`" not in page] == []
    assert HEAD in page


def test_a_row_of_the_page_is_current(tmp_path: Path) -> None:
    config, _ = of("Qwen3-8B", tmp_path)
    page = (ROOT / "docs/hardware.md").read_text()
    assert [line for line in table({"Qwen3-8B": config}).splitlines() if line not in page.splitlines()] == []


@pytest.mark.slow
def test_the_page_is_current() -> None:
    script = runpy.run_path(str(ROOT / "benchmarks/hardware.py"))
    assert script["page"]() == script["PAGE"].read_text(), "run `make reference`"
