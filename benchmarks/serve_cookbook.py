"""Recipes of the unmodified tinker-cookbook on `agentrl serve`, offline, with a tiny model; prints how each ended.

    python -m venv /tmp/cookbook && /tmp/cookbook/bin/pip install tinker-cookbook sympy pylatexenc math-verify
    python benchmarks/serve_cookbook.py --python /tmp/cookbook/bin/python [--recipes rl_loop sl_loop]

The recipes run in a folder where the names of the hub are local folders: the model Qwen/Qwen3-8B is a tiny one, and the
data sets have 256 rows of arithmetic. Steps, groups and answers are few and short.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

MODEL, ANSWERER = "Qwen/Qwen3-8B", "Qwen/Qwen3.5-9B"
NAMED = ("model_name=" + MODEL,)
RENDERED = (*NAMED, "renderer_name=qwen3_disable_thinking")
STEPS = ("max_steps=2", "behavior_if_log_dir_exists=delete")
FEW = ("group_size=2", "groups_per_batch=2", "max_tokens=16")
LOSS = "loss_fn=importance_sampling"
SOLVED = [(f"What is {a} + {b}?", f"{a + b}") for a in range(16) for b in range(16)]


def chat(question: str, answer: str) -> list[dict[str, str]]:
    """The messages of one question."""
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def talk(question: str, answer: str) -> str:
    """The text of hh-rlhf's rows."""
    return f"\n\nHuman: {question}\n\nAssistant: {answer}"


MESSAGES = [{"messages": chat(*one)} for one in SOLVED]
COMPARED = [{"chosen": talk(q, a), "rejected": talk(q, "I do not know")} for q, a in SOLVED]
CHOICES = {"label": ["A", "B"], "text": ["yes", "no"]}
CHEMISTRY = {"domain": "Chemistry", "details": {"level": "L3"}, "type": "mcq-4-choices", "choices": CHOICES}
THOUGHTS = [{"conversations": [{"from": "human", "value": q}, {"from": "gpt", "value": a}]} for q, a in SOLVED]
DATA: dict[str, dict[str, list[dict[str, Any]]]] = {
    "HuggingFaceH4/no_robots": {"train": MESSAGES, "test": MESSAGES[:4]},
    "openai/gsm8k": {key: [{"question": q, "answer": f"#### {a}"} for q, a in SOLVED] for key in ("train", "test")},
    "zwhe99/DeepMath-103K": {"train": [{"question": q, "final_answer": a, "difficulty": 1.0} for q, a in SOLVED]},
    "HuggingFaceH4/MATH-500": {"test": [{"problem": q, "solution": rf"\boxed{{{a}}}"} for q, a in SOLVED[:4]]},
    "allenai/tulu-3-sft-mixture": {"train": MESSAGES},
    "Anthropic/hh-rlhf": {"train": COMPARED, "test": COMPARED[:4]},
    "hicai-zju/SciKnowEval": {"test": [CHEMISTRY | {"question": q, "answerKey": "A"} for q, _ in SOLVED]},
    "open-thoughts/OpenThoughts3-1.2M": {"train": THOUGHTS},
}
"""Data sets by their names in the hub: rows of each split."""
CONFIGS = {"openai/gsm8k": "main"}
"""Names of configurations that recipes ask for; `default` for the others."""
SUMS = """
import verifiers as vf
from datasets import Dataset

def load_environment():
    rows = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(8)]
    rubric = vf.Rubric(funcs=[lambda completion, answer, **_: float(answer in completion[-1]["content"])])
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=rubric)
"""
"""An environment of verifiers."""
HARBOR = """
import asyncio, sys, tempfile
from pathlib import Path
import chz
from tinker_cookbook.recipes.harbor_rl.harbor_env import HarborTask
from tinker_cookbook.recipes.harbor_rl.train import CLIConfig, cli_main
from tinker_cookbook.sandbox import SandboxResult

class Folder:
    sandbox_id = "folder"
    def __init__(self):
        self.root = Path(tempfile.mkdtemp())
    def inside(self, path):
        return self.root / path.lstrip("/")
    async def send_heartbeat(self, timeout=30): ...
    async def cleanup(self): ...
    async def run_command(self, command, workdir=None, timeout=60, max_output_bytes=None):
        for name in ("/tests", "/logs", "/root"):
            command = command.replace(name, str(self.inside(name)))
        job = await asyncio.create_subprocess_shell(command, cwd=self.root, stdout=-1, stderr=-1)
        out, err = await asyncio.wait_for(job.communicate(), timeout)
        return SandboxResult(out.decode(), err.decode(), job.returncode)
    async def read_file(self, path, max_bytes=None, timeout=60):
        return await self.run_command(f"cat {self.inside(path)}")
    async def write_file(self, path, content, executable=False, timeout=60):
        self.inside(path).parent.mkdir(parents=True, exist_ok=True)
        self.inside(path).write_text(content.replace("/logs", str(self.inside("/logs"))))
        return SandboxResult("", "", 0)

async def factory(folder, timeout):
    return Folder()

task = Path("task/tests")
task.mkdir(parents=True, exist_ok=True)
(task / "test.sh").write_text("echo $RANDOM % 2 | sed 's/.* % 2/0.5/' > /logs/verifier/reward.txt")
tasks = [HarborTask(f"task-{n}", "Say hello.", task.parent) for n in range(4)]
asyncio.run(cli_main(chz.entrypoint(CLIConfig), tasks, sandbox_factory=factory))
"""
"""Harbor's recipe with a folder in place of Modal's sandboxes, by the argument that it has for that."""


@dataclass(frozen=True)
class Recipe:
    """A program of the cookbook, and its options."""

    module: str
    options: tuple[str, ...]
    needs: str = ""
    """Package that has to be installed."""
    before: str = ""
    """Module of the cookbook to run first."""
    model: str = MODEL
    """The name by which the model is served."""


TEACHER = (f"teacher_model={MODEL}", "lora_rank=8", "groups_per_batch=2", "group_size=2", "max_tokens=16")
RECIPES = {
    "sl_loop": Recipe("sl_loop", (*NAMED, "batch_size=4", "max_steps=3")),
    "rl_loop": Recipe("rl_loop", (*NAMED, "batch_size=4", "group_size=4", "max_tokens=16", "max_steps=3")),
    "sl_basic": Recipe("sl_basic", (*NAMED, "max_steps=2")),
    "rl_basic": Recipe("rl_basic", (*NAMED, LOSS, "max_tokens=4", "max_steps=1")),
    "math_rl arithmetic": Recipe("math_rl.train", (*RENDERED, *STEPS, *FEW, LOSS, "env=arithmetic")),
    "math_rl gsm8k": Recipe("math_rl.train", (*RENDERED, *STEPS, *FEW, LOSS, "env=gsm8k")),
    "math_rl off-policy": Recipe(
        "math_rl.train", (*RENDERED, *STEPS, *FEW, LOSS, "env=arithmetic", "max_steps_off_policy=1")
    ),
    "chat_sl": Recipe("chat_sl.train", (*RENDERED, *STEPS, "dataset=conversations.jsonl", "batch_size=4")),
    "prompt_distillation": Recipe(
        "prompt_distillation.train", (*RENDERED, *STEPS, "file_path=conversations.jsonl", "batch_size=4")
    ),
    "preference.shorter": Recipe(
        "preference.shorter.train", (*RENDERED, *STEPS, "batch_size=2", "group_size=2", "max_tokens=16", "eval_every=0")
    ),
    "preference.dpo": Recipe("preference.dpo.train", (*RENDERED, *STEPS, "batch_size=4", "max_length=512")),
    "preference.rlhf": Recipe(
        "preference.rlhf.rlhf_pipeline",
        (f"base_model={MODEL}", "batch_size=4", "lora_rank=8", "rl_max_tokens=16", "rl_group_size=2", "max_steps=1"),
    ),
    "guess_number": Recipe(
        "multiplayer_rl.guess_number.train",
        (*RENDERED, *STEPS, "batch_size=2", "group_size=2", "max_tokens=8", "eval_every=0"),
    ),
    "text_arena": Recipe(
        "multiplayer_rl.text_arena.train",
        (
            *RENDERED,
            *STEPS,
            "batch_size=4",
            "num_train_datapoints=8",
            "num_test_datapoints=2",
            "max_tokens=8",
            "eval_every=0",
        ),
        needs="textarena",
    ),
    "distillation.on_policy": Recipe("distillation.on_policy_distillation", (*RENDERED, *STEPS, *TEACHER)),
    "distillation.multi_teacher": Recipe(
        "distillation.on_policy_multi_teacher",
        (
            *RENDERED,
            *STEPS,
            "lora_rank=8",
            "group_size=2",
            "max_tokens=16",
            f"deepmath_teacher_model={MODEL}",
            f"tulu3_teacher_model={MODEL}",
            "deepmath_groups_per_batch=2",
            "tulu3_groups_per_batch=2",
        ),
    ),
    "distillation.off_policy": Recipe(
        "distillation.off_policy_reasoning",
        (*RENDERED, *STEPS, "lora_rank=8", "batch_size=4", "buffer_size=16", "max_prompts=16", "max_length=512"),
    ),
    "sdft": Recipe(
        "sdft.train", (*RENDERED, *STEPS, "lora_rank=8", "groups_per_batch=2", "max_tokens=16", "eval_every=0")
    ),
    "rubric": Recipe(
        "rubric.train",
        (
            *RENDERED,
            *STEPS,
            "groups_per_batch=2",
            "train_group_size=2",
            "max_tokens=8",
            f"grader_llm_name={MODEL}",
            "grader_renderer_name=qwen3_disable_thinking",
            "eval_every=0",
        ),
        before="rubric.generate_data",
    ),
    "verifiers_rl": Recipe(
        "verifiers_rl.train", (*RENDERED, *STEPS, *FEW, "vf_env_id=sums", "lora_rank=8"), needs="verifiers"
    ),
    "harbor_rl": Recipe("", (*RENDERED, *STEPS, *FEW, "lora_rank=8"), needs="modal"),
    "twenty_questions": Recipe(
        "multiplayer_rl.twenty_questions.train",
        (
            f"model_name={ANSWERER}",
            "renderer_name=qwen3_disable_thinking",
            *STEPS,
            "batch_size=2",
            "group_size=2",
            "max_tokens=8",
            "eval_every=0",
        ),
        model=ANSWERER,
    ),
}
console = Console(width=150)


def main() -> None:
    """Run them, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="interpreter with tinker-cookbook")
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=list(RECIPES))
    parser.add_argument("--limit", type=float, default=300, help="seconds of a recipe")
    parser.add_argument("--out", type=Path, default=Path("runs/cookbook"))
    args = parser.parse_args()
    folder = args.out.resolve()
    prepare(folder)
    table = Table("recipe", "seconds", "result", title="The cookbook on agentrl serve")
    for model in dict.fromkeys(RECIPES[name].model for name in args.recipes):
        for row in served(model, folder, args):
            table.add_row(*row)
            console.print(f"{row[0]}: {row[2]}")
    console.print(table)


def served(model: str, folder: Path, args: argparse.Namespace) -> Iterator[tuple[str, str, str]]:
    """The rows of the recipes that a server of `model` serves."""
    with (folder / "serve.log").open("w") as log:
        server, url = started(model, folder, log)
        try:
            for name in [name for name in args.recipes if RECIPES[name].model == model]:
                yield name, *ended(name, folder, args.python, url, args.limit)
        finally:
            server.kill()


def prepare(folder: Path) -> None:
    """Write the model and the data where recipes look for the hub's."""
    folder.mkdir(parents=True, exist_ok=True)
    program = str(Path(sys.executable).with_name("agentrl"))
    if not (folder / MODEL).exists():
        jobs = [["data", "arithmetic", "--out", "arithmetic", "--demos", "200"]]
        jobs += [
            ["model", "tiny", MODEL, "--layers", "2", "--hidden", "64", "--tokenizer-data", "arithmetic/sft.jsonl"]
        ]
        for job in jobs:
            subprocess.run([program, *job], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        shutil.copytree(folder / MODEL, folder / ANSWERER)
    (folder / "tinker_cookbook/example_data").mkdir(parents=True, exist_ok=True)
    (folder / "sums.py").write_text(SUMS)
    (folder / "harbor_local.py").write_text(HARBOR)
    for name, splits in DATA.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        files = [{"split": split, "path": f"{split}.jsonl"} for split in splits]
        facts = [{"config_name": CONFIGS.get(name, "default"), "data_files": files}]
        (folder / name / "README.md").write_text(f"---\nconfigs: {json.dumps(facts)}\n---\n")
        for split, rows in splits.items():
            write_rows(folder / name / f"{split}.jsonl", rows)
    write_rows(folder / "conversations.jsonl", MESSAGES)


def write_rows(file: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows as JSON lines."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def started(model: str, folder: Path, log: Any) -> tuple["subprocess.Popen[bytes]", str]:
    """The server, and its address."""
    shutil.rmtree(folder / "served", ignore_errors=True)
    command = [sys.executable, "-m", "agentrl", "serve", "--port", "0", f"model.path={model}"]
    server = subprocess.Popen(
        [*command, "trainer.device=cpu", "trainer.default_local_dir=served"], cwd=folder, stdout=log, stderr=log
    )
    while True:
        time.sleep(1)
        found = [line for line in (folder / "serve.log").read_text().split() if line.startswith("TINKER_BASE_URL=")]
        if found:
            return server, found[0].partition("=")[2]
        if server.poll() is not None:
            sys.exit((folder / "serve.log").read_text())


def ended(name: str, folder: Path, python: str, url: str, limit: float) -> tuple[str, str]:
    """Seconds of a recipe, and its end: the last line of its output where it failed."""
    recipe, logs = RECIPES[name], folder / "logs" / name.replace(" ", "-")
    if recipe.needs and subprocess.run([python, "-c", f"import {recipe.needs}"], capture_output=True).returncode:
        return "", f"not run: {recipe.needs} is not installed"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    offline = dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"), "1")
    own = {"TINKER_BASE_URL": url, "TINKER_API_KEY": f"tml-{name.replace(' ', '-')}", "TINKER_TELEMETRY": "0"}
    runs = {"TINKER_COOKBOOK_RUNS_DIR": str(logs), "HF_HOME": str(folder / "hub"), "PYTHONPATH": str(folder)}
    begun = time.monotonic()
    env = os.environ | offline | own | runs
    recipes = [python, "-m", "tinker_cookbook.recipes."]
    command = [*recipes[:2], recipes[2] + recipe.module] if recipe.module else [python, "harbor_local.py"]
    command += recipe.options
    with (logs / "out.txt").open("w") as out:
        if recipe.before:
            subprocess.run([*recipes[:2], recipes[2] + recipe.before], cwd=folder, env=env, stdout=out, check=True)
        try:
            code = subprocess.run(
                command, cwd=folder, env=env, stdout=out, stderr=out, stdin=subprocess.DEVNULL, timeout=limit
            ).returncode
        except subprocess.TimeoutExpired:
            code = None
    last = ([line for line in (logs / "out.txt").read_text().splitlines() if line.strip()] or [""])[-1].strip()
    result = "ended well" if code == 0 else f"{'limit' if code is None else 'failed'}: {last[:110]}"
    return f"{time.monotonic() - begun:.0f}", result


if __name__ == "__main__":
    main()
