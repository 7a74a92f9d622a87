"""The start of a run in one process."""

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
