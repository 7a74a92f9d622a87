"""Containers as pods of a Kubernetes cluster, by the package kubernetes-asyncio: `pip install 'agentrl[kubernetes]'`.

A pod is deleted with its container, with the run, with the pod that the run itself is in, and by the cluster after
`deadline` seconds. It lacks, compared with Docker: networks other than `none` and `full`; a limit of processes, which
is the node's; the image's entrypoint. `start_timeout` has the node's pull of the image in it.
"""

import asyncio
import contextlib
import json
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentrl.config.schema.rollout import Containers
from agentrl.containers.cluster import ClusterProvider
from agentrl.containers.commands import CHUNK, Command, CommandContainer
from agentrl.containers.contract import ContainerSpec
from agentrl.core.errors import InfraError, UserError, one_line
from agentrl.core.points import container_provider

IDLE = ["sh", "-c", "while :; do sleep 3600; done"]
RUN, NETWORK = "agentrl.run", "agentrl.network"
"""Labels of pods."""
MAIN = "main"
"""Name of a pod's own container; a cluster may add further ones."""
STUCK = (
    *("ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"),
    *("CreateContainerConfigError", "CreateContainerError"),
)
"""Reasons of a container that waits for a person."""
POLL_SECONDS, HEARTBEAT_SECONDS = 0.5, 20.0
START_SHARE = 0.9
"""Share of `start_timeout` after which a start says why it takes so long."""
CONNECTIONS = 4096
"""Each command that runs has one."""
STDIN, STDOUT, STDERR, STATUS = range(4)
"""Channels of a command's web socket: the first byte of each message."""
WITH_INPUT = ["sh", "-c", 'n=$1; shift; head -c "$n" | "$@"', "sh"]
"""The protocol has no end of input: its size tells it."""
OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True)
class Settings:
    """`rollout.containers.options`."""

    namespace: str | None = None
    """None: that of the pod that the run is in, or `default`."""
    context: str | None = None
    """A context of the kubeconfig file; None: its current one, or the cluster that the run is in."""
    deadline: int = 6 * 3600
    """Seconds after which the cluster ends a pod, whatever became of the run."""
    pod: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of a pod's `spec`: nodeSelector, tolerations, imagePullSecrets, runtimeClassName."""
    container: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of its container: resources, securityContext, imagePullPolicy."""
    host: str | None = None
    """Address at which pods reach this machine; None: that of its name."""


class Pod(CommandContainer):
    """A pod with one container."""

    sets_users = False

    def __init__(self, provider: "Kubernetes", spec: ContainerSpec) -> None:
        super().__init__(f"agentrl-{provider.run}-{secrets.token_hex(4)}", spec)
        self._provider, self._made = provider, False

    async def start(self) -> None:
        """Create the pod, and wait until it runs. Raises InfraError."""
        limit = START_SHARE * self.spec.start_timeout
        deadline, self._made = time.monotonic() + limit, True
        body = self.manifest(await self._provider.image_name(self.spec))
        await self._provider.call("create_namespaced_pod", body=body)
        while why := waits_for(await self._provider.call("read_namespaced_pod", name=self.name)):
            if time.monotonic() > deadline:
                raise InfraError(f"pod {self.name} does not run within {limit:g} s: {why}")
            await asyncio.sleep(POLL_SECONDS)
        await self.begin(self.spec.command)

    def manifest(self, image: str) -> dict[str, Any]:
        """The pod as Kubernetes takes it."""
        spec, settings = self.spec, self._provider.settings
        limits = {
            "cpu": spec.cpus and str(spec.cpus),
            "memory": spec.memory_mb and f"{spec.memory_mb}Mi",
            "ephemeral-storage": spec.storage_mb and f"{spec.storage_mb}Mi",
        }
        container = {
            "name": MAIN,
            "image": image,
            "command": IDLE,
            "workingDir": spec.workdir,
            "resources": {"limits": {name: value for name, value in limits.items() if value}},
        }
        pod = {
            "containers": [container | dict(settings.container)],
            "restartPolicy": "Never",
            "activeDeadlineSeconds": settings.deadline,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
        }
        labels = {RUN: self._provider.run, NETWORK: spec.network}
        metadata = {"name": self.name, "labels": labels, "ownerReferences": self._provider.owners}
        return {"metadata": metadata, "spec": pod | dict(settings.pod)}

    async def host(self) -> str:
        """This machine's address. Raises InfraError."""
        self.require_network()
        named = self._provider.settings.host
        return named if named else await asyncio.to_thread(socket.gethostbyname, socket.gethostname())

    async def stop(self) -> None:
        """Delete the pod."""
        if self._made:
            self._made = False
            with contextlib.suppress(InfraError):  # else the cluster ends it
                call = self._provider.call("delete_namespaced_pod", name=self.name, grace_period_seconds=0)
                await asyncio.shield(call)

    async def run(self, command: Command) -> int:
        """Run a command through a web socket. Raises InfraError."""
        data = command.stdin
        words = command.words if data is None else [*WITH_INPUT, str(len(data)), *command.words]
        given = {"command": replace(command, words=words).alone(), "container": MAIN, "stdin": data is not None}
        streams = {"stdout": True, "stderr": True, "tty": False, "_preload_content": False}
        opened = await self._provider.call("connect_get_namespaced_pod_exec", name=self.name, **given, **streams)
        from aiohttp import ClientError

        try:
            async with opened as connection:
                writing = asyncio.create_task(_write(connection, data or b""))
                try:
                    return await _followed(connection, command)
                finally:
                    writing.cancel()
        except (ClientError, OSError) as error:
            raise InfraError(f"pod {self.name} runs no command: {one_line(error)}") from error


async def _followed(connection: Any, command: Command) -> int:
    """The exit code of a command, at its end. Raises InfraError where the connection ends first."""
    ends = {STDOUT: command.stdout, STDERR: command.stderr}
    async for message in connection:
        if isinstance(message.data, BaseException):
            raise InfraError(f"the connection to a command broke: {one_line(message.data)}") from message.data
        data = message.data if isinstance(message.data, bytes) else message.data.encode()
        if len(data) > 1 and data[0] == STATUS:
            return exit_code(json.loads(data[1:]))
        if data and data[0] in ends:
            ends[data[0]].add(data[1:])
    raise InfraError("the connection to a command ended before it: its pod is gone, or cannot be reached")


async def _write(connection: Any, data: bytes) -> None:
    with contextlib.suppress(ConnectionError):  # a command need not read it
        for begin in range(0, len(data), CHUNK):
            await connection.send_bytes(bytes([STDIN]) + data[begin : begin + CHUNK])


def exit_code(status: Mapping[str, Any]) -> int:
    """The exit code in the last message of a command. Raises InfraError for a command that did not run."""
    if status.get("status") == "Success":
        return 0
    causes = (status.get("details") or {}).get("causes") or []
    codes = [cause["message"] for cause in causes if cause.get("reason") == "ExitCode"]
    if not codes:
        raise InfraError(f"Kubernetes ran no command: {status.get('message')}")
    return int(codes[0])


def waits_for(pod: Any) -> str:
    """What a pod waits for; empty where it runs. Raises InfraError where it never will."""
    status = pod.status
    if status.phase in ("Failed", "Succeeded"):
        raise InfraError(f"pod {pod.metadata.name} has ended: {status.reason}: {status.message}")
    for container in (one for one in status.container_statuses or () if one.name == MAIN):
        if container.state.running:
            return ""
        if ended := container.state.terminated:  # the pod's phase stays Running where a sidecar runs
            raise InfraError(f"pod {pod.metadata.name} has ended: {ended.reason}: {ended.message}")
        if (waiting := container.state.waiting) and waiting.reason in STUCK:
            raise InfraError(f"pod {pod.metadata.name} does not start: {waiting.reason}: {waiting.message}")
    unmet = (one for one in status.conditions or () if one.status == "False" and one.message)
    return next((f"{one.reason}: {one.message}" for one in unmet), f"it is {status.phase}")


@container_provider("kubernetes")
class Kubernetes(ClusterProvider[Settings]):
    """Makes pods in one namespace."""

    def __init__(self, containers: Containers) -> None:
        super().__init__(containers, Settings)
        self.run, self.namespace = secrets.token_hex(4), ""
        self.owners: list[dict[str, Any]] = []
        """The pod that this process is in: Kubernetes deletes what it owns after it."""
        self._inside = OWN_NAMESPACE.read_text() if OWN_NAMESPACE.exists() else ""
        self._api: Any = None
        self._exec: Any = None
        self._connecting = asyncio.Lock()

    async def ready(self) -> None:
        """Connect. Raises UserError where no cluster answers."""
        async with self._connecting:
            if self._api is None:
                await self._connect()

    async def prepare(self, spec: ContainerSpec) -> None:
        """Check the spec, and have the network policy; nodes pull images. Raises UserError, InfraError."""
        self.check_network(spec)
        await self.image_name(spec)
        await self.ready()

    def container(self, spec: ContainerSpec) -> Pod:
        """A container that is still to be started."""
        return Pod(self, spec)

    async def close(self) -> None:
        """Delete all pods of the run."""
        if self._api is not None:
            with contextlib.suppress(InfraError):
                selector = f"{RUN}={self.run}"
                await self.call("delete_collection_namespaced_pod", label_selector=selector, grace_period_seconds=0)
            await self._api.api_client.close()
            await self._exec.api_client.close()

    async def call(self, method: str, **given: Any) -> Any:
        """Call a method of the API in the namespace. Raises InfraError."""
        from aiohttp import ClientError
        from kubernetes_asyncio.client.exceptions import ApiException

        api = self._exec if method.startswith("connect") else self._api
        if api is None:
            raise InfraError("Kubernetes: not connected")
        try:
            return await getattr(api, method)(namespace=self.namespace, **given)
        except ApiException as error:
            raise InfraError(f"Kubernetes: {error.status} {error.reason}: {_message(error.body)}") from error
        except (ClientError, OSError, TimeoutError) as error:
            raise InfraError(f"Kubernetes: no answer: {one_line(error) or type(error).__name__}") from error

    async def _connect(self) -> None:
        try:
            from kubernetes_asyncio import client, config
            from kubernetes_asyncio.stream import WsApiClient
        except ImportError:
            raise UserError("pods need kubernetes-asyncio: run `pip install 'agentrl[kubernetes]'`") from None
        configuration, context = client.Configuration(), self.settings.context
        try:
            if self._inside and context is None:
                config.load_incluster_config(client_configuration=configuration)
            else:
                await config.load_kube_config(context=context, client_configuration=configuration)
        except config.ConfigException as error:
            why = f"{one_line(error)}; set KUBECONFIG, or run in the cluster"
            raise UserError(f"no Kubernetes cluster is configured: {why}") from None
        configuration.connection_pool_maxsize = CONNECTIONS
        self.namespace = self.settings.namespace or self._inside or "default"
        self._exec = client.CoreV1Api(WsApiClient(configuration, heartbeat=HEARTBEAT_SECONDS))
        self._api = client.CoreV1Api(client.ApiClient(configuration))
        if self._inside == self.namespace:
            await self._find_owner()
        await self._close_network(client.NetworkingV1Api(self._api.api_client))

    async def _find_owner(self) -> None:
        with contextlib.suppress(InfraError):  # may not be allowed
            own = await self.call("read_namespaced_pod", name=socket.gethostname())
            about = {"apiVersion": "v1", "kind": "Pod", "name": own.metadata.name, "uid": own.metadata.uid}
            self.owners = [about]

    async def _close_network(self, api: Any) -> None:
        """Have the policy that closes the network of pods with the label. Raises UserError."""
        from kubernetes_asyncio.client.exceptions import ApiException

        about = {"podSelector": {"matchLabels": {NETWORK: "none"}}, "policyTypes": ["Ingress", "Egress"]}
        body = {"metadata": {"name": "agentrl-no-network"}, "spec": about}
        try:
            await api.create_namespaced_network_policy(self.namespace, body)
        except ApiException as error:
            if error.status != 409:  # it is there
                raise UserError(f"Kubernetes: no network policy in {self.namespace}: {_message(error.body)}") from error


def _message(body: Any) -> str:
    try:
        return str(json.loads(body)["message"])
    except (TypeError, ValueError, KeyError):
        return " ".join(str(body).split())[:300]
