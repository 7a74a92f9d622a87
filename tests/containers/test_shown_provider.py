"""The provider that docs/tasks.md shows keeps the contract."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentrl.containers.contract import ContainerSpec
from tests.containers.conformance import Conformance
from tests.docs.pages import section
from tests.sandbox.docker.engine import Engine

pytestmark = [pytest.mark.integration, pytest.mark.docker]


@pytest.fixture
async def provider(docker_host: None, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    module = ModuleType("by_command")
    monkeypatch.setitem(sys.modules, "by_command", module)
    shown = next(block for block in section("tasks.md#a-provider-of-your-own") if block.file == "by_command.py")
    exec(compile(shown.text, str(Path("by_command.py")), "exec"), module.__dict__)
    provider = module.ByCommand(None)
    yield provider
    await provider.close()


class TestShown(Conformance):
    """As any provider."""

    @pytest.fixture
    def spec(self, engine: Engine) -> ContainerSpec:
        return ContainerSpec(engine.base())
