"""Kill `agentrl serve` with SIGKILL again and again under a client that pipelines, and compare with an unbroken run.

    python benchmarks/serve_killed.py --kills 50     # 10 minutes on two cores; needs the tinker SDK

The client trains an adapter of a tiny model: two passes and a step at a time, a checkpoint and samples now and then.
The server is killed at random moments of its work, and sometimes while it starts. Losses, log-probs, samples and the
files of the adapter at the end have to be those of a run without kills, bit for bit.
"""

import argparse
import hashlib
import os
import random
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tinker
from rich.console import Console
from serve_parts import Server, tiny_model

STARTING = 0.1
"""Share of the kills that meet a server while it starts."""
console = Console(width=120)


class Client(threading.Thread):
    """A training program: its numbers, in order."""

    def __init__(self, url: str, on: Callable[[int], bool]) -> None:
        """`on`: whether to take a step of this number."""
        super().__init__(daemon=True)
        self.url, self.on, self.numbers, self.steps, self.path = url, on, list[object](), 0, ""
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with tinker.ServiceClient(base_url=self.url) as service:
                self._train(service)
        except BaseException as error:
            self.error = error

    def _train(self, service: tinker.ServiceClient) -> None:
        model = service.create_lora_training_client(base_model="tiny", rank=4, seed=7).result()
        adam = tinker.types.AdamParams(learning_rate=1e-2)
        while self.on(self.steps):
            passes = [model.forward_backward(data(2 * self.steps + i), "cross_entropy") for i in range(2)]
            stepped = model.optim_step(adam)
            if self.steps % 4 == 3:
                saved = model.save_state(f"step-{self.steps}")
                self.numbers.append(self._drawn(model.save_weights_and_get_sampling_client().result()))
                self.numbers.append(saved.result().path.rpartition("/")[2])
            for one in passes:
                found = one.result()
                self.numbers.append(
                    (found.metrics["loss:sum"], [out["logprobs"].data for out in found.loss_fn_outputs])
                )
            metrics = stepped.result().metrics or {}
            self.numbers.append(metrics["grad_norm:mean"])
            self.steps += 1
        self.path = model.save_weights_for_sampler("end").result().path

    def _drawn(self, sampler: tinker.SamplingClient) -> object:
        params = tinker.types.SamplingParams(max_tokens=12, seed=self.steps, stop=[])
        prompt = tinker.types.ModelInput.from_ints(list(range(5, 12)))
        drawn = sampler.sample(prompt, num_samples=2, sampling_params=params).result()
        return [(one.tokens, one.logprobs) for one in drawn.sequences]


def data(seed: int) -> list[tinker.types.Datum]:
    """Three sequences."""
    draw, found = random.Random(seed), []
    for _ in range(3):
        ids = [draw.randrange(3, 300) for _ in range(draw.randrange(8, 40))]
        inputs: dict[str, Any] = {"target_tokens": ids[1:], "weights": [1.0] * (len(ids) - 1)}
        found.append(tinker.types.Datum(model_input=tinker.types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs=inputs))
    return found


def digest(folder: Path, path: str) -> str:
    """Hash of an adapter's tensors."""
    run, kind, name = path.removeprefix("tinker://").split("/")
    return hashlib.sha256((folder / run / kind / name / "adapter_model.safetensors").read_bytes()).hexdigest()


def broken(model: Path, folder: Path, kills: int, minutes: float, seed: int) -> tuple[int, Client, str]:
    """The client of a server that is killed so often, in so many minutes at most, and the kills."""
    server, draw, done = Server(model, folder), random.Random(seed), threading.Event()
    server.ready()
    client = Client(server.url, lambda _: not done.is_set())
    client.start()
    killed, last = 0, time.monotonic() + 60 * minutes
    while killed < kills and time.monotonic() < last:
        before, end = len(client.numbers), time.monotonic() + 120
        while len(client.numbers) == before and client.error is None and time.monotonic() < end:
            time.sleep(0.01)
        if client.error or len(client.numbers) == before:
            break
        time.sleep(draw.uniform(0, 1.0))
        killed += restarted(server)
        while draw.random() < STARTING:
            time.sleep(draw.uniform(0, 6))
            killed += restarted(server)
        server.ready()
        console.print(f"kill {killed}: step {client.steps}, {server.memory():.0f} MB")
    done.set()
    return killed, *finished(client, folder, server)


def restarted(server: Server) -> int:
    """Kill a server and start it again: 1 kill."""
    server.kill()
    server.start()
    return 1


def unbroken(model: Path, folder: Path, steps: int) -> tuple[Client, str]:
    """The client of a server that runs through."""
    server = Server(model, folder)
    server.ready()
    client = Client(server.url, lambda step: step < steps)
    client.start()
    return finished(client, folder, server)


def finished(client: Client, folder: Path, server: Server) -> tuple[Client, str]:
    """A client at its end, and the hash of its adapter."""
    client.join(timeout=300)
    server.kill()
    if client.error or not client.path:
        sys.exit(f"the client did not end: {client.error!r} at step {client.steps}; see {server.log}")
    return client, digest(folder, client.path)


def main() -> None:
    """Run both, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=60, help="most time for them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/serve-killed"))
    args = parser.parse_args()
    os.environ |= {"TINKER_API_KEY": "tml-killed", "TINKER_TELEMETRY": "0", "OMP_NUM_THREADS": "1"}
    folder = args.out.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model = tiny_model(folder)
    killed, torn, torn_hash = broken(model, folder / "killed", args.kills, args.minutes, args.seed)
    whole, whole_hash = unbroken(model, folder / "whole", torn.steps)
    same = torn.numbers == whole.numbers and torn_hash == whole_hash
    console.print(f"{killed} kills, {torn.steps} steps, {len(torn.numbers)} answers: {'same' if same else 'OTHER'}")
    sys.exit(not same)


if __name__ == "__main__":
    main()
