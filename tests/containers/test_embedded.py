"""The embedded provider: a provider like any other, but for what a sandbox has not."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentrl.containers.contract import ContainerSpec
from agentrl.containers.embedded import driver
from agentrl.containers.embedded.provider import EmbeddedProvider
from agentrl.containers.shell import CONTAINER_ENDED, Shell
from agentrl.core.errors import InfraError, UserError
from tests.containers.conformance import Conformance

pytestmark = pytest.mark.integration


@pytest.fixture
async def provider() -> AsyncIterator[EmbeddedProvider]:
    provider = EmbeddedProvider()
    yield provider
    await provider.close()


@pytest.mark.slow
class TestEmbedded(Conformance):
    """The contract."""


async def test_limits_and_ends(provider: EmbeddedProvider) -> None:
    container = provider.container(ContainerSpec(memory_mb=300, workdir="work", env={"NAME": "value"}))
    with pytest.raises(InfraError, match="does not run"):
        await container.exec("true", timeout=30)
    await container.start()
    done = await container.exec("pwd; echo $NAME; echo x >file; (sleep 9; echo) & sleep 9", timeout=0.3)
    assert (done.code, done.stdout.endswith("/work\nvalue\n")) == (None, True)
    assert (await container.exec("cat file; ls nothing", timeout=30)).output.startswith("x\nls: ")
    greedy = "x = bytearray(10**9); x[::4096] = b'1' * len(x[::4096])"
    done = await container.exec(["python3", "-c", greedy], timeout=60)
    assert (done.code, "limit of memory" in done.stderr) == (137, True)
    assert (await container.exec("true", timeout=30)).code == 137
    assert await Shell(container).run("true", 30) == CONTAINER_ENDED
    with pytest.raises(InfraError, match="limit of memory"):
        await container.upload(Path(__file__), "/tmp/file")
    await container.stop()
    with pytest.raises(InfraError, match="does not run"):
        await container.exec("true", timeout=30)


async def test_words_that_no_program_can_have(provider: EmbeddedProvider) -> None:
    container = provider.container(ContainerSpec())
    await container.start()
    done = await container.exec(["echo", "a\0b"], timeout=30)
    assert (done.code, done.stderr) == (126, "embedded null byte\n")
    await container.stop()


def test_all_processes_of_a_command_stop_before_one_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell that outlives its child takes up its next command."""
    sent = list[signal.Signals]()
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(number))
    assert driver._killed({7, 8})
    assert sent == [signal.SIGSTOP] * 2 + [signal.SIGKILL] * 2


async def test_what_it_has_not(provider: EmbeddedProvider) -> None:
    await provider.prepare(ContainerSpec())
    with pytest.raises(UserError, match=r"has no images, and the task wants debian: set rollout.containers.provider"):
        await provider.prepare(ContainerSpec(image="debian"))
    with pytest.raises(UserError, match="has no network, and the task wants 'full'"):
        await provider.prepare(ContainerSpec(network="full"))
