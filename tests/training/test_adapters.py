"""An adapter that a run writes is the one that it trained: peft loads it, and merged it is the same model, for every
command that writes one, every kind of target, and one and two processes."""

import shutil
import socket
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as multiprocessing
from safetensors.torch import load_file, save_file

from agentrl.config.schema import Model
from agentrl.core.errors import UserError
from agentrl.training import load_model
from agentrl.training.checkpoint.lineage import latest
from agentrl.training.checkpoint.merge import merge
from agentrl.training.parallel.ranks import ALONE
from tests.training import adapters
from tests.training.tiny import CPU
from tests.warm import START_METHOD

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def logits(folder) -> dict[str, torch.Tensor]:
    return {name: adapters.make(folder, name) for name in adapters.KINDS}


@pytest.fixture(scope="module")
def two_ranks(folder, logits) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    multiprocessing.start_processes(adapters.rank, (port, folder), nprocs=2, start_method=START_METHOD)


def assert_written(out: Path, expected: torch.Tensor, sent: dict[str, torch.Tensor]) -> None:
    """All that a run wrote is the model with these logits."""
    whole, step = latest(out / "weights-True"), latest(out / "weights-False")
    merge(step, out / "merged")
    merge(step, out / "merged-whole", adapter=True)
    merge(whole, out / "merged-weights", adapter=True)
    for folder in (whole / "huggingface", out / "end", out / "merged", out / "merged-whole", out / "merged-weights"):
        torch.testing.assert_close(
            adapters.read(folder), expected, atol=1e-4, rtol=1e-4, msg=lambda m, f=folder: f"{f}: {m}"
        )
    if sent:
        saved = load_file(out / "end" / "model.safetensors")
        assert sent.keys() == saved.keys()
        torch.testing.assert_close(sent, saved, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", adapters.KINDS)
def test_one_process_writes_the_adapter_that_it_trained(name, folder, logits):
    sent = adapters.write(folder, name, folder / f"{name}-1", ALONE)
    assert_written(folder / f"{name}-1", logits[name], sent)


@pytest.mark.parametrize("name", adapters.TWO_RANKS)
def test_two_processes_write_the_adapter_that_they_trained(name, folder, logits, two_ranks):
    found = [torch.load(folder / f"{name}-2" / f"sent-{rank}.pt") for rank in range(2)]
    assert "error" not in found[0], found[0]["error"]
    assert found[0].keys() == found[1].keys()
    assert_written(folder / f"{name}-2", logits[name], found[0])


def test_an_adapter_whose_file_lacks_tensors_is_refused(folder, logits):
    damaged = shutil.copytree(folder / "norms", folder / "damaged")
    file = damaged / "adapter_model.safetensors"
    save_file({name: t for name, t in load_file(file).items() if "0.self_attn.q_proj" not in name}, file)
    with pytest.raises(UserError, match="cannot be loaded: .*Found missing adapter keys"):
        load_model(Model(path=str(damaged)), device=CPU, seed=0)
