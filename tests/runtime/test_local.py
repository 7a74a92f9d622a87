"""The start of a run in one process."""

import subprocess
from pathlib import Path

import pytest
import torch

from agentrl.config.schema import Config, Model, Rollout, Trainer
from agentrl.core.errors import UserError
from agentrl.engines.launching import Servers, weight_folder
from agentrl.engines.servers import Replica, ServerProcess
from agentrl.engines.servers.settings import ServerSettings
from agentrl.engines.sglang import SGLang
from agentrl.engines.starting import Start
from agentrl.runtime import local
from agentrl.tasks.models import tiny
from agentrl.training.learner import Learner
from agentrl.training.model.attention.early_kernels import EarlyKernels

pytestmark = pytest.mark.integration


def test_servers_end_where_the_policy_cannot_be_loaded(tmp_path: Path) -> None:
    backend = SGLang(ServerSettings("", "", "cpu", "float32", 8, 1))
    server = ServerProcess(["sleep", "60"], {}, tmp_path / "log.txt")
    rollout = Rollout(weight_dir=str(tmp_path))
    config = Config(model=Model(path=str(tmp_path / "none")), trainer=Trainer(device="cpu"), rollout=rollout)
    replica = Replica(backend, "http://127.0.0.1:1", server)
    servers = Servers(config, torch.device("cpu"), backend, [replica], weight_folder(rollout), "files", False)
    replica.launch()
    assert server.alive
    assert servers.scratch.path.is_dir()
    with pytest.raises(UserError, match="model.path: there is no folder"):
        local.LocalRuntime(config, start=Start(servers))
    assert not server.launched
    assert not servers.scratch.path.exists()


def test_the_policy_is_probed_when_its_kernel_is_compiled(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "What is 1 + 1? It is 2."}')
    shape = tiny.TinyShape(vocab_size=300, hidden_size=32, intermediate_size=32, num_hidden_layers=1)
    tiny.prepare(tmp_path / "model", [tmp_path / "rows.jsonl"], shape=shape, seed=0)
    config = Config(model=Model(path=str(tmp_path / "model")), trainer=Trainer(device="cpu"))
    process = subprocess.Popen(["sleep", "0.5"])
    learner = Learner(config, kernels=EarlyKernels(process))
    assert process.returncode == 0
    assert learner.model.packs
