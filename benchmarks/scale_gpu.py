"""Several GPUs in one run of at most 25 minutes: one table of all that one and two GPUs cannot show.

    python benchmarks/scale_gpu.py --gpus 8 --out FOLDER                     # all parts
    python benchmarks/scale_gpu.py --gpus 2 --limit 400 --out FOLDER         # the first runs of each part
    python benchmarks/scale_gpu.py --gpus 2 --tiny                           # on CPU processes, to see that it runs

Parts, each a list of runs of `agentrl train` with random weights and nothing set but model, batch, lengths and places:

- `dense`: Qwen3-1.7B's shape and an 8B one; a step by phase, MFU, sync and start at 1, 2, 4, 8 ranks, with the same
  batch and with one that grows;
- `apart`: trainer and servers on half of the GPUs each, bound 0 and 4; --sessions replays recorded agent sessions;
- `experts`: Qwen3-30B-A3B (whole on 8 GPUs, 24 layers on 4, 8 on 2) with servers over several GPUs, expert parallel 1
  and all, routing replayed or not;
- `hybrid`: updates of a Qwen3.5 shape with sequences of 32k tokens split over all GPUs (Ulysses);
- `killed`: a rank, then a server dies in a step.

Runs begin part by part in turns, so that a short --limit has the first of each; runs that need fewer GPUs than are free
run side by side. Each has a limit; one that fails is a line, and what it measured until then stays. Beside each step is
`agentrl plan`'s forecast, beside each peak the doctor's. FOLDER has figures.json and all logs.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

from gpu_parts import SGLANG, console, median
from gpu_training import Work, last_line, settings, write_rows
from rich.table import Table

HERE = Path(__file__).resolve().parent
SHAPES = json.loads((HERE / "shapes.json").read_text())
TINY = {"hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 32, "head_dim": 16, "num_hidden_layers": 2}
TINY |= {"num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 8, "num_experts_per_tok": 2}
TINY |= {"vocab_size": 1100}
SERVERS = ("agentrl_standby", "launch_server", "api_server")
"""Words in the command lines of servers."""
PARTS = ("dense", "apart", "killed", "experts", "hybrid")
LEAST = {"cuda": 60.0, "cpu": 15.0}
"""Seconds that a run needs to have a step."""
FIGURES = {
    "step, s": "{:.2f}", "plan": "{:.2f}", "rollout": "{:.2f}", "update": "{:.2f}", "plan ": "{:.2f}", "sync": "{:.3f}",
    "MFU": "{:.3f}", "tokens/s": "{:,.0f}", "start, s": "{:.0f}", "GiB": "{:.1f}", "doctor": "{:.1f}", "gap": "{:.4f}",
    "age": "{:.1f}", "idle": "{:.2f}", "waits": "{:.2f}", "CPU s": "{:.2f}", "RSS": "{:.1f}", "faults": "{:.0f}",
}  # fmt: skip
"""Columns: `plan` after a figure is its forecast; `age` of tokens, `idle` share of the engine, `waits` share of the
trainer; CPU seconds a step and GiB of the controller; ledger violations, steps lost or trained twice."""
Figures = dict[str, Any]
WORK = Work()


@dataclass(frozen=True)
class Case:
    """A run."""

    part: str
    name: str
    gpus: int
    settings: tuple[str, ...] = ()
    model: str = "Qwen3-1.7B"
    work: Work = WORK
    steps: int = 3
    kills: tuple[str, ...] = ()
    """Words in the command lines of processes, one of which is killed in the step after the second."""

    @property
    def title(self) -> str:
        return f"{self.part}: {self.name}"

    @property
    def folder(self) -> str:
        return self.title.replace(": ", "-").replace(" ", "-").replace(",", "")


def cases(args: argparse.Namespace) -> list[Case]:
    """All runs, the first ones of all parts first."""
    made: dict[str, list[Case]] = {part: [] for part in PARTS}
    work = Work(4, 2, 64, 8) if args.tiny else WORK
    for case in made_cases(args, work):
        made[case.part].append(case)
    turns = zip_longest(*(made[part] for part in args.parts))
    todo = [case for turn in turns for case in turn if case]
    return [case for word in args.only for case in todo if word == case.title] if args.only else todo


def made_cases(args: argparse.Namespace, work: Work) -> Iterator[Case]:
    """The runs of each part, the most important first."""
    most = args.gpus
    on = {n: (f"trainer.n_gpus_per_node={n}",) for n in (1, 2, 4, 8)}
    counts = [n for n in (1, 2, 4, 8) if n < most]
    yield Case("dense", f"1.7B on {most}", most, on[most], work=work)
    for n in counts:
        yield Case("dense", f"1.7B on {n}", n, on[n], work=work)
    grown = Work(work.prompts * most, work.group, work.prompt_tokens, work.new_tokens)
    yield Case("dense", f"1.7B on {most}, {most} times the batch", most, on[most], work=grown)
    yield Case("dense", f"8B on {most}", most, on[most], "Qwen3-8B", work)
    half = max(most // 2, 1)
    apart = (f"trainer.n_gpus_per_node={half}", "rollout.nnodes=1", f"rollout.n_gpus_per_node={half}")
    for bound in (4, 0) if most > 1 else ():
        steps = 3 + 2 * bound
        yield Case(
            "apart", f"bound {bound}", 2 * half, (*apart, f"trainer.max_staleness={bound}"), "Qwen3-1.7B", work, steps
        )
    tensor = 4 if most >= 4 else most
    servers = (*on[most], f"rollout.tensor_model_parallel_size={tensor if args.device == 'cuda' else 1}")
    split = "actor.fsdp_config.expert_parallel_size"
    for size, mode in dict.fromkeys(((most, "disabled"), (1, "disabled"), (most, "R3"))):
        more = (*servers, f"{split}={size}", f"actor.router_replay.mode={mode}")
        yield Case("experts", f"by {size}{', replayed' * (mode == 'R3')}", most, more, "Qwen3-30B-A3B", work)
    yield Case("hybrid", f"32k tokens on {most}", most)
    saved = (*on[most], "trainer.save_freq=1", "trainer.max_restarts=2")
    yield Case("killed", "a rank", most, saved, work=work, steps=6, kills=("ray::Rank",))
    if args.engine != "hf":
        yield Case("killed", "a server", most, saved, work=work, steps=6, kills=SERVERS)


class Bench:
    """The runs, on the GPUs that are free."""

    def __init__(self, args: argparse.Namespace, out: Path) -> None:
        self.args, self.out, self.end = args, out, time.time() + args.limit
        self.figures: dict[str, Figures] = {}
        self.models: dict[str, Path] = {}

    def run_all(self, todo: list[Case]) -> None:
        """Start each run when its GPUs are free; those for which no time is left are lines too."""
        free, running = set(range(self.args.gpus)), dict[Future[Figures], tuple[Case, set[int]]]()
        with ThreadPoolExecutor(max_workers=self.args.gpus) as pool:
            while todo or running:
                while todo and todo[0].gpus <= len(free) and (self.args.side_by_side or not running):
                    case = todo.pop(0)
                    own = set(sorted(free)[: case.gpus])
                    free -= own
                    running[pool.submit(self.measure, case, sorted(own))] = case, own
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    case, own = running.pop(future)
                    free |= own
                    self.keep(case, future.result())

    def keep(self, case: Case, found: Figures) -> None:
        """Print a run's figures and write all."""
        self.figures[case.title] = found
        (self.out / "figures.json").write_text(json.dumps(self.figures, indent=1))
        shown = {name: round(value, 4) if isinstance(value, float) else value for name, value in found.items()}
        console.print(f"[{self.end - time.time():.0f} s left] {case.title}", shown, highlight=False)

    def measure(self, case: Case, gpus: list[int]) -> Figures:
        """The figures of a run, or its failure."""
        left = self.end - time.time()
        if left < LEAST[self.args.device]:
            return {"failed": "no time left"}
        folder, found = self.out / case.folder, Figures()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            env = (
                os.environ | {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))} if self.args.device == "cuda" else None
            )
            limit = min(left, self.args.run_limit * (2 if case.part == "experts" else 1))
            if case.part == "hybrid":
                return child(["hybrid", str(folder)], self.args, folder, limit, env)
            self.trained(case, folder, limit, env, found)
        except Exception as error:  # the other runs go on
            found["failed"] = f"{type(error).__name__}: {error}"[:160]
        return found

    def trained(self, case: Case, folder: Path, limit: float, env: dict[str, str] | None, found: Figures) -> None:
        """Train; what was measured is in `found`, also where the rest fails."""
        begun, model = time.time(), self.model_of(case.model)
        words = self.words(case, model, folder)
        (folder / "command.txt").write_text(" ".join(["agentrl train", *words]) + "\n")
        found |= forecast(case, words, self.args)
        watched = watch(case, words, folder, limit - (time.time() - begun), env or dict(os.environ))
        lines = metrics_of(folder)
        found |= figures(case, lines, watched)
        if found.get("steps", 0) < case.steps:
            found["failed"] = last_line(folder / "log.txt", f"exit code {watched['code']}")[:160]

    def model_of(self, name: str) -> Path:
        """A model of random weights, made by a process that gives its memory back."""
        if name not in self.models:
            folder = (self.args.models or self.out / "models") / name
            if not (folder / "tokenizer_config.json").exists():
                made = child(["model", str(folder), name], self.args, self.out, 300, None)
                if "failed" in made:
                    raise RuntimeError(f"no model: {made['failed']}")
            self.models[name] = folder
        return self.models[name]

    def words(self, case: Case, model: Path, folder: Path) -> list[str]:
        """The settings of a run."""
        from transformers import AutoTokenizer

        args, rows = self.args, folder / "rows.jsonl"
        write_rows(rows, AutoTokenizer.from_pretrained(model), case.work, case.steps + 6)
        words = settings(case.work, rows, folder / "run", model=model, engine=args.engine, steps=case.steps)
        words += [f"trainer.device={args.device}", "ray_init.address=local", "trainer.live=false"]
        words += [f"+rollout.engine_kwargs.sglang.{flag}" for flag in SGLANG if args.triton]
        words += ["ray_init.num_cpus=8"] if args.tiny else []
        if args.sessions and case.part == "apart":
            words += self.recorded(folder)
        return [*words, *case.settings, *args.set]

    def recorded(self, folder: Path) -> list[str]:
        """Settings under which recorded sessions are the load, reduced as in stragglers_gpu.py."""
        every, tokens, seconds = (32, 0.02, 0.005) if self.args.tiny else (16, 0.12, 0.02)
        file, read = folder / "recorded_load.py", f"every={every}, tokens={tokens}, seconds={seconds}"
        text = "from pathlib import Path\n\nfrom replayed_sessions import SESSIONS, Replay\n\n"
        file.write_text(f'{text}SESSIONS.read(Path("{self.args.sessions.resolve()}"), {read})\n')
        longest = int(
            child(["longest", str(file)], self.args, folder, 60, {**os.environ, "PYTHONPATH": paths(folder)})["n"]
        )
        words = ["rollout.agent.default_agent_loop=recorded_load.Replay", f"data.max_response_length={longest}"]
        return [*words, "rollout.ignore_eos=false", "rollout.max_model_len=null", "data.filter_overlong_prompts=false"]


def paths(folder: Path) -> str:
    """Where Python looks for a run's own modules, and for this checkout's."""
    return os.pathsep.join(filter(None, [str(folder), str(HERE), os.environ.get("PYTHONPATH")]))


def watch(case: Case, words: list[str], folder: Path, limit: float, env: dict[str, str]) -> Figures:
    """Run the command until it ends, or for `limit` seconds; times of steps, kills, the controller's CPU and memory."""
    steps, found, begun = folder / "run/metrics.jsonl", Figures(ends=[], cpu=[], rss=0.0, killed=None), time.time()
    command = [sys.executable, "-W", "ignore", "-m", "agentrl", "train", *words]
    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=env | {"PYTHONPATH": paths(folder)},
            start_new_session=True,
        )
        try:
            while process.poll() is None and time.time() - begun < limit:
                lines = steps.read_bytes().count(b"\n") if steps.exists() else 0
                seconds, rss = used(process.pid)
                found["rss"] = max(found["rss"], rss)
                if lines > len(found["ends"]):
                    found["ends"] += [time.time() - begun] * (lines - len(found["ends"]))
                    found["cpu"].append(seconds)
                if lines >= case.steps:
                    break  # an export follows
                if case.kills and found["killed"] is None and lines >= 2:
                    time.sleep(1.0)  # into the next step
                    found["killed"] = kill_one(process.pid, case.kills, begun)
                time.sleep(0.05)
        finally:
            found["code"] = process.poll()
            stop(process)
    return found


def stop(process: "subprocess.Popen[bytes]") -> None:
    """End what is left of a run: Ray's processes too, which have sessions of their own."""
    from agentrl_sandbox.isolation import descendants

    left = descendants(process.pid) if process.poll() is None else []
    for pid in [process.pid, *left]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()


def used(pid: int) -> tuple[float, float]:
    """CPU seconds and GiB of a process."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0, 0.0
    ticks = os.sysconf("SC_CLK_TCK")
    return (int(words[11]) + int(words[12])) / ticks, int(words[21]) * os.sysconf("SC_PAGE_SIZE") / 2**30


def kill_one(pid: int, words: tuple[str, ...], begun: float) -> float | None:
    """SIGKILL to the last process below `pid` whose command line has one of the words; when, or None: none has."""
    from agentrl_sandbox.isolation import descendants

    for child_pid in reversed(list(descendants(pid))):
        try:
            line = Path(f"/proc/{child_pid}/cmdline").read_text()
        except OSError:
            continue
        if any(word in line for word in words):
            os.kill(child_pid, signal.SIGKILL)
            return time.time() - begun
    return None


def metrics_of(folder: Path) -> list[dict[str, float]]:
    """The lines of a run's metrics, also of steps that a restart takes again."""
    file = folder / "run/metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def figures(case: Case, lines: list[dict[str, float]], watched: Figures) -> Figures:
    """Figures of a run: medians over the steps after the first; with a bound, after those that fill the window."""
    lines = [line for line in lines if "time/step" in line]
    if not lines:
        return {"failed": "no step"}
    usual = lines[min(len(lines) - 1, 1 if case.part != "apart" else len(lines) // 2) :]

    def middle(name: str) -> Figures:
        values = [line[name] for line in usual if name in line]
        return {names[name]: median(values)} if values else {}

    names = {"time/step": "step, s", "time/rollout": "rollout", "time/update": "update", "time/logprobs": "logprobs"}
    names |= {"time/sync": "sync", "perf/update_mfu": "MFU", "rollout_gap/mean": "gap", "staleness/mean": "age"}
    names |= {"perf/engine_idle_share": "idle", "perf/trainer_wait_share": "waits", "batch/tokens": "tokens"}
    found = {key: value for name in names for key, value in middle(name).items()}
    seconds = found["step, s"]
    found["tokens/s"] = found.get("tokens", 0.0) / seconds
    found["sync share"] = found.get("sync", 0.0) / seconds
    found["start, s"] = watched["ends"][0]
    peaks = [line["perf/update_peak_cuda_gb"] for line in lines if "perf/update_peak_cuda_gb" in line]
    found |= {"GiB": max(peaks)} if peaks else {}
    cpu = watched["cpu"]
    found["CPU s"] = (cpu[-1] - cpu[0]) / max(len(cpu) - 1, 1)
    found["RSS"] = watched["rss"]
    numbers = [round(line["step"]) for line in lines]
    lost = len(set(range(1, max(numbers) + 1)) - set(numbers)) + len(numbers) - len(set(numbers))
    found["faults"] = lost + sum(line.get("rollout/ledger_violations", 0.0) for line in lines)
    found["steps"] = len(lines)
    if case.kills:
        killed, ends = watched["killed"], watched["ends"]
        later = [killed, *(end for end in ends if end > killed)] if killed else []
        found["recovered, s"] = max((b - a for a, b in pairwise(later)), default=None)
    return found


def forecast(case: Case, words: list[str], args: argparse.Namespace) -> Figures:
    """What `agentrl plan` and the doctor say of a run; they stand beside it, and stop nothing."""
    try:
        from agentrl.config import compose
        from agentrl.config.schema import Config
        from agentrl.doctor.forecast import Layout
        from agentrl.doctor.memory import GIB, parts, size_of
        from agentrl.doctor.speeds import STORED
        from agentrl.training import device_for

        config: Config = compose(words, checks=())
        layout = Layout(config, size_of(config), STORED[args.gpu], lengths=1.0)
        seconds = layout.seconds()
        room = layout.speeds.memory * GIB
        memory = parts(layout.config, layout.size, layout.ranks, device_for(args.device), room)
        return {"plan": seconds["step"], "plan ": seconds["update"], "doctor": sum(memory.values())}
    except Exception as error:
        return {"forecast failed": f"{type(error).__name__}: {error}"[:100]}


def child(words: list[str], args: argparse.Namespace, folder: Path, limit: float, env: Any) -> Figures:
    """What a process of this script found; its last line where it fails."""
    out, log = folder / f"{words[0]}.json", folder / f"{words[0]}.txt"
    given = ["--gpus", str(args.gpus), "--device", args.device, *(["--tiny"] if args.tiny else [])]
    command = [sys.executable, str(HERE / "scale_gpu.py"), *given, "--child", str(out), *words]
    with log.open("w") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream, env=env, start_new_session=True)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with its ranks
            return {"failed": f"not ready after {limit:.0f} s"}
    return json.loads(out.read_text()) if code == 0 else {"failed": last_line(log, "no message")}


def random_model(folder: str, name: str, args: argparse.Namespace) -> Figures:
    """Write a model, block by block, with a small tokenizer."""
    import torch
    from gpu_prepare import tokenizer_of
    from loading import write_files
    from transformers import CONFIG_MAPPING

    sizes = dict(SHAPES[name])
    layers = {8: 48, 4: 24}.get(args.gpus, 8)
    sizes |= {"num_hidden_layers": layers} if name == "Qwen3-30B-A3B" else {}
    sizes |= TINY if args.tiny else {}
    tokenizer = tokenizer_of("")
    config = CONFIG_MAPPING[sizes.pop("model_type")](
        **sizes, bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    config.dtype = torch.bfloat16
    Path(folder).mkdir(parents=True, exist_ok=True)
    size = write_files(config, Path(folder), torch.device(args.device))
    tokenizer.save_pretrained(folder)
    return {"bytes": size}


def hybrid(folder: str, args: argparse.Namespace) -> Figures:
    """Updates of a hybrid whose sequences are split over all ranks."""
    from experts_gpu import in_processes
    from models_gpu import HYBRID
    from models_gpu import TINY as SMALL

    options = argparse.Namespace(**vars(args), pass_tokens=32768, checkpointing=True, steps=2)
    options.shape = HYBRID | (SMALL | {"num_experts_per_tok": 2} if args.tiny else {})
    options.length = 512 if args.tiny else 32768
    options.split = args.gpus
    return in_processes(split_sequences, options, 1, True)


def split_sequences(args: Any, size: int, compiled: bool, ranks: Any, device: Any) -> Figures:
    """Figures of updates of two sequences on these ranks, which are a sequence group."""
    import statistics

    import torch
    from gpu_parts import random_batch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM
    from update_gpu import timed

    from agentrl.config.schema import Actor, Optim
    from agentrl.config.schema.fsdp import FsdpConfig
    from agentrl.training import PolicyActor
    from agentrl.training.batches.outline import BatchOutline
    from agentrl.training.model.handle import ModelHandle
    from agentrl.training.parallel.sharding import load_on_ranks
    from agentrl.training.perf.flops import model_flops, peak_flops

    sizes = dict(args.shape)
    config = CONFIG_MAPPING[sizes.pop("model_type")](**sizes)

    def load(where: torch.device) -> ModelHandle:
        torch.manual_seed(0)
        with where if where.type == "meta" else device:
            module = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        return ModelHandle(module.to(where).eval())

    model = load_on_ranks(load, ranks, FsdpConfig(), device=device, compiled=False)
    actor = Actor(ppo_max_token_len_per_gpu=args.length, optim=Optim(lr=1e-6))
    policy = PolicyActor(model, actor=actor, temperature=1.0, device=device, total_steps=100, ranks=ranks)
    batch = random_batch([args.length] * 2, config.vocab_size, torch.Generator().manual_seed(0)).to(device)
    own = batch.share(policy.assign_shares(BatchOutline.of(batch))[ranks.data_rank])
    first = policy.update(own)["actor/grad_norm"]
    seconds = statistics.median(timed(lambda: policy.update(own)["actor/grad_norm"], device) for _ in range(args.steps))
    needed, peak = (
        model_flops(model.whole_shapes, config).update(batch.lengths, int(batch.mask.sum())),
        peak_flops(device),
    )
    found = {"update": seconds, "tokens/s": batch.num_tokens / seconds, "first norm": float(first)}
    found |= {"MFU": needed / seconds / peak / ranks.world} if peak else {}
    return found | ({"GiB": torch.cuda.max_memory_allocated() / 2**30} if device.type == "cuda" else {})


def longest(file: str, args: argparse.Namespace) -> Figures:
    """Tokens of the longest recorded session after its prompt."""
    import runpy

    return {"n": runpy.run_path(file)["SESSIONS"].longest()}


CHILDREN: dict[str, Callable[..., Figures]] = {"model": random_model, "hybrid": hybrid, "longest": longest}


def table(bench: Bench, title: str) -> Table:
    """All runs."""
    found = Table("run", *FIGURES, "", title=title)
    for name, row in bench.figures.items():
        numbers = {column: row.get(column) for column in FIGURES}
        cells = [FIGURES[c].format(v) if isinstance(v, int | float) else "" for c, v in numbers.items()]
        notes = [
            f"{key} {row[key]}" for key in ("failed", "recovered, s", "forecast failed") if row.get(key) is not None
        ]
        found.add_row(name, *cells, "; ".join(notes)[:90])
    return found


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=8, choices=(1, 2, 4, 8))
    parser.add_argument("--gpu", default="h100", choices=("h100", "h200"), help="whose speeds the forecast takes")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument(
        "--only", nargs="+", metavar="TITLE", help="these runs in this order, such as 'dense: 1.7B on 4'"
    )
    parser.add_argument("--limit", type=float, default=1500, help="seconds in all")
    parser.add_argument("--run-limit", type=float, default=150, help="seconds of a run; twice that for experts")
    parser.add_argument("--sessions", type=Path, help="recorded agent sessions, the load of `apart`")
    parser.add_argument("--engine", default="sglang", choices=("sglang", "vllm", "hf"))
    parser.add_argument("--triton", action="store_true", help="SGLang without FlashAttention 3 and FlashInfer")
    parser.add_argument("--set", nargs="+", default=[], help="more settings of all runs")
    parser.add_argument("--side-by-side", action=argparse.BooleanOptionalAction, default=None)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small models and little work on CPU processes")
    parser.add_argument("--models", type=Path, help="folder that keeps random models for the next call")
    parser.add_argument("--out", type=Path, help="folder for figures and logs; default: a temporary one")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.tiny:
        args.device, args.engine = "cpu", "hf"
    args.side_by_side = not args.tiny if args.side_by_side is None else args.side_by_side
    return args


def main() -> None:
    args = arguments()
    if args.child:
        out, kind, *given = args.child
        Path(out).write_text(json.dumps(CHILDREN[kind](*given, args)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        out = (args.out or Path(temporary)).resolve()
        out.mkdir(parents=True, exist_ok=True)
        bench = Bench(args, out)
        begun = time.time()
        try:
            bench.run_all(cases(args))
        finally:
            kind = "CPU processes" if args.device == "cpu" else args.gpu.upper()
            console.width = 220
            console.print(table(bench, f"{args.gpus} {kind}, {time.time() - begun:.0f} s"))


if __name__ == "__main__":
    main()
