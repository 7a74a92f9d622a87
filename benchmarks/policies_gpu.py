"""Two policies on one base with a real server: each trains its own adapter, and draws its tokens from that adapter.

    python benchmarks/policies_gpu.py MODEL --engines sglang vllm --set rollout.engine_python=$(which python3)
    python benchmarks/policies_gpu.py .cache/models/tiny-warm --engines hf --set trainer.device=cpu   # on a CPU

An agent program asks both by name. The buyer is rewarded for even token ids, the seller for odd ones, so the rewards
separate only where each adapter gets its own gradients, and the gap between engine and trainer stays small only where
the server draws from the adapter of the name and version that it says.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from gpu_parts import SGLANG, console, device_name
from rich.table import Table

from agentrl.tracking import read_metrics

AGENT = """
import httpx


async def play(openai_url, key, prompt):
    said, headers = [{"role": "user", "content": prompt}], {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(headers=headers, timeout=None, verify=False) as client:
        for name in ("buyer", "seller"):
            asked = {"model": name, "messages": said, "max_tokens": 32}
            (await client.post(f"{openai_url}/chat/completions", json=asked)).raise_for_status()
"""
REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info, trajectory):
    answers = [ledger.ids[ledger.prompt_length :] for ledger in trajectory.ledgers]
    even = [sum(token % 2 == 0 for token in answer) / len(answer) for answer in answers]
    return {"score": even[0], "buyer": even[0], "seller": 1 - even[1]}
"""
COLUMNS = {"buyer": "reward/buyer", "seller": "reward/seller", "gap": "rollout_gap/mean"}
COLUMNS |= {"gap, seller": "seller/rollout_gap/mean", "gap, max": "rollout_gap/max"}
COLUMNS |= {"violations": "rollout/ledger_violations", "sync, s": "time/sync", "rollout, s": "time/rollout"}


def main() -> None:
    """A run for each engine and bound; a table of the first and last step of each."""
    args = arguments()
    title = f"{args.model.name}, {device_name()}"
    table = Table("engine", "bound", "step", *COLUMNS, "ended", title=title)
    with tempfile.TemporaryDirectory() as folder:
        for engine, bound in product(args.engines, args.bounds):
            for row in measured(Path(folder) / f"{engine}-{bound}", engine, bound, args):
                table.add_row(engine, str(bound), *row)
    console.print(table)


def measured(folder: Path, engine: str, bound: int, args: argparse.Namespace) -> Iterator[list[str]]:
    """Rows of the table: first and last step of a run, or how it failed."""
    folder.mkdir()
    words = [
        sys.executable,
        "-m",
        "agentrl",
        "train",
        *settings(folder, engine, args),
        f"trainer.max_staleness={bound}",
    ]
    with (folder / "log.txt").open("w") as log:
        try:
            code = str(subprocess.run(words, stdout=log, stderr=log, timeout=args.limit).returncode)
        except subprocess.TimeoutExpired:
            code = f"after {args.limit:.0f} s"
    metrics = folder / "run/metrics.jsonl"
    steps = [step for step in read_metrics(metrics) if "reward/buyer" in step] if metrics.is_file() else []
    for step in (steps[0], steps[-1]) if steps else ():
        yield [str(int(step["step"])), *(f"{step.get(name, float('nan')):.4f}" for name in COLUMNS.values()), code]
    if code != "0":
        console.print((folder / "log.txt").read_text()[-3000:], markup=False, highlight=False)


def settings(folder: Path, engine: str, args: argparse.Namespace) -> list[str]:
    """A run's files, written to `folder`, and its settings."""
    (folder / "agent.py").write_text(AGENT)
    (folder / "agents.yaml").write_text("- name: two\n  python: agent.play\n")
    (folder / "reward.py").write_text(REWARD)
    rows = ({"prompt": [{"role": "user", "content": f"Write about the number {i}."}]} for i in range(400))
    given = {"data_source": "two", "reward_model": {"ground_truth": ""}}
    (folder / "rows.jsonl").write_text("".join(json.dumps(row | given) + "\n" for row in rows))
    served = [f"+rollout.engine_kwargs.sglang.{word}" for word in SGLANG] if engine == "sglang" and args.triton else []
    return [
        f"model.path={args.model}",
        "model.policies=[buyer,seller]",
        "model.lora_rank=16",
        "model.target_modules=[q_proj,v_proj,down_proj]",
        f"data.train_files={folder / 'rows.jsonl'}",
        "data.train_batch_size=16",
        "data.max_prompt_length=128",
        "data.max_response_length=32",
        "actor.ppo_mini_batch_size=16",
        "actor.optim.lr=1e-3",
        f"rollout.name={engine}",
        "rollout.n=8",
        "rollout.gpu_memory_utilization=0.3",
        f"rollout.agent.agent_loop_config_path={folder / 'agents.yaml'}",
        "rollout.agent.default_agent_loop=two",
        f"reward.custom_reward_function.path={folder / 'reward.py'}",
        "reward.custom_reward_function.name=compute_score",
        f"trainer.total_training_steps={args.steps}",
        f"trainer.default_local_dir={folder / 'run'}",
        "trainer.save_freq=-1",
        "trainer.live=false",
        *served,
        *args.set,
    ]


def arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="folder of a model with a chat template")
    parser.add_argument("--engines", nargs="+", default=["sglang", "vllm"], choices=("hf", "sglang", "vllm"))
    parser.add_argument("--bounds", type=int, nargs="+", default=[0, 2], help="trainer.max_staleness of the runs")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--limit", type=float, default=200, help="seconds of a run")
    parser.add_argument("--triton", action="store_true", help="SGLang without FlashAttention 3 and FlashInfer")
    parser.add_argument("--set", nargs="*", default=[], help="further settings of the runs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
