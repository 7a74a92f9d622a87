"""Optimizers and snapshots of memory on a GPU."""

import pickle
from pathlib import Path

import pytest
import torch

from agentrl.config.schema import Actor, Optim, Profiler
from agentrl.training import PolicyActor
from agentrl.training.model.handle import ModelHandle
from agentrl.training.perf.profiling import Profiling
from agentrl.training.update.optimizer import Optimizer
from tests.training.tiny import random_batch, tiny

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]
CUDA = torch.device("cuda")


@pytest.mark.parametrize("name", ["adamw", "adamw_16bit", "adamw_8bit", "muon", "sgd", "RMSprop"])
def test_an_optimizer_lowers_a_loss_and_resumes(name: str) -> None:
    if name == "adamw_8bit":
        pytest.importorskip("torchao")
    module, wanted = tiny("qwen3").to(CUDA), tiny("qwen3", seed=1).to(CUDA)
    optim = Optim(optimizer=name, lr=0.05 if name == "sgd" else 0.01)
    optimizer = Optimizer(module, optim, grad_clip=1e9, total_steps=40)

    def distance() -> torch.Tensor:
        pairs = zip(module.parameters(), wanted.parameters(), strict=True)
        return torch.stack([(mine - theirs).square().sum() for mine, theirs in pairs]).sum()

    first = float(distance())
    for step in range(20):
        if step == 10:
            state = optimizer.state_dict()
            optimizer = Optimizer(module, optim, grad_clip=1e9, total_steps=40)
            optimizer.load_state_dict(state)
        distance().backward()
        optimizer.step()
        optimizer.advance()
    assert float(distance()) < 0.9 * first


@pytest.mark.parametrize("name", ["adamw", "adamw_16bit", "adamw_8bit", "muon"])
def test_a_policy_is_updated_in_half_precision(name: str) -> None:
    if name == "adamw_8bit":
        pytest.importorskip("torchao")
    module = tiny("qwen3").to(CUDA)
    before = {key: value.clone() for key, value in module.state_dict().items()}
    actor = Actor(ppo_max_token_len_per_gpu=60, optim=Optim(optimizer=name, lr=1e-3))
    model = ModelHandle(module, compute_dtype=torch.bfloat16)
    policy = PolicyActor(model, actor=actor, temperature=1.0, device=CUDA, total_steps=9)
    metrics = policy.update(random_batch([30, 1, 12, 60, 9]))
    after = module.state_dict()
    assert all(torch.isfinite(value).all() for value in after.values())
    assert any(not torch.equal(after[key], value) for key, value in before.items())
    assert metrics["actor/grad_norm"] > 0


@pytest.mark.parametrize("name", ["adamw", "adamw_16bit", "sgd"])
def test_the_cpu_takes_the_steps_of_the_gpu(name: str) -> None:
    """Parameters agree to rounding, of bfloat16 for moments rounded by other draws; the GPU holds no moments."""
    wanted: list[torch.Tensor] = []
    found: list[torch.Tensor] = []
    for offload, out in ((False, wanted), (True, found)):
        module = tiny("qwen3").to(CUDA)
        optimizer = Optimizer(module, Optim(optimizer=name, lr=1e-3), grad_clip=1.0, total_steps=9, offload=offload)
        for step in range(5):
            for number, parameter in enumerate(optimizer.parameters):
                draw = torch.Generator().manual_seed(100 * step + number)
                parameter.grad = torch.randn(parameter.shape, generator=draw).to(CUDA)
            optimizer.step()
        out += [parameter.detach().cpu() for parameter in optimizer.parameters]
        states = [value for rule in optimizer.rules for state in rule.state.values() for value in state.values()]
        devices = {value.device.type for value in states if isinstance(value, torch.Tensor) and value.ndim}
        assert devices <= {"cpu" if offload else "cuda"}
    for one, other in zip(wanted, found, strict=True):
        torch.testing.assert_close(one, other, atol=2e-4 if name == "adamw_16bit" else 1e-6, rtol=0)


def test_a_memory_snapshot_names_allocations(tmp_path: Path) -> None:
    profiling = Profiling(Profiler(tool="torch_memory"), [1], tmp_path, rank=0)
    with profiling.phase(1, "update", last=True):
        kept = torch.ones(1 << 20, device=CUDA)
    snapshot = pickle.loads((tmp_path / "step1-rank0.pickle").read_bytes())
    sizes = [event["size"] for trace in snapshot["device_traces"] for event in trace if event["action"] == "alloc"]
    assert kept.nbytes in sizes
