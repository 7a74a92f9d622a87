"""One algorithm by two hands: `agentrl train`, and a program over `agentrl serve` with the same samples."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import testing

from agentrl.config import compose
from agentrl.tracking import read_metrics
from agentrl.tracking.dumps.jsonl import load_trajectories
from agentrl.train import train
from agentrl_sandbox.isolation import descendants
from tests.e2e import faulty_serve
from tests.e2e.conftest import agentrl, environment

pytestmark = pytest.mark.integration
tinker = pytest.importorskip("tinker")
types = tinker.types

# The SDK's Adam, a policy gradient that is summed over tokens, and advantages that are not divided by their spread.
LIKE_RL_LOOP = [
    "actor.loss_agg_mode=token-sum",
    "actor.grad_clip=1e9",
    "actor.clip_ratio=1e9",
    "actor.clip_ratio_c=1e9",
    "actor.optim.lr=1e-3",
    "actor.optim.betas=[0.9,0.95]",
    "actor.optim.weight_decay=0",
    "algorithm.norm_adv_by_std_in_grpo=false",
    "algorithm.rollout_correction.bypass_mode=true",
]
ADAM = types.AdamParams(learning_rate=1e-3, beta1=0.9, beta2=0.95, eps=1e-8)
STEPS = 3


@contextmanager
def serving(
    task: Path, folder: Path, *settings: str, program: Sequence[str] = ("agentrl", "serve")
) -> Iterator[tuple[Any, subprocess.Popen[bytes]]]:
    """A client of a server, and the server's process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    own = [f"model.path={task / 'model'}", f"trainer.default_local_dir={folder / 'serve'}", "trainer.device=cpu"]
    server = subprocess.Popen(
        [sys.executable, "-m", *program, "--port", str(port), *own, *settings],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment() | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        cwd=folder,
    )
    assert server.stdout is not None
    assert server.stdout.readline()
    client = tinker.ServiceClient(base_url=f"http://127.0.0.1:{port}", api_key="tml-test")
    try:
        yield client, server
    finally:
        client.close("success")
        server.terminate()
        server.wait()


@pytest.fixture
def service(task: Path, tmp_path: Path) -> Iterator[Any]:
    with serving(task, tmp_path) as (client, _):
        yield client


REWARD = """
def length(solution_str, **_):
    return len(solution_str) % 3 / 2
"""
"""A reward that differs between the random answers of a group."""


def data_of_rl_loop(sampler: Any, records: list[dict[str, Any]]) -> Iterator[Any]:
    """Prompts have target 0, log-prob 0 and advantage 0."""
    for record in records:
        (sample,) = record["samples"]
        group = [other["reward"] for other in records if other["uid"] == record["uid"]]
        ids, begin = sample["columns"]["ids"], sample["prompt_length"]
        logprobs = sampler.compute_logprobs(types.ModelInput.from_ints(ids)).result()[begin:]
        assert logprobs == pytest.approx(sample["columns"]["logprobs"][begin:], abs=1e-4)  # dumps have four digits
        padding, advantage = [0.0] * (begin - 1), record["reward"] - sum(group) / len(group)
        columns = {
            "target_tokens": [0] * (begin - 1) + ids[begin:],
            "logprobs": padding + logprobs,
            "advantages": padding + [advantage] * len(logprobs),
        }
        yield types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs=columns)


def adapter_in(folder: Path) -> dict[str, Any]:
    return load_file(folder / "adapter_model.safetensors")


@pytest.mark.slow
def test_a_program_over_the_server_learns_what_a_run_learns(service: Any, overrides: list[str], tmp_path: Path) -> None:
    client = service.create_lora_training_client(base_model="model", rank=8, train_unembed=False).result()

    def exported(name: str) -> Path:
        path = client.save_weights_for_sampler(name).result().path
        return tmp_path / "serve" / path.removeprefix("tinker://")

    begin = exported("begin")
    (tmp_path / "reward.py").write_text(REWARD)
    settings = [
        *overrides[1:-3],
        *LIKE_RL_LOOP,
        f"model.path={begin}",
        f"trainer.default_local_dir={tmp_path / 'run'}",
        f"trainer.rollout_data_dir={tmp_path / 'samples'}",
        f"trainer.total_training_steps={STEPS}",
        f"trainer.save_freq={STEPS}",
        f"reward.custom_reward_function.path={tmp_path / 'reward.py'}",
        "reward.custom_reward_function.name=length",
        "trainer.val_before_train=false",
        "data.val_files=null",
        "rollout.multi_turn.enable=false",
    ]
    train(compose(settings, config_name="tiny"))
    for step, of_run in enumerate(read_metrics(tmp_path / "run/metrics.jsonl"), 1):
        sampler = client.save_weights_and_get_sampling_client().result()
        data = [*data_of_rl_loop(sampler, load_trajectories(tmp_path / f"samples/{step}.jsonl"))]
        passed = client.forward_backward(data, "importance_sampling")
        stepped = client.optim_step(ADAM).result()
        moved = sum(abs(number) for datum in data for number in datum.loss_fn_inputs["advantages"].data)
        assert passed.result().metrics["loss:sum"] == pytest.approx(of_run["actor/pg_loss"], abs=1e-6 * moved)
        assert stepped.metrics["grad_norm:mean"] == pytest.approx(of_run["actor/grad_norm"], rel=1e-6)
    assert step == STEPS
    agentrl("merge", str(tmp_path / "run"), str(tmp_path / "merged"))
    begun, served, trained = map(adapter_in, (begin, exported("end"), tmp_path / "merged"))
    for name, tensor in trained.items():
        testing.assert_close(served[name], tensor, rtol=0, atol=1e-6)
        assert (begun[name] - tensor).abs().max() > 1e-3


def trained(service: Any, between: Callable[[], None]) -> list[float]:
    """Figures of a few steps of an adapter; `between` comes after the first, with a command that waits."""
    return figures_of(created(service), between)


def created(service: Any) -> Any:
    return service.create_lora_training_client(base_model="model", rank=4, seed=3).result()


def data_from(first: int) -> list[Any]:
    ids = [first, 6, 7, 8, 9, 10]
    return [
        types.Datum(
            model_input=types.ModelInput.from_ints(ids[: n - 1]),
            loss_fn_inputs={"target_tokens": ids[1:n], "weights": [1.0] * (n - 1)},
        )
        for n in (3, 4, 6, 5)
    ]


def figures_of(client: Any, between: Callable[[], None] = lambda: None) -> list[float]:
    found = []
    for step in range(3):
        passed = client.forward_backward(data_from(5), "cross_entropy")
        if step == 1:
            between()
        norm = client.optim_step(ADAM).result().metrics["grad_norm:mean"]
        found += [passed.result().metrics["loss:sum"], norm]
    sampler = client.save_weights_and_get_sampling_client().result()
    return [*found, *sampler.compute_logprobs(types.ModelInput.from_ints([5, 6, 7, 8, 9, 10])).result()[1:]]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_ranks_train_what_one_process_trains_though_one_is_killed(task: Path, tmp_path: Path) -> None:
    title = pytest.importorskip("tests.e2e.test_ray_killed").title
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with serving(task, tmp_path / "one") as (service, _):
        expected = trained(service, lambda: None)
    with serving(task, tmp_path / "two", "trainer.n_gpus_per_node=2", "ray_init.address=local") as (service, server):

        def kill() -> None:
            ranks = [pid for pid in descendants(server.pid) if title(pid).startswith("ray::ServeRank")]
            assert len(ranks) == 2
            os.kill(ranks[1], signal.SIGKILL)

        assert trained(service, kill) == pytest.approx(expected, rel=1e-5)
    assert server.stderr is not None
    assert b"(restart 1 of 3)" in server.stderr.read()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_pass_that_fails_on_one_rank_has_its_error_and_changes_no_model(task: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    two = "trainer.n_gpus_per_node=2", "ray_init.address=local", "actor.ppo_max_token_len_per_gpu=6"
    with serving(task, tmp_path, *two, program=["tests.e2e.faulty_serve"]) as (service, server):
        expected = trained(service, lambda: None)
        hostile = created(service)

        def fail() -> None:
            for first, line in ((faulty_serve.MISTAKE, "give 2"), (faulty_serve.LATE, "too late")):
                passed = hostile.forward_backward(data_from(first), "cross_entropy")
                with pytest.raises(tinker.RequestFailedError, match=line):
                    passed.result()

        assert trained(service, fail) == expected
        assert figures_of(hostile) == expected
    assert server.stderr is not None
    said = server.stderr.read().decode()
    assert said.count("the run resumes by itself\n") == 2, said
