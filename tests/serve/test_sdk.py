"""The unmodified `tinker` SDK against a server that is killed again and again."""

import random
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration
tinker = pytest.importorskip("tinker")

BASE = "/models/of/tiny"
PROMPT = tinker.types.ModelInput.from_ints([1, 2, 3])


class Server:
    """A process with the fakes."""

    def __init__(self, folder: Path, port: int) -> None:
        self.command = [sys.executable, "-m", "tests.serve.program", str(folder), str(port)]
        self.url = f"http://127.0.0.1:{port}"
        self.kills = 0
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
        assert self.process.stdout is not None
        assert self.process.stdout.readline()

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        self.process.wait(timeout=60)
        self.kills += 1
        self.start()


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("TINKER_API_KEY", "tml-test")
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = Server(tmp_path, port)
    yield server
    server.process.kill()
    server.process.wait()


def datum(first: int):
    ids = [first, first + 1]
    return tinker.types.Datum(
        model_input=tinker.types.ModelInput.from_ints(ids), loss_fn_inputs={"target_tokens": ids, "weights": [1.0, 1.0]}
    )


def trained(client, steps: int, kill=lambda: None) -> float:
    """The weights after some pipelined steps, whose passes are of several datums."""
    for step in range(steps):
        passed = client.forward_backward([datum(step), datum(2 * step)], "cross_entropy")
        stepped = client.optim_step(tinker.types.AdamParams(learning_rate=1e-3))
        kill()
        assert len(passed.result().loss_fn_outputs) == 2
        metrics = stepped.result().metrics
        assert metrics["steps:max"] == step + 1
    return metrics["weights:mean"]


def expected(steps: int) -> float:
    weights = 0.0
    for step in range(steps):
        weights = weights * 2 + 2 * step + 1 + 4 * step + 1
    return weights


def test_the_whole_loop(server):
    with tinker.ServiceClient(base_url=server.url) as service:
        client = service.create_lora_training_client(base_model=BASE, rank=8).result()
        assert client.get_info().lora_rank == 8
        assert trained(client, 3) == expected(3)
        state = client.save_state("one").result().path
        sampler = client.save_weights_and_get_sampling_client().result()
        params = tinker.types.SamplingParams(max_tokens=2, seed=1)
        drawn = sampler.sample(
            PROMPT, num_samples=2, sampling_params=params, include_prompt_logprobs=True, topk_prompt_logprobs=3
        ).result()
        assert [one.tokens for one in drawn.sequences] == [[int(expected(3)) % 1000] * 2] * 2
        assert drawn.prompt_logprobs == [None, -0.75, -0.75]
        assert drawn.topk_prompt_logprobs[1] == [(0, -0.5), (1, -0.5), (2, -0.5)]
        assert sampler.compute_logprobs(PROMPT).result() == [None, -0.75, -0.75]
        named = client.save_weights_for_sampler("one").result().path
        other = service.create_sampling_client(model_path=named).result()
        assert other.sample(PROMPT, 1, params).result().sequences[0].tokens == drawn.sequences[0].tokens
        custom = client.forward_backward_custom([datum(1)], lambda data, logprobs: (logprobs[0].sum(), {"own": 1.0}))
        assert custom.result().metrics["own"] == 1.0
        with pytest.raises(tinker.RequestFailedError, match="importance_sampling"):
            client.forward_backward([datum(1)], "stable_reinforce").result()
        copy = service.create_training_client_from_state_with_optimizer(state).result()
        assert copy.optim_step(tinker.types.AdamParams()).result().metrics["weights:mean"] == expected(3) * 2


@pytest.mark.slow
def test_fifty_kills_change_nothing(server):
    chance = random.Random(0)
    with tinker.ServiceClient(base_url=server.url) as service:
        client = service.create_lora_training_client(base_model=BASE, rank=8).result()

        def kill() -> None:
            threading.Timer(chance.uniform(0, 0.05), server.kill).start()

        assert trained(client, 50, kill) == expected(50)
    assert server.kills == 50


def test_kills_change_nothing(server):
    with tinker.ServiceClient(base_url=server.url) as service:
        client = service.create_lora_training_client(base_model=BASE, rank=8).result()
        assert trained(client, 2, server.kill) == expected(2)
        sampler = client.save_weights_and_get_sampling_client().result()
        server.kill(signal.SIGTERM)
        drawn = sampler.sample(PROMPT, 1, tinker.types.SamplingParams(max_tokens=1)).result()
        assert drawn.sequences[0].tokens == [int(expected(2)) % 1000]
