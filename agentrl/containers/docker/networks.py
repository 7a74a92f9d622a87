"""Networks of containers: none, all, this host alone, a list of hosts, or one that a person made.

`gateway` and `allow` share a network of the run's own without a way out: no route, no names, and no traffic between its
containers. Hosts on a list are reached through a proxy on this machine.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from agentrl.containers.contract import ContainerSpec
from agentrl.containers.docker.engine import Engine
from agentrl.core.errors import InfraError, UserError

DOCKER_NAMES = {"none": "none", "full": "bridge"}
PRIVATE = ("gateway", "allow")
NO_TRAFFIC_BETWEEN = {"com.docker.network.bridge.enable_icc": "false"}
NO_NAMES = ["192.0.2.1"]
"""A name server that does not exist: some engines ask those of the host for containers that cannot reach any."""
LOCAL_HOSTS = "localhost,127.0.0.1"


class Networks:
    """The networks of one run."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = asyncio.Lock()
        self._own = ""
        self._proxy: subprocess.Popen[bytes] | None = None
        self._port = 0

    async def prepare(self, spec: ContainerSpec) -> None:
        """Have the network and the proxy. Raises UserError, InfraError."""
        async with self._lock:
            if spec.network in PRIVATE and not self._own:
                self._own = await self._engine.call(_make, self._engine)
            if spec.network == "allow" and self._proxy is None:
                await self._engine.call(self._start_proxy)
        if spec.network not in PRIVATE and spec.network not in DOCKER_NAMES:
            await self.address(spec)

    def options(self, spec: ContainerSpec) -> dict[str, Any]:
        """How a container joins its prepared network."""
        if spec.network not in PRIVATE:
            return {"network": DOCKER_NAMES.get(spec.network, spec.network)}
        # Without raw sockets it cannot pass for another container.
        return {"network": self._own, "dns": NO_NAMES, "cap_drop": ["NET_RAW"]}

    async def env(self, spec: ContainerSpec) -> dict[str, str]:
        """The variables by which programs find the proxy."""
        if spec.network != "allow":
            return {}
        address = await self.address(spec)
        url, near = f"http://{address}:{self._port}", f"{LOCAL_HOSTS},{address}"
        names = {"http_proxy": url, "https_proxy": url, "no_proxy": near}
        return {**names, **{name.upper(): value for name, value in names.items()}}

    async def address(self, spec: ContainerSpec) -> str:
        """This host's address in that network. Raises UserError where it has none."""
        return await self._engine.call(_host_address, self._engine.client, str(self.options(spec)["network"]))

    async def allow(self, spec: ContainerSpec, raw: Any, hosts: Sequence[str] | None) -> None:
        """Let a started container reach these hosts; None: forget it, before another one gets its address."""
        if spec.network == "allow":
            await self._engine.call(self._order, raw, hosts)

    def close(self) -> None:
        """End the proxy."""
        if self._proxy is not None:
            self._proxy.kill()
            self._proxy.wait()

    def _order(self, raw: Any, hosts: Sequence[str] | None) -> None:
        assert self._proxy is not None
        assert self._proxy.stdin is not None
        raw.reload()
        address = raw.attrs["NetworkSettings"]["Networks"][self._own]["IPAddress"]
        self._proxy.stdin.write(json.dumps({"container": address, "hosts": hosts}).encode() + b"\n")
        self._proxy.stdin.flush()

    def _start_proxy(self) -> None:
        from agentrl.containers.docker import proxy

        words = [sys.executable, "-S", "-E", "-P", proxy.__file__, _host_address(self._engine.client, self._own)]
        self._proxy = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        assert self._proxy.stdout is not None
        self._port = int(self._proxy.stdout.readline() or 0)
        if not self._port:
            self._proxy = None
            raise InfraError("network=allow: its proxy does not start")


def _make(engine: Engine) -> str:
    rootless = "name=rootless" in (engine.client.info().get("SecurityOptions") or ())
    if rootless or not engine.env.get("DOCKER_HOST", "unix:").startswith("unix:"):
        raise UserError("network: gateway and allow need an engine of root on this machine; use none or full")
    name = f"agentrl-{engine.run}"
    own = {"driver": "bridge", "internal": True, "options": NO_TRAFFIC_BETWEEN}
    engine.client.networks.create(name, labels=engine.labels, **own)
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
        raise UserError(f"network: containers in {name} do not reach this machine; use gateway, full or allow")
    return str(found[0]).partition("/")[0]
