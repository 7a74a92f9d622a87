"""verl's multi-turn examples trained two steps each, and their rewards beside verl's own scorers on the same answers.

    python benchmarks/from_verl.py ~/verl-0.5.0 ~/verl-0.7.0

Each folder is a checkout of verl. Its YAML files are used unchanged, and its `verl/utils/reward_score` scores the
dumped answers; only model, data, sizes and addresses are overridden. The rows have the columns of verl's data
scripts. A tiny model is warmed up on conversations that end with a right answer or a wrong one, so that rewards differ.
geo3k has no images, because the tiny model reads text only; verl's scorer for it needs `pip install mathruler`.
"""

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from agentrl_verl.modules import provide

CONFIG = "examples/sglang_multiturn/config"
SUMS = [(2, 3), (4, 4), (1, 6), (5, 4)]
STEPS = 2


@dataclass(frozen=True)
class Example:
    """One of verl's examples: its YAML files, the form of its answers, and the model's tool calls."""

    config: str
    data_source: str
    answer: Callable[[int], str]
    tools: str | None = None
    tool: str | None = None
    arguments: Callable[[int, int, int], dict[str, Any]] = lambda a, b, said: {"answer": str(said)}
    shown: Callable[[int, int, int], str] = lambda a, b, said: (
        f"Your answer {said} has the reward {float(said == a + b)}."
    )
    interaction: bool = False


def passage(query: str) -> str:
    """A passage of the retrieval server."""
    a, b = map(int, re.findall(r"\d+", query)[:2] if len(re.findall(r"\d+", query)) > 1 else (0, 0))
    return f'"Sums"\n{a} and {b} make {a + b}.'


EXAMPLES = {
    "gsm8k tool": Example(
        "gsm8k_multiturn_grpo", "openai/gsm8k", "#### {}".format, "gsm8k_tool_config", "calc_gsm8k_reward"
    ),
    "geo3k": Example(
        "geo3k_multiturn_grpo",
        "hiyouga/geometry3k",
        "<think> add </think> \\boxed{{{}}}".format,
        "geo3k_tool_config",
        "calc_geo3k_reward",
    ),
    "interaction": Example("gsm8k_multiturn_grpo_w_interaction", "openai/gsm8k", "#### {}".format, interaction=True),
    "search": Example(
        "search_multiturn_grpo",
        "searchR1_nq",
        "<answer> {} </answer>".format,
        "search_tool_config",
        "search",
        lambda a, b, said: {"query_list": [f"{a} and {b}"]},
        lambda a, b, said: f"[1] {passage(f'{a} and {b}')}",
    ),
    "sandbox": Example(
        "retool_multiturn_grpo",
        "math_dapo",
        "Answer: {}".format,
        "sandbox_fusion_tool_config",
        "code_interpreter",
        lambda a, b, said: {"code": f"print({a} + {b})"},
        lambda a, b, said: f"{a + b}\n",
    ),
}


class Retrieval(BaseHTTPRequestHandler):
    """verl's retrieval protocol over a corpus of sums."""

    def do_POST(self) -> None:
        """One list of passages a query."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        found = [[{"document": {"contents": passage(str(query))}, "score": 1.0}] for query in asked["queries"]]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"result": found}).encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


def row(example: Example, number: int) -> dict[str, Any]:
    """A row with the columns that verl's data scripts write."""
    a, b = SUMS[number]
    question, truth = f"What is {a} and {b} ?", str(a + b)
    extra: dict[str, Any] = {"split": "train", "index": number, "answer": truth, "question": question}
    if example.tool:
        kwargs = {example.tool: {"create_kwargs": {"ground_truth": truth}}}
        extra |= {"need_tools_kwargs": True, "tools_kwargs": kwargs}
    if example.interaction:
        extra["interaction_kwargs"] = {"name": "gsm8k", "query": question, "ground_truth": truth}
    target: Any = {"target": [truth]} if example.data_source.startswith("searchR1") else truth
    return {
        "data_source": example.data_source,
        "prompt": [{"role": "system", "content": "You add numbers."}, {"role": "user", "content": question}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": target},
        "extra_info": extra,
    }


def conversation(example: Example, number: int, said: int, tools: list[Any]) -> dict[str, Any]:
    """A demonstration: a call and its answer, or a first try and the user's reply, then the answer `said`."""
    a, b = SUMS[number]
    messages = list(row(example, number)["prompt"])
    if example.tool:
        call = {"name": example.tool, "arguments": example.arguments(a, b, said)}
        messages.append({"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]})
        messages.append({"role": "tool", "content": example.shown(a, b, said)})
    messages.append({"role": "assistant", "content": example.answer(said)})
    return {"messages": messages, "tools": tools}


def verl_scorer(folder: Path) -> Callable[..., Any]:
    """`default_compute_score` out of a checkout, its own files around it."""
    provide()
    package = folder / "verl/utils/reward_score"
    name = "reward_score_of_" + re.sub(r"\W", "_", str(folder))
    spec = importlib.util.spec_from_file_location(
        name, package / "__init__.py", submodule_search_locations=[str(package)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    score: Callable[..., Any] = module.default_compute_score
    return score


class Workplace:
    """A folder with one example of one checkout: YAML, rows, a warm model, runs."""

    def __init__(self, root: Path, verl: Path, name: str, url: str) -> None:
        self.verl, self.example = verl, EXAMPLES[name]
        self.folder = root / f"{verl.name}-{name.replace(' ', '_')}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log = self.folder / "log.txt"
        if self.example.tools:
            text = (verl / CONFIG / f"tool_config/{self.example.tools}.yaml").read_text()
            text = text.replace("http://127.0.0.1:8000/retrieve", url)
            # Without an address the run's own sandbox is used.
            (self.folder / "tools.yaml").write_text(re.sub(r"(?m)^ *sandbox_fusion_url:.*\n", "", text))

    def agentrl(self, *words: str) -> None:
        """Run a command. Raises CalledProcessError."""
        environment = os.environ | {"HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-m", "agentrl", *words]
        with self.log.open("a") as log:
            subprocess.run(command, check=True, cwd=self.folder, env=environment, stdout=log, stderr=log)

    def prepare(self) -> None:
        """Rows and a model that gives right answers and wrong ones."""
        pq.write_table(
            pa.Table.from_pylist([row(self.example, i) for i in range(len(SUMS))]), self.folder / "rows.parquet"
        )
        tools = self._schemas()
        spoken = [
            conversation(self.example, i, sum(SUMS[i]) + off, tools) for i in range(len(SUMS)) for off in (0, 0, 1)
        ]
        (self.folder / "sft.jsonl").write_text("".join(json.dumps(each) + "\n" for each in spoken))
        if (self.folder / "warm").exists():
            return
        self.agentrl("model", "tiny", "model", "--tokenizer-data", "sft.jsonl")
        sizes = ("data.train_batch_size=12", "data.max_length=512", "trainer.total_epochs=60", "optim.lr=1e-3")
        self.agentrl("sft", "model.path=model", "data.train_files=sft.jsonl", "trainer.output_dir=warm", *sizes)

    def _schemas(self) -> list[Any]:
        from omegaconf import OmegaConf

        if not self.example.tools:
            return []
        entries: Any = OmegaConf.to_container(OmegaConf.load(self.folder / "tools.yaml"))
        return [entry["tool_schema"] for entry in entries["tools"]]

    def train(self, settings: list[str]) -> None:
        """verl's command with verl's YAML, at a size for a CPU."""
        multi_turn = "actor_rollout_ref.rollout.multi_turn"
        here = {
            "actor_rollout_ref.model.path": "warm",
            "actor_rollout_ref.rollout.name": "hf",
            "actor_rollout_ref.rollout.n": 4,
            "actor_rollout_ref.actor.ppo_mini_batch_size": 4,
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 4,
            "algorithm.adv_estimator": "grpo",
            "data.train_batch_size": 4,
            "data.max_prompt_length": 640,
            "data.max_response_length": 192,
            "data.train_files": "rows.parquet",
            "data.val_files": "null",
            "trainer.device": "cpu",
            "trainer.n_gpus_per_node": 1,
            "trainer.nnodes": 1,
            "trainer.logger": "console",
            "trainer.total_training_steps": STEPS,
            "trainer.default_local_dir": "run",
        }
        if self.example.tools:
            here[f"{multi_turn}.tool_config_path"] = "tools.yaml"
        if "custom_chat_template" in (self.verl / CONFIG / f"{self.example.config}.yaml").read_text():
            here["actor_rollout_ref.model.custom_chat_template"] = "null"  # one for pictures
        if self.example.interaction:
            file = self.verl / CONFIG / "interaction_config/gsm8k_interaction_config.yaml"
            here[f"{multi_turn}.interaction_config_path"] = file
        config = ("--config-path", str(self.verl / CONFIG), "--config-name", self.example.config)
        words = [f"{key}={value}" for key, value in here.items()]
        self.agentrl("verl", "python3", "-m", "verl.trainer.main_ppo", *config, *words, *settings)

    def dumped(self) -> list[dict[str, Any]]:
        """The trajectories of all steps."""
        files = sorted((self.folder / "run/rollouts").glob("*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]


SPECIAL = re.compile(r"<\|im_start\|>|<\|im_end\|>|<\|endoftext\|>")


def words_of(trajectory: dict[str, Any]) -> tuple[str, str]:
    """(the model's own text, all text after the prompt), both without special tokens."""
    segments = [s for s in trajectory["samples"][-1]["segments"] if s["source"] != "prompt"]
    own = [SPECIAL.sub("", segment["text"]).strip() for segment in segments if segment["source"] == "model"]
    return "\n".join(own), SPECIAL.sub("", "".join(segment["text"] for segment in segments))


def compared(place: Workplace, score: Callable[..., Any]) -> tuple[int, int, int, int]:
    """(trajectories, with a reward that is not the least, equal to verl's on the model's words, on all of the text)."""
    done = [t for t in place.dumped() if t["outcome"] == "ok"]
    truths = {row(place.example, i)["extra_info"]["question"]: i for i in range(len(SUMS))}
    equal, whole = 0, 0
    for trajectory in done:
        truth = row(place.example, truths[trajectory["prompt"][-1]["content"]])["reward_model"]["ground_truth"]
        said = [score(place.example.data_source, text, truth) for text in words_of(trajectory)]
        values = [float(s["score"] if isinstance(s, dict) else s) for s in said]
        equal += abs(values[0] - trajectory["reward"]) < 1e-6
        whole += abs(values[1] - trajectory["reward"]) < 1e-6
    least = min((t["reward"] for t in done), default=0.0)
    return len(done), sum(t["reward"] > least for t in done), equal, whole


def main() -> None:
    """Train and compare, example by example."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verl", nargs="+", type=Path, help="checkouts of verl")
    parser.add_argument("--out", type=Path, default=Path("runs/from_verl"))
    parser.add_argument("--only", nargs="*", choices=list(EXAMPLES), default=list(EXAMPLES))
    parser.add_argument("--set", nargs="*", default=[], help="further settings of every run")
    asked = parser.parse_args()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Retrieval)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    table = Table("example", "verl", "steps", "trajectories", "above the least", "equal to verl's", "over all the text")
    for verl in (folder.resolve() for folder in asked.verl):
        score = verl_scorer(verl)
        for name in asked.only:
            place = Workplace(asked.out.resolve(), verl, name, f"http://127.0.0.1:{server.server_port}/retrieve")
            table.add_row(name, verl.name, *attempt(place, score, asked.set))
    Console().print(table)


def attempt(place: Workplace, score: Callable[..., Any], settings: list[str]) -> list[str]:
    """The cells of one line."""
    try:
        place.prepare()
        place.train(settings)
    except subprocess.CalledProcessError:
        return ["0", "", "", f"failed: {place.log}", ""]
    steps = len(list((place.folder / "run/rollouts").glob("*.jsonl")))
    count, above, equal, whole = compared(place, score)
    return [str(steps), str(count), str(above), f"{equal} of {count}", f"{whole} of {count}"]


if __name__ == "__main__":
    main()
