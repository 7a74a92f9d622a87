"""The start of a run in one process."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agentrl.config.schema import Config, Model, Rollout, Trainer
from agentrl.core.errors import UserError
from agentrl.engines.launching import Servers, weight_folder
from agentrl.engines.servers import Replica, ServerProcess
from agentrl.engines.servers.settings import ServerSettings
from agentrl.engines.sglang import SGLang
from agentrl.runtime import local
from agentrl.runtime import runtime as runtime_module
from agentrl.runtime.starting import Start

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
    assert not server.alive
    assert not servers.scratch.path.exists()


@pytest.mark.parametrize(("bound", "partial", "waits"), [(0, True, None), (0, False, False), (2, True, True)])
def test_an_update_waits_for_requests_also_where_nothing_is_sampled_ahead(
    bound: int, partial: bool, waits: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Live agents ask at any time. `waits`: `partial` of the engine around it; None: there is none around it."""
    made: list[Any] = []
    runtime: Any = object.__new__(local.LocalRuntime)
    runtime.runner, runtime.tokenizer, runtime.stop = SimpleNamespace(run=None), None, None
    runtime.async_sampling, runtime.stack = None, SimpleNamespace(callback=lambda close: None)
    monkeypatch.setattr(runtime_module, "AsyncSampling", lambda *_: SimpleNamespace(run=None))
    config = Config(rollout=Rollout(partial_rollout=partial), trainer=Trainer(max_staleness=bound))

    def rollouts(config: Config, tokenizer: Any, engine: Any, run: Any, **_: Any) -> Any:
        made.append(engine)
        return SimpleNamespace(close=None)

    monkeypatch.setattr(runtime_module, "Rollouts", rollouts)
    runtime._open_rollouts(config, SimpleNamespace())
    assert getattr(made[0], "partial", None) is waits
