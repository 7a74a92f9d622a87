"""The CPU of a rollout's two ends: agentrl's own milliseconds a trajectory before the first token and after the last.

    python benchmarks/rollout_cpu.py --tokenizer MODEL
    python benchmarks/rollout_cpu.py --tokenizer MODEL --http --profile out.prof

All trajectories of a step are prompted at once, and an engine answers all of them in the same instant, as one GPU does
where the answers have equal lengths: all work after that moment delays the step. With --http, requests and answers
pass through HTTP and JSON as those of an SGLang server do, which another process plays. Everything else is real: rows,
template, agent loop, ledgers and their checks, reward function, scheduler.
"""

import argparse
import asyncio
import cProfile
import dataclasses
import json
import multiprocessing
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from aiohttp import web
from rich.console import Console
from rich.table import Table

from agentrl.config import compose
from agentrl.config.schema import Config
from agentrl.core.loop_thread import LoopThread
from agentrl.engines.engine import Generation, Sampling
from agentrl.engines.servers import RemoteEngine, Replica
from agentrl.engines.servers.process import free_port
from agentrl.engines.servers.replica import OWN_KEPT
from agentrl.engines.servers.settings import ServerSettings
from agentrl.engines.sglang.backend import SGLang
from agentrl.http.client import Http
from agentrl.rollout.loops.base import AgentLoop, RolloutContext
from agentrl.rollout.rollouts import Rollouts
from agentrl.rollout.scheduler import Scheduler
from agentrl.tasks.models.tiny import train_tokenizer
from agentrl.trajectory.row import Row
from agentrl.trajectory.trajectory import Trajectory

REWARD = "def score(data_source, solution_str, ground_truth, **_):\n    return len(solution_str) % 11 / 10\n"
TEXTS = ["Number 0, please. so so so 0123456789"] * 4
TEMPLATE = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


Drawn = tuple[list[int], list[float]]
"""Token ids and log-probs of an answer."""


class Instant:
    """An engine that waits for `width` requests, then answers all at once; `marks`: CPU seconds at these moments."""

    def __init__(self, width: int, answers: list[Drawn]) -> None:
        self.width, self.answers = width, answers
        self.asked, self.all = 0, asyncio.Event()
        self.marks: list[float] = []

    def open(self, key: str) -> None: ...

    def release(self, key: str) -> None: ...

    async def close(self) -> None: ...

    async def generate(self, token_ids: list[int], sampling: Sampling, *, key: str, media: Any = ()) -> Generation:
        i, self.asked = self.asked % self.width, self.asked + 1
        if self.asked == self.width:
            self.marks.append(time.process_time())
            self.all.set()
        await self.all.wait()
        ids, logprobs = self.answers[i]
        return Generation(ids, logprobs, "length", 0)


class Passing:
    """An engine whose answers come from a server; `marks`: CPU seconds when the last request goes out."""

    def __init__(self, engine: RemoteEngine, width: int) -> None:
        self.engine, self.width, self.asked = engine, width, 0
        self.marks: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    async def generate(self, token_ids: list[int], sampling: Sampling, *, key: str, media: Any = ()) -> Generation:
        self.asked += 1
        if self.asked == self.width:
            self.marks.append(time.process_time())
        return await self.engine.generate(token_ids, sampling, key=key)


class Unsent:
    """A transport of weights that sends none."""

    async def push(self, replicas: Any) -> None: ...

    async def close(self) -> None: ...


def serve(pipe: Connection, width: int) -> None:
    """Play an SGLang server: answer when all requests are there."""
    port, bodies = free_port(), list[bytes]()
    waiting: list[asyncio.Future[bytes]] = []

    async def generate(request: web.Request) -> web.Response:
        await request.read()
        mine = asyncio.get_running_loop().create_future()
        waiting.append(mine)
        if len(waiting) == width:
            for body, other in zip(bodies, waiting, strict=True):
                other.set_result(body)
            waiting.clear()
        return web.Response(body=await mine, content_type="application/json")

    async def main() -> None:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/generate", generate)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        pipe.send(port)
        while True:
            bodies[:] = [json.dumps(answer(*each)).encode() for each in await asyncio.to_thread(pipe.recv)]
            pipe.send(None)

    with suppress(EOFError):  # the benchmark has ended
        asyncio.run(main())


def answer(ids: list[int], logprobs: list[float]) -> dict[str, Any]:
    """The body of SGLang's answer."""
    drawn = [[logprob, token, None] for token, logprob in zip(ids, logprobs, strict=True)]
    meta = {"id": "1", "finish_reason": {"type": "length", "length": len(ids)}, "prompt_tokens": 256}
    return {"text": "", "output_ids": ids, "meta_info": meta | {"output_token_logprobs": drawn}}


def remote(port: int) -> RemoteEngine:
    """agentrl's engine over that server."""
    settings = ServerSettings("python", "model", "cpu", "float32", max_model_len=4096, max_num_seqs=4096)
    backend = SGLang(settings)
    replica = Replica(backend, f"http://127.0.0.1:{port}")
    replica.http, replica.serving = Http(replica.url, OWN_KEPT), True  # as to a server of the run
    return RemoteEngine(backend, [replica], Unsent())


class Turns(AgentLoop):
    """So many turns with a user's message between two of them."""

    uses_tools = False

    def __init__(self, env: RolloutContext, turns: int) -> None:
        super().__init__(env)
        self.turns = turns

    async def run(self, trajectory: Trajectory, sampling: Sampling) -> None:
        episode = self.episode(trajectory, sampling, schemas=[])
        episode.begin()
        reply = await episode.generate()
        for _ in range(1, self.turns):
            episode.observe([{"role": "user", "content": "Go on."}], closed=reply.closed)
            reply = await episode.generate()


def step(run: Callable[[Any], Any], rollouts: Rollouts, engine: Any, rows: list[Row], group: int) -> dict[str, float]:
    """One step's CPU milliseconds a trajectory, and its wall seconds."""
    assert isinstance(rollouts.scheduler, Scheduler)
    rollouts.scheduler.env = dataclasses.replace(rollouts.env, engine=engine)
    wall, cpu = time.perf_counter(), time.process_time()
    made = run(rollouts.scheduler.run(rows, n=group, sampling=Sampling(4096), tag="1"))
    end, wall = time.process_time(), time.perf_counter() - wall
    assert all(t.reward is not None for t in made), made[0].error
    count = len(rows) * group
    middle = engine.marks[-1]
    return {"before": 1e3 * (middle - cpu) / count, "after": 1e3 * (end - middle) / count, "wall, s": wall}


def main() -> None:
    args = arguments()
    runner, profile, found = LoopThread(), cProfile.Profile(), []
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = tokenizer_of(args.tokenizer)
        config: Config = compose(settings(args, Path(folder)), checks=())
        rollouts = Rollouts(config, tokenizer, Instant(0, []), runner.run)  # type: ignore[arg-type]
        rollouts.scheduler.loop_for = lambda _: partial(Turns, turns=args.turns)  # type: ignore
        engine_of = Served(args.prompts * args.group) if args.http else Instant
        for i in range(args.rounds + 1):  # the first round fills caches
            engine = engine_of(args.prompts * args.group, answers(i, args, tokenizer))
            if args.profile and i:
                profile.enable()
            found.append(step(runner.run, rollouts, engine, rows_of(args), args.group))
            profile.disable()
    runner.run(engine.close())
    runner.close()
    if args.profile:
        profile.dump_stats(args.profile)
    show(found[1:], args.prompts * args.group)


def settings(args: argparse.Namespace, folder: Path) -> list[str]:
    """The settings of the rollouts."""
    (folder / "reward.py").write_text(REWARD)
    return [
        f"trainer.default_local_dir={folder}",
        f"reward.custom_reward_function.path={folder / 'reward.py'}",
        "reward.custom_reward_function.name=score",
        "data.max_response_length=4096",
        "data.max_prompt_length=4096",
        *args.set,
    ]


def rows_of(args: argparse.Namespace) -> list[Row]:
    """A prompt a group."""
    words = " so" * args.prompt_tokens
    return [Row(f"row:{i}", [{"role": "user", "content": f"Number {i}.{words}"}]) for i in range(args.prompts)]


def answers(seed: int, args: argparse.Namespace, tokenizer: Any) -> list[Drawn]:
    """Those of a round, of plain words, as a server's JSON gives them: fresh Python numbers."""
    rng, n = random.Random(seed), args.new_tokens
    plain = sorted(set(range(len(tokenizer))) - set(tokenizer.added_tokens_decoder))
    ids = ([int(str(token)) for token in rng.choices(plain, k=n)] for _ in range(args.prompts * args.group))
    return [(each, [-rng.random() * 10 for _ in range(n)]) for each in ids]


class Served:
    """Makes engines over a server that another process plays."""

    def __init__(self, count: int) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, count), daemon=True).start()
        self.engine = remote(self.pipe.recv())

    def __call__(self, count: int, answers: list[Drawn]) -> Passing:
        self.pipe.send(answers)
        self.pipe.recv()
        return Passing(self.engine, count)


def tokenizer_of(folder: Path | None) -> Any:
    """The tokenizer there, or a small one."""
    if folder is None:
        return train_tokenizer(TEXTS, 1024, TEMPLATE)
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def show(rounds: list[dict[str, float]], count: int) -> None:
    table = Table("", *rounds[0], title=f"{count} trajectories, CPU ms each")
    table.add_row("median", *(f"{statistics.median(r[name] for r in rounds):.3f}" for name in rounds[0]))
    table.add_row("least", *(f"{min(r[name] for r in rounds):.3f}" for name in rounds[0]))
    Console().print(table)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, help="a model's folder; default: a small tokenizer")
    parser.add_argument("--http", action="store_true", help="requests and answers over HTTP")
    parser.add_argument("--profile", type=Path, help="file for cProfile's figures")
    parser.add_argument("--set", nargs="+", default=[], help="settings")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--turns", type=int, default=1, help="of --new-tokens each")
    parser.add_argument("--prompt-tokens", type=int, default=230)
    parser.add_argument("--new-tokens", type=int, default=512)
    return parser.parse_args()


if __name__ == "__main__":
    main()
