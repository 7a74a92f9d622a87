"""SIGKILL at random moments of runs that sample ahead: every finished trajectory is trained on exactly once.

    python benchmarks/killed_runs.py --times 5                                  # each kind of process five times
    python benchmarks/killed_runs.py --kinds server --times 1 --seed 7 --out runs/killed
    python benchmarks/killed_runs.py --raylets 2 --times 4                      # a machine, in each phase of a step

Each run is a tiny model on CPUs with `trainer.max_staleness=2`. Killed are: the controller of a run in one process; a
rank of two under Ray; a process that only samples there; a rollout worker of two there; an SGLang server (`agentrl
engine install sglang --cpu`). A killed controller is started again by the same command; the others recover within their
run. Then each trajectory in the dumps is counted by its key, and those that the newest checkpoint had finished when
the process died are compared token by token with those that were trained on. Costs about a minute for each kill on 2
quiet cores.

With `--raylets`, the ranks are on as many machines made of namespaces (needs root), and the last machine loses all its
processes in a certain phase of a step, or its network for `CUT` seconds; then it joins the cluster again.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from agentrl.tasks.models import tiny
from agentrl.tasks.models.tiny import TinyShape
from agentrl.tracking import load_trajectories, read_metrics
from agentrl.training.checkpoint.lineage import FOLDER, latest
from agentrl.trajectory.plain import from_plain
from agentrl.trajectory.row import Row
from agentrl_sandbox.isolation import descendants
from tests.machines import Machine, machines
from tests.raylets import TOKEN, Cluster
from tests.waiting import wait_for

STEPS, PROMPTS, GROUP, BOUND = 10, 4, 4, 2
RAY = ["trainer.device=cpu", "ray_init.address=local", "ray_init.num_cpus=4"]
KINDS = {
    "controller": ("", ["trainer.device=cpu"]),
    "rank": (r"^ray::Rank", [*RAY, "trainer.n_gpus_per_node=2"]),
    "engine worker": (r"^ray::EngineWorker", [*RAY, "rollout.nnodes=1"]),
    "rollout worker": (r"^ray::RolloutWorker", [*RAY, "trainer.n_gpus_per_node=2", "rollout.agent.num_workers=2"]),
    "server": (r"sglang", ["trainer.device=cpu", "rollout.name=sglang", "rollout.start_timeout=300"]),
}
"""Kind of process: its title, and the settings of a run that has it."""
MOMENTS = ("rollout", "update", "save", "sync", "partition")
"""What happens with `--raylets`: the phase in which a machine dies, or a partition at any moment."""
CUT = 100.0
REWARD = """
import asyncio
import os
import random
from pathlib import Path

from agentrl.tracking.phases import Phases

enter = Phases.__call__


def noted(self, name, *, tokens=0):
    Path(os.environ["PHASE_FILE"]).write_text(name)
    return enter(self, name, tokens=tokens)


if "PHASE_FILE" in os.environ:
    Phases.__call__ = noted


async def score(data_source, solution_str, ground_truth, **_):
    await asyncio.sleep(random.expovariate(4))
    return float(len(solution_str) % 3)
"""
"""Rewards that come out of order; the present phase is in a file."""
Finished = dict[str, list[list[int]]]
"""The token ids of trajectories, by key."""
console = Console(width=150)


@dataclass
class Kill:
    """What one kill came to."""

    kind: str
    moment: str = ""
    restarts: int = 0
    """Starts of the command after the first."""
    trained: Counter[str] = field(default_factory=Counter)
    """How often each key is in the dumps."""
    kept: int = 0
    """Trajectories that the newest checkpoint had finished at the kill."""
    changed: int = 0
    """Those of them that were not trained on as they were."""
    oldest: float = 0.0
    """Largest staleness."""
    note: str = ""

    def missing(self) -> int:
        """Trajectories of the run that were never trained on."""
        return STEPS * PROMPTS * GROUP - len(self.trained)

    def twice(self) -> int:
        """Those that were trained on more than once."""
        return sum(count > 1 for count in self.trained.values())


def agentrl(*words: str) -> list[str]:
    return [sys.executable, "-m", "agentrl", *words]


def prepare(folder: Path) -> None:
    """Rows, a model of a few thousand parameters and a reward function, once."""
    if (folder / "rows.jsonl").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "texts.txt").write_text("What is 2 + 3? The answer is 5.\n" * 50)
    shape = TinyShape(vocab_size=400, hidden_size=32, intermediate_size=64, num_hidden_layers=1)
    tiny.prepare(folder / "model", [folder / "texts.txt"], shape=shape)
    (folder / "reward.py").write_text(REWARD)
    rows = [{"prompt": [{"role": "user", "content": f"What is {i} + 1?"}], "data_source": "sums"} for i in range(12)]
    answers = [{"reward_model": {"ground_truth": str(i + 1)}} for i in range(12)]
    lines = [json.dumps(row | answer) + "\n" for row, answer in zip(rows, answers, strict=True)]
    (folder / "rows.jsonl").write_text("".join(lines))


def command(folder: Path, run: Path, settings: list[str]) -> list[str]:
    """The run's command: a resumed run has the same."""
    return agentrl(
        "train",
        f"model.path={folder / 'model'}",
        f"data.train_files={folder / 'rows.jsonl'}",
        f"data.train_batch_size={PROMPTS}",
        "data.max_prompt_length=128",
        "data.max_response_length=24",
        f"actor.ppo_mini_batch_size={PROMPTS}",
        f"rollout.n={GROUP}",
        f"reward.custom_reward_function.path={folder / 'reward.py'}",
        "reward.custom_reward_function.name=score",
        f"trainer.max_staleness={BOUND}",
        f"trainer.total_training_steps={STEPS}",
        f"trainer.default_local_dir={run}",
        "trainer.save_freq=1",
        "trainer.test_freq=-1",
        "trainer.max_actor_ckpt_to_keep=2",
        *settings,
    )


def kill_once(kind: str, folder: Path, run: Path, draw: random.Random, limit: float) -> Kill:
    """A run whose process of this kind dies at a random moment, and its end."""
    found, words, log = Kill(kind), command(folder, run, KINDS[kind][1]), run.with_suffix(".log")
    after, delay = draw.randrange(STEPS - 1), draw.uniform(0.0, 1.0)
    process = started(words, log)
    try:
        waited(process, run, after, limit)
        time.sleep(delay)
        victim = victim_of(process, kind)
        finished = finished_in(run)
        os.kill(victim, signal.SIGKILL)
        found.moment = f"in step {steps_of(run)}"
        code = process.wait(limit)
        while code and found.restarts < 3:
            found.restarts += 1
            process = started(words, log)
            code = process.wait(limit)
        found.note = f"exit code {code}" if code else ""
    except (subprocess.TimeoutExpired, LookupError) as error:
        found.note = str(error)[-60:]
        finished = {}
    finally:
        end(process)
    return counted(found, run, finished)


def kill_machine(moment: str, count: int, folder: Path, run: Path, draw: random.Random, limit: float) -> Kill:
    """A run over so many machines, the last of which dies in a phase, or loses its network; and its end."""
    found, log, phase = Kill(f"machine: {moment}"), run.with_suffix(".log"), run.with_suffix(".phase")
    phase.write_text("")
    after = draw.randrange(1, STEPS - 2)
    with machines(count) as nodes, tempfile.TemporaryDirectory() as logs:
        cluster = Cluster(Path(logs), nodes)
        cluster.head()
        for _ in nodes[1:]:
            cluster.join()
        settings = ["trainer.device=cpu", f"trainer.nnodes={count}", f"ray_init.address={cluster.address}"]
        words = nodes[0].words(*command(folder, run, settings))
        process = started(words, log, TOKEN | {"PHASE_FILE": str(phase)})
        finished: Finished = {}
        try:
            waited(process, run, after, limit)
            wait_for(lambda: moment == "partition" or phase.read_text() == moment, 60)
            found.moment = f"{phase.read_text()} of step {steps_of(run) + 1}"
            finished = finished_in(run)
            strike(nodes[-1], moment)
            cluster.join()
            code = process.wait(limit)
            found.note = f"exit code {code}" if code else ""
        except (subprocess.TimeoutExpired, LookupError, AssertionError) as error:
            found.note = str(error)[-60:]
        finally:
            end(process)
    found.restarts = log.read_text().count("the run resumes by itself")
    return counted(found, run, finished)


def strike(machine: Machine, moment: str) -> None:
    """End all processes of the machine, or take its network for CUT seconds, in which Ray gives it up."""
    if moment != "partition":
        machine.power_off()
        return
    machine.cut()
    time.sleep(CUT)
    machine.join()
    time.sleep(CUT / 5)


def started(words: list[str], log: Path, env: dict[str, str] | None = None) -> "subprocess.Popen[bytes]":
    with log.open("ab") as out:
        return subprocess.Popen(words, stdout=out, stderr=out, start_new_session=True, env=os.environ | (env or {}))


def end(process: "subprocess.Popen[bytes]") -> None:
    """Nothing of a run that hangs stays behind."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def waited(process: "subprocess.Popen[bytes]", run: Path, steps: int, limit: float) -> None:
    """Wait until so many steps are logged; without any, until the run has a folder. Raises LookupError."""
    last = time.monotonic() + limit
    while process.poll() is None and time.monotonic() < last:
        if run.exists() and steps_of(run) >= steps:
            return
        time.sleep(0.02)
    raise LookupError(f"ended before step {steps}: {process.poll()}")


def victim_of(process: "subprocess.Popen[bytes]", kind: str, limit: float = 120.0) -> int:
    """A process of the kind, as soon as there is one. Raises LookupError."""
    title, last = KINDS[kind][0], time.monotonic() + limit
    while process.poll() is None and time.monotonic() < last:
        if not title:
            return process.pid
        if found := [pid for pid in descendants(process.pid) if re.search(title, title_of(pid))]:
            return random.choice(found)
        time.sleep(0.05)
    raise LookupError(f"no {kind} to kill: {process.poll()}")


def title_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def steps_of(run: Path) -> int:
    """Steps in the metrics."""
    file = run / "metrics.jsonl"
    return file.read_text().count("\n") if file.exists() else 0


def finished_in(run: Path) -> Finished:
    """The trajectories in the queue of the newest checkpoint."""
    for _ in range(5):
        newest = latest(run / FOLDER)
        try:
            return dict(queued(torch.load(newest / "state.pt", weights_only=True)["rows"])) if newest else {}
        except OSError:  # a newer one has taken its place
            continue
    return {}


def queued(rows: dict[str, Any]) -> Iterator[tuple[str, list[list[int]]]]:
    """Of the stream's state: keys and tokens of what is finished and not trained on."""
    for batch in rows.get("queue", ()):
        for plain in batch["finished"].values():
            trajectory = from_plain(plain, Row("", []), [])
            yield trajectory.key, [list(ledger.ids) for ledger in trajectory.ledgers]


def counted(found: Kill, run: Path, finished: Finished) -> Kill:
    """With what the dumps say."""
    tokens: Finished = {}
    for dump in (run / "rollouts").glob("*.jsonl"):
        for record in load_trajectories(dump):
            found.trained[record["key"]] += 1
            tokens[record["key"]] = [list(sample["columns"]["ids"]) for sample in record["samples"]]
    found.kept = len(finished)
    found.changed = sum(tokens.get(key) != ids for key, ids in finished.items())
    lines = read_metrics(run / "metrics.jsonl") if (run / "metrics.jsonl").exists() else []
    found.oldest = max((line.get("staleness/max", 0.0) for line in lines), default=0.0)
    return found


def table(kills: list[Kill]) -> Table:
    """A row for each kill."""
    title = f"{STEPS} steps of {PROMPTS} x {GROUP} trajectories, bound {BOUND}, a SIGKILL in each run"
    columns = ("killed", "moment", "restarts", "trained", "missing", "twice", "kept", "changed", "oldest", "")
    shown = Table(*columns, title=title)
    for kill in kills:
        numbers = kill.restarts, len(kill.trained), kill.missing(), kill.twice(), kill.kept, kill.changed
        shown.add_row(kill.kind, kill.moment, *map(str, numbers), f"{kill.oldest:.0f}", kill.note)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--raylets", type=int, default=0, help="kill machines, of so many, in place of processes")
    parser.add_argument("--moments", nargs="+", choices=MOMENTS, default=list(MOMENTS), help="with --raylets: when")
    parser.add_argument("--times", type=int, default=5, help="kills of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=240, help="seconds of a run")
    parser.add_argument("--out", type=Path, default=Path("runs/killed"))
    args = parser.parse_args()
    folder = args.out.resolve()
    prepare(folder)
    kills = []
    for kind in args.moments if args.raylets else args.kinds:
        for i in range(args.seed, args.seed + args.times):
            draw, run = random.Random(f"{kind} {i}"), folder / f"{kind.replace(' ', '-')}-{i}"
            if args.raylets:
                kills.append(kill_machine(kind, args.raylets, folder, run, draw, args.limit))
            else:
                kills.append(kill_once(kind, folder, run, draw, args.limit))
            console.print(table(kills[-1:]))
    console.print(table(kills))
    sys.exit(any(kill.missing() or kill.twice() or kill.changed or kill.note for kill in kills))


if __name__ == "__main__":
    main()
