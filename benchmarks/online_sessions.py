"""1,000 sessions of a deployed agent over two SIGKILLs of the trainer: none is lost, none is trained on twice.

    python benchmarks/online_sessions.py                        # about 6 minutes on 2 quiet cores
    python benchmarks/online_sessions.py --sessions 100 --kills 2 --out runs/online

Each client holds one to three conversations through the openai SDK, rewards single answers and the whole, some before
the end and some after it; some give no reward. A client that finds no trainer asks again. Then the journals, the dumps
of what was trained on and the answers that the clients got are compared, token by token.
"""

import argparse
import asyncio
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
from rich.console import Console
from rich.table import Table

from agentrl.gateway.journal import lines
from agentrl.tasks.models import tiny
from agentrl.tasks.models.tiny import TinyShape
from agentrl.tracking import load_trajectories, read_metrics

BATCH, AT_ONCE, UNREWARDED, LIMIT = 20, 64, 0.05, 30
console = Console(width=150)


@dataclass
class Client:
    """A session as its client saw it."""

    name: str
    answers: list[str] = field(default_factory=list)
    """Ids."""
    rewarded: bool = True


def started(folder: Path, steps: int, port: int, ahead: int) -> "subprocess.Popen[bytes]":
    words = {
        "model.path": folder / "model",
        "data.train_files": f"sessions:{port}",
        "data.train_batch_size": BATCH,
        "actor.ppo_mini_batch_size": BATCH,
        "algorithm.adv_estimator": "reinforce_plus_plus",
        "rollout.n": 1,
        "rollout.max_model_len": 400,
        "rollout.agent.agent_loop_config_path": folder / "agents.yaml",
        "data.max_prompt_length": 128,
        "data.max_response_length": 16,
        "trainer.device": "cpu",
        "trainer.total_training_steps": steps,
        "trainer.max_staleness": ahead,
        "trainer.save_freq": 4,
        "trainer.default_local_dir": folder / "run",
        "trainer.rollout_data_dir": folder / "run/rollouts",
    }
    given = [f"{key}={value}" for key, value in words.items()]
    with (folder / "log.txt").open("ab") as log:
        return subprocess.Popen([sys.executable, "-m", "agentrl", "train", *given], stdout=log, stderr=log)


def steps_of(folder: Path) -> int:
    file = folder / "run/metrics.jsonl"
    return int(read_metrics(file)[-1]["step"]) if file.exists() and file.stat().st_size else 0


async def trained(folder: Path, steps: int, at: list[int], port: int, ahead: int, draw: random.Random) -> list[int]:
    """Run the trainer to its end; gives the steps at which it was killed. `at`: from which on it is, in their order."""
    killed: list[int] = []
    process = started(folder, steps, port, ahead)
    while process.poll() is None:
        await asyncio.sleep(0.05)
        if at and steps_of(folder) >= at[0]:
            await asyncio.sleep(draw.uniform(0, 1))
            process.send_signal(signal.SIGKILL)
            process.wait()
            killed.append(steps_of(folder))
            del at[0]
            process = started(folder, steps, port, ahead)
    if process.returncode:
        raise SystemExit(f"the trainer ended with code {process.returncode}: {folder / 'log.txt'}")
    return killed


async def insisted(call: Any) -> Any:
    """The result of a call, which is repeated while there is no trainer."""
    while True:
        try:
            return await call()
        except (openai.APIConnectionError, openai.InternalServerError, httpx.TransportError):
            await asyncio.sleep(0.5)


async def hold(client: Client, port: int, draw: random.Random, http: httpx.AsyncClient) -> None:
    """Hold the conversations of one session."""
    sdk = openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{port}/v1",
        api_key=client.name,
        http_client=http,  # type: ignore[arg-type]  # the SDK takes clients of httpx too
        max_retries=1,
    )
    chosen = draw.random() < 0.5
    for conversation in range(draw.randint(1, 3)):
        said: list[Any] = [{"role": "user", "content": f"What is {conversation} + 3?"}]
        for _ in range(draw.randint(1, 3)):
            answer = await insisted(lambda said=said: sdk.chat.completions.create(model="m", messages=said))
            client.answers.append(answer.id)
            said += [answer.choices[0].message.model_dump(exclude_none=True), {"role": "user", "content": "Sure?"}]
            await asyncio.sleep(draw.expovariate(4))
        if chosen and client.rewarded:
            await post(http, port, client, "rewards", answer=client.answers[-1], reward=draw.random())
    late = client.rewarded and not chosen
    await post(http, port, client, "end", **({"reward": draw.random()} if client.rewarded and not late else {}))
    if late:
        await asyncio.sleep(draw.expovariate(1))
        await post(http, port, client, "rewards", reward=draw.random())


async def post(http: httpx.AsyncClient, port: int, client: Client, path: str, **body: Any) -> None:
    url, headers = f"http://127.0.0.1:{port}/s/{client.name}/{path}", {"Content-Type": "application/json"}
    answer = await insisted(lambda: http.post(url, json=body, headers=headers))
    if answer.status_code not in (200, 404):  # 404: it counted before the trainer was killed
        raise SystemExit(f"{client.name}: {path}: {answer.status_code} {answer.text}")


def kills_at(steps: int, kills: int, late: bool) -> list[int]:
    """The steps at which to kill the trainer: spread over the run, or its last ones."""
    return [steps - kills + i if late else steps * (i + 1) // (kills + 1) for i in range(kills)]


async def measured(folder: Path, sessions: int, at: list[int], port: int, ahead: int, seed: int) -> None:
    draw = random.Random(seed)
    clients = [Client(f"user-{i}", rewarded=True) for i in range(sessions)]
    clients += [Client(f"silent-{i}", rewarded=False) for i in range(int(sessions * UNREWARDED))]
    draw.shuffle(clients)
    slots, begun = asyncio.Semaphore(AT_ONCE), time.monotonic()

    async def held(client: Client) -> None:
        async with slots:
            await hold(client, port, random.Random(f"{seed}/{client.name}"), http)

    steps = sessions // BATCH
    async with httpx.AsyncClient(timeout=120) as http:
        training = asyncio.create_task(trained(folder, steps, at, port, ahead, draw))
        everyone = asyncio.gather(*map(held, clients))
        both: list[asyncio.Future[Any]] = [training, everyone]
        await asyncio.wait(both, return_when=asyncio.FIRST_EXCEPTION)
        killed = await training
        await everyone
    show(folder, clients, killed, time.monotonic() - begun)


def show(folder: Path, clients: list[Client], killed: list[int], seconds: float) -> None:
    """Compare what was trained on with journals and clients."""
    dumps = sorted((folder / "run/rollouts").glob("*.jsonl"), key=lambda file: int(file.stem))
    records = [record for file in dumps for record in load_trajectories(file)]
    journals = {file.name: file for file in (folder / "run/sessions/taken").glob("*/*")}
    times = Counter(record["extra"]["session"] for record in records)
    wanted = {client.name for client in clients if client.rewarded}
    unseen = changed = tokens = 0
    for record in records:
        turns = [line for line in lines(journals[record["extra"]["session"]]) if "turn" in line]
        drawn = sorted(tuple(line["turn"]["sampled"]["ids"]) for line in turns)
        kept = sorted(runs(record["samples"]))
        changed += drawn != kept
        tokens += sum(map(len, kept))
    for client in clients:
        if client.name in journals:
            names = [line["about"]["name"] for line in lines(journals[client.name]) if "about" in line]
            unseen += sum(answer.rpartition("-")[2] not in names for answer in client.answers)
    table = Table("", "number")
    for what, number in {
        "sessions that got a reward": len(wanted),
        "killed at steps": ", ".join(map(str, killed)),
        "trained on once": sum(times[name] == 1 for name in wanted),
        "lost": len(wanted - set(times)),
        "trained on twice": sum(count > 1 for count in times.values()),
        "tokens trained on": tokens,
        "sessions whose tokens differ from those drawn": changed,
        "answers of clients that are in no ledger": unseen,
        "without a reward, dropped or still open": sum(not client.rewarded for client in clients)
        - sum(name.startswith("silent") for name in times),
        "seconds": round(seconds),
    }.items():
        table.add_row(what, str(number))
    console.print(table)


def runs(samples: list[dict[str, Any]]) -> list[tuple[int, ...]]:
    """The model's tokens of each turn, over all ledgers."""
    found: dict[int, list[int]] = {}
    for sample in samples:
        start = 0
        for segment in sample["segments"]:
            if segment["source"] == "model":
                found.setdefault(segment["turn"], []).extend(sample["columns"]["ids"][start : start + segment["n"]])
            start += segment["n"]
    return [tuple(ids) for ids in found.values()]


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=1000, help=f"with a reward, a multiple of {BATCH}")
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--late", action="store_true", help="kill it at its last steps")
    parser.add_argument("--port", type=int, default=8011)
    parser.add_argument("--ahead", type=int, default=0, help="trainer.max_staleness")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/online-sessions"), help="a new folder")
    args = parser.parse_args()
    args.out.mkdir(parents=True)
    (args.out / "texts.txt").write_text("What is 2 + 3? The answer is 5.\n" * 50)
    (args.out / "agents.yaml").write_text(f"- name: online\n  sessions: true\n  timeout: {LIMIT}\n")
    shape = TinyShape(vocab_size=400, hidden_size=32, intermediate_size=64, num_hidden_layers=1)
    tiny.prepare(args.out / "model", [args.out / "texts.txt"], shape=shape)
    at = kills_at(args.sessions // BATCH, args.kills, args.late)
    asyncio.run(measured(args.out, args.sessions, at, args.port, args.ahead, args.seed))


if __name__ == "__main__":
    main()
