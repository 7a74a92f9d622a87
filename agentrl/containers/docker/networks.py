"""Networks of containers: none, all, this host alone, or one that a person made."""

import asyncio
from typing import Any

from agentrl.containers.contract import ContainerSpec
from agentrl.containers.docker.engine import Engine
from agentrl.core.errors import UserError

DOCKER_NAMES = {"none": "none", "full": "bridge"}
NO_TRAFFIC_BETWEEN = {"com.docker.network.bridge.enable_icc": "false"}


class Networks:
    """The networks of one run."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = asyncio.Lock()
        self._own = ""

    async def name(self, spec: ContainerSpec) -> str:
        """The Docker network that a container joins. Raises UserError, InfraError."""
        if spec.network == "gateway":
            return await self._internal()
        return DOCKER_NAMES.get(spec.network, spec.network)

    async def address(self, spec: ContainerSpec) -> str:
        """This host's address in that network. Raises UserError where it has none."""
        return await self._engine.call(_host_address, self._engine.client, await self.name(spec))

    async def _internal(self) -> str:
        """The run's own network: it has no way out, and its containers do not see each other."""
        async with self._lock:
            if not self._own:
                self._own = await self._engine.call(_make, self._engine)
        return self._own


def _make(engine: Engine) -> str:
    name = f"agentrl-{engine.run}"
    engine.client.networks.create(
        name, driver="bridge", internal=True, labels=engine.labels, options=NO_TRAFFIC_BETWEEN
    )
    return name


def _host_address(client: Any, name: str) -> str:
    from docker.errors import NotFound

    try:
        network = client.networks.get(name)
    except NotFound:
        raise UserError(f"network: {name} is not there; `docker network ls` lists those that are") from None
    configs = (network.attrs.get("IPAM") or {}).get("Config") or []
    found = [config["Gateway"] for config in configs if config.get("Gateway")]
    if not found:
        raise UserError(f"network: {name} has no address of this host: add `host`, one that containers reach")
    return str(found[0]).partition("/")[0]
