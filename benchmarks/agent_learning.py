"""Held-out success after training inside unmodified mini-swe-agent, beside the built-in loop on the same rows.

    python benchmarks/agent_learning.py --mini .venv-agents/bin/mini --seeds 0 1 2

A shell task: the model has bash add some numbers, reads the sum and submits it. Demonstrations in the agent's own
format submit a number of the question in most cases, so the warm model does, and the reward has to correct it. All runs
start from one warm model and train on as many trajectories. Both policies play held-out rows through the built-in loop,
and the agent's some once more through mini-swe-agent, which `make test-agents` installs. The warm model and runs that
have ended are kept in --out. Costs: 3.3 s of CPU for each of the 900 processes of mini-swe-agent in a run.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from agentrl.tracking import read_metrics

BUILT_IN, AGENT = "built_in", "mini"
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo "
"""mini-swe-agent ends at the first line that this prints."""
BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Execute a bash command",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "The bash command to execute"}},
            "required": ["command"],
        },
    },
}
"""The tool that mini-swe-agent sends."""
SYSTEM = "Use bash."
MINI = f"""\
agent: {{system_template: {SYSTEM}, instance_template: "{{{{task}}}}", step_limit: 2, cost_limit: 0, mode: yolo}}
environment: {{timeout: 10}}
model:
  observation_template: "{{{{output.output[:200] | trim or 'nothing'}}}}"
  format_error_template: {SYSTEM}
"""
TOOL = '''
import subprocess
import tempfile

from agentrl.tools import BaseTool


class Bash(BaseTool):
    """Shows of a command what mini-swe-agent shows."""

    def execute(self, instance_id, parameters, **kwargs):
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(parameters["command"], shell=True, cwd=folder, text=True, timeout=10, **streams)
        return done.stdout[:200].strip() or "nothing"
'''
REWARD = r"""
import re


def compute_score(data_source, solution_str, ground_truth, extra_info):
    submitted = re.findall(r"FINAL_OUTPUT; echo (\d+)", solution_str)
    return float(bool(submitted) and submitted[-1] == ground_truth)
"""


@dataclass(frozen=True)
class Ended:
    """A run that is over."""

    before: float
    after: float
    agent_after: float
    """Through mini-swe-agent."""
    trajectories: int
    seconds: float
    """Of its steps."""


def main() -> None:
    """A warm model, then run after run."""
    args = arguments()
    prepare(args)
    jobs = [(seed, loop) for seed in args.seeds for loop in args.loops]
    made = {(seed, loop): trained(args, seed, loop) for seed, loop in jobs}
    Console(width=140).print(table(made, args))


def arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mini", default="mini", help="the program")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--loops", nargs="+", choices=(BUILT_IN, AGENT), default=[BUILT_IN, AGENT])
    parser.add_argument("--steps", type=int, default=24, help="of 32 trajectories each")
    parser.add_argument("--warm-up", type=int, default=600, help="steps of the warm-up")
    parser.add_argument("--sloppiness", type=float, default=0.6, help="share of demonstrations with a wrong end")
    parser.add_argument("--held-out", type=int, default=512)
    parser.add_argument("--through-agent", type=int, default=64, help="held-out rows that mini-swe-agent plays too")
    parser.add_argument("--out", type=Path, default=Path(".cache/agent_learning"))
    parser.add_argument("--set", nargs="*", default=[], help="further settings of the runs")
    args = parser.parse_args()
    args.out, args.mini = args.out.absolute(), shutil.which(args.mini) or sys.exit(f"{args.mini} is not there")
    return args


def prepare(args: argparse.Namespace) -> None:
    """Write rows, both agents and a warm model."""
    folder = args.out
    folder.mkdir(parents=True, exist_ok=True)
    write_agents(folder, os.path.abspath(args.mini))
    write_rows(folder, random.Random(0), args)
    if (folder / "warm/config.json").exists():
        return
    agentrl(folder, "model", "tiny", str(folder / "model"), "--tokenizer-data", str(folder / "sft.jsonl"))
    files = [f"model.path={folder / 'model'}", f"data.train_files={folder / 'sft.jsonl'}"]
    steps = [f"trainer.output_dir={folder / 'warm'}", f"trainer.total_training_steps={args.warm_up}"]
    agentrl(folder, "sft", "--config-name=tiny_sft", *files, *steps, "trainer.device=cpu")


def write_agents(folder: Path, mini: str) -> None:
    """mini-swe-agent's entry, and bash for the built-in loop."""
    words = [mini, "-c", str(folder / "mini.yaml"), "-t", "{prompt}", "-y", "--exit-immediately"]
    quiet = {"MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors", "MSWEA_SILENT_STARTUP": "1"}
    entry = {
        "name": AGENT,
        "command": [*words, "--model", "openai/policy"],
        "env": {**quiet, "HOME": "{folder}", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        "exit_codes": {1: "model_error"},
    }
    tool = {"class_name": "bash.Bash", "config": {"type": "native", "timeout": 15}, "tool_schema": BASH}
    files = {"mini.yaml": MINI, "bash.py": TOOL, "reward.py": REWARD, "bash.yaml": json.dumps({"tools": [tool]})}
    for name, text in {**files, "agents.yaml": yaml.safe_dump([entry])}.items():
        (folder / name).write_text(text)


def write_rows(folder: Path, rng: random.Random, args: argparse.Namespace) -> None:
    """Demonstrations, training rows, and held-out rows for each loop."""
    sums = [" + ".join(digits) for digits in product("123456789", repeat=4)]
    rng.shuffle(sums)
    held_out, shown = sums[: args.held_out], sums[args.held_out :]
    rows = {
        "sft": [demonstration(terms, rng.random() < args.sloppiness) for terms in shown],
        "train": [row(terms, "train") for terms in shown[:400]],
        "val": [row(terms, BUILT_IN, "tool_agent") for terms in held_out],
        "val_agent": [row(terms, AGENT, AGENT) for terms in held_out[: args.through_agent]],
    }
    for name, made in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in made))


def row(terms: str, source: str, loop: str | None = None) -> dict[str, Any]:
    """One to play, by the run's loop or by its own."""
    named = {"agent_name": loop} if loop else {}
    return {"data_source": source, "prompt": asked(terms), "ground_truth": result(terms), **named}


def asked(terms: str) -> list[dict[str, Any]]:
    """The task."""
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"What is {terms}?"}]


def result(terms: str) -> str:
    """As bash prints it."""
    return str(sum(map(int, terms.split(" + "))))


def demonstration(terms: str, sloppy: bool) -> dict[str, Any]:
    """A conversation in mini-swe-agent's format; a sloppy one submits a number of the question."""
    told = {"role": "tool", "tool_call_id": "call_0", "content": result(terms)}
    end = called(SUBMIT + (terms[0] if sloppy else result(terms)), 1)
    return {"messages": [*asked(terms), called(f"echo $(({terms}))", 0), told, end], "tools": [BASH]}


def called(command: str, number: int) -> dict[str, Any]:
    """The model's turn."""
    function = {"name": "bash", "arguments": {"command": command}}
    call = {"id": f"call_{number}", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def trained(args: argparse.Namespace, seed: int, loop: str) -> Ended:
    """A run of one loop. Held-out rows go through both where the agent is trained."""
    folder, run = args.out, args.out / f"{loop}-{seed}"
    if (run / "metrics.jsonl").exists():
        return ended(run / "metrics.jsonl")
    agents = f"rollout.agent.agent_loop_config_path={folder / 'agents.yaml'}"
    through_agent = [agents, f"rollout.agent.default_agent_loop={AGENT}"]
    val = [folder / "val.jsonl", *([folder / "val_agent.jsonl"] if loop == AGENT else [])]
    words = [
        "--config-name=tiny",
        f"model.path={folder / 'warm'}",
        f"data.train_files={folder / 'train.jsonl'}",
        f"data.val_files=[{','.join(map(str, val))}]",
        f"reward.custom_reward_function.path={folder / 'reward.py'}",
        "reward.custom_reward_function.name=compute_score",
        f"rollout.multi_turn.tool_config_path={folder / 'bash.yaml'}",
        "rollout.multi_turn.interaction_config_path=null",
        "rollout.multi_turn.max_assistant_turns=2",
        "actor.optim.lr=1e-4",  # half of the preset's: with few prompts a step, a run at the full rate may end at 0
        "rollout.deterministic=true",  # pairs of runs differ where the agent does, and by nothing else
        "rollout.max_model_len=160",
        "data.train_batch_size=4",
        "actor.ppo_mini_batch_size=4",
        f"trainer.total_training_steps={args.steps}",
        f"trainer.test_freq={max(1, args.steps // 2)}",
        f"trainer.val_before_train={str(loop == BUILT_IN).lower()}",
        "trainer.save_freq=-1",
        "trainer.device=cpu",
        f"trainer.default_local_dir={run}",
        *(f"{section}.seed={seed}" for section in ("trainer", "data", "rollout")),
        *(through_agent if loop == AGENT else []),
        *args.set,
    ]
    begun = time.monotonic()
    agentrl(folder, "train", *words)
    print(f"seed {seed}, {loop}: {time.monotonic() - begun:.0f} s", flush=True)
    return ended(run / "metrics.jsonl")


def agentrl(folder: Path, *words: str) -> None:
    """Run a command; its output is in the folder's log."""
    with (folder / "log.txt").open("ab") as log:
        done = subprocess.run([sys.executable, "-m", "agentrl", *words], stdout=log, stderr=subprocess.STDOUT)
    if done.returncode:
        sys.exit(f"agentrl {words[0]} failed: see {log.name}")


def ended(metrics: Path) -> Ended:
    """What the metrics of a run say."""
    lines = read_metrics(metrics)
    judged = {line["step"]: line[f"val/{BUILT_IN}/success"] for line in lines if f"val/{BUILT_IN}/success" in line}
    agents = [line[f"val/{AGENT}/success"] for line in lines if f"val/{AGENT}/success" in line]
    played = int(sum(line.get("rollout/trajectories", 0.0) for line in lines))
    seconds = sum(line.get("time/step", 0.0) for line in lines)
    nan = float("nan")
    return Ended(judged.get(0, nan), judged[max(judged)], agents[-1] if agents else nan, played, seconds)


def table(made: dict[tuple[int, str], Ended], args: argparse.Namespace) -> Table:
    """A row for each run, and the difference of the means."""
    title = f"{args.held_out} held-out rows, {args.steps} steps of 32 trajectories"
    shown = Table("seed", "trained through", "before", "after", f"through {AGENT}", "steps s", title=title)
    for (seed, loop), run in made.items():
        cells = (f"{value:.3f}" for value in (run.before, run.after, run.agent_after))
        shown.add_row(str(seed), loop, *cells, f"{run.seconds:.0f}")
    if len(args.loops) > 1:
        points = 100 * (mean_of(made, AGENT) - mean_of(made, BUILT_IN))
        shown.add_row("mean", f"{AGENT} over {BUILT_IN}", "", f"{points:+.1f} points", "", "")
    return shown


def mean_of(made: dict[tuple[int, str], Ended], loop: str) -> float:
    """Held-out success after training, over seeds."""
    found: Sequence[float] = [run.after for (_, name), run in made.items() if name == loop]
    return statistics.mean(found)


if __name__ == "__main__":
    main()
