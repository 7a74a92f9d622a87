"""Containers of the provider `harbor`: as every provider's, by Harbor itself with Docker."""

import os
from collections.abc import AsyncIterator

import pytest

from agentrl.config.schema.rollout import Containers
from agentrl.containers.contract import ContainerProvider, ContainerSpec
from agentrl.core.errors import UserError
from agentrl.core.points import CONTAINER_PROVIDERS
from tests.containers.conformance import Conformance
from tests.sandbox.docker.engine import Engine

PYTHON = os.environ.get("AGENTRL_HARBOR_PYTHON", "")
KEY = "rollout.containers.provider"


def made(**harbor: str) -> ContainerProvider:
    provider: ContainerProvider = CONTAINER_PROVIDERS.make("harbor", KEY, Containers(provider="harbor", harbor=harbor))
    return provider


@pytest.mark.docker
@pytest.mark.skipif(not PYTHON, reason="AGENTRL_HARBOR_PYTHON names no interpreter with harbor")
class TestContract(Conformance):
    @pytest.fixture
    async def provider(self, docker_host: None) -> AsyncIterator[ContainerProvider]:
        provider = made(python=PYTHON, type="docker")
        yield provider
        await provider.close()

    @pytest.fixture
    def spec(self, engine: Engine) -> ContainerSpec:
        return ContainerSpec(engine.base(), network="full")


def test_says_what_it_needs() -> None:
    with pytest.raises(UserError, match="`python`, an interpreter that has harbor, and `type`"):
        made(type="docker")


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (ContainerSpec(), "need an image"),
        (ContainerSpec("an/image", network="gateway"), "no network 'gateway'"),
    ],
)
async def test_refuses_what_it_cannot_run(spec: ContainerSpec, why: str) -> None:
    with pytest.raises(UserError, match=why):
        await made(python="python", type="docker").prepare(spec)
