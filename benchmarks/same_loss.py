"""Whether a change left training as it was: same seed, same loss, same gradient, same weights.

    python benchmarks/same_loss.py [BASE]      (a commit; HEAD by default, so that it judges what is not committed)

Short runs of a tiny model in the code of BASE and in this checkout: GRPO over several turns with a tool, PPO with a
critic and a reference, supervised training. Every figure that both report and no clock decides has to be equal, and
every weight of the last checkpoint, bit for bit. Ends with 1 where one differs.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file

from agentrl.tracking import read_metrics
from agentrl.tracking.metrics import is_wall_clock

HERE = Path(__file__).parents[1]
GRPO = ["train", "--config-name=tiny", "data.train_batch_size=4", "rollout.n=4", "data.max_response_length=48"]
REWARD = """
def letters(data_source, solution_str, ground_truth, extra_info=None):
    return len(set(solution_str)) / 10
"""
"""An untrained model gets it in parts, so that advantages are not 0."""
SHORT = [
    "trainer.total_training_steps=3",
    "trainer.val_before_train=false",
    "trainer.save_freq=3",
    "trainer.test_freq=-1",
    "data.val_files=null",
]
PPO = [
    "actor.ppo_mini_batch_size=4",
    "algorithm.adv_estimator=gae",
    "critic.ppo_mini_batch_size=4",
    "actor.use_kl_loss=true",
    "actor.entropy_coeff=0.01",
]
SFT = ["sft", "--config-name=tiny_sft", "trainer.total_training_steps=4", "trainer.logger=[file]"]
RUNS = {
    "GRPO with a tool": [*GRPO, *SHORT, "actor.ppo_mini_batch_size=2"],
    "PPO with a critic": [*GRPO, *SHORT, *PPO],
    "supervised": SFT,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", nargs="?", default="HEAD")
    args = parser.parse_args()
    table = Table("run", "figures", "that differ", "weights", "that differ")
    different = 0
    with tempfile.TemporaryDirectory() as folder, checked_out(args.base, Path(folder) / "base") as base:
        inputs = prepare(Path(folder))
        for name, words in RUNS.items():
            before, after = (train(tree, [*words, *inputs[words[0]]], Path(folder)) for tree in (base, HERE))
            shared = sorted(before[0].keys() & after[0].keys())
            figures = [key for key in shared if before[0][key] != after[0][key]]
            weights = [key for key in before[1] if not torch.equal(before[1][key], after[1].get(key, torch.empty(0)))]
            different += len(figures) + len(weights) + (not shared) + (not before[1])
            named = ", ".join(key for _, key in figures[:4])
            table.add_row(name, str(len(shared)), f"{len(figures)} {named}", str(len(before[1])), str(len(weights)))
    Console().print(table)
    sys.exit(different > 0)


@contextmanager
def checked_out(commit: str, folder: Path) -> Iterator[Path]:
    """The code of `commit` in a folder, for a while."""
    git = ["git", "-C", str(HERE), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(folder), commit], check=True)
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def prepare(folder: Path) -> dict[str, list[str]]:
    """Rows and a warm model for both; settings that name them, by command."""
    data, model = folder / "data", folder / "model"
    agentrl(HERE, "data", "arithmetic", "--difficulty=tiny", "--train=32", "--val=8", "--demos=64", f"--out={data}")
    agentrl(HERE, "model", "tiny", str(model), f"--tokenizer-data={data / 'sft.jsonl'}")
    (folder / "reward.py").write_text(REWARD)
    reward = f"reward.custom_reward_function.path={folder / 'reward.py'}"
    rows = [f"data.train_files={data / 'train.parquet'}", reward, "reward.custom_reward_function.name=letters"]
    demos = [f"data.train_files={data / 'sft.jsonl'}"]
    return {"train": [f"model.path={model}", *rows], "sft": [f"model.path={model}", *demos]}


def train(tree: Path, words: list[str], folder: Path) -> tuple[dict[tuple[int, str], float], dict[str, torch.Tensor]]:
    """Figures by (step, name), and weights by name, of a run in the code of `tree`."""
    with tempfile.TemporaryDirectory(dir=folder) as run:
        agentrl(tree, *words, f"trainer.default_local_dir={run}")
        steps = read_metrics(Path(run) / "metrics.jsonl")
        figures = {(int(step["step"]), key): step[key] for step in steps for key in step if not is_wall_clock(key)}
        weights = {str(file.relative_to(run)): load_file(file) for file in Path(run).rglob("*.safetensors")}
        return figures, {f"{file}: {key}": value for file, held in weights.items() for key, value in held.items()}


def agentrl(tree: Path, *words: str) -> None:
    packages = os.pathsep.join(map(str, (tree, tree / "from_verl", tree / "sandbox")))  # all of them of that commit
    env = os.environ | {"PYTHONPATH": packages, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, "-m", "agentrl", *words], cwd=tree, env=env, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
