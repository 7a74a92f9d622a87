"""A stand-in for a Kubernetes API server and its nodes: pods are containers of Docker, and commands run in them.

It speaks v4.channel.k8s.io as kubelets do: empty first messages, a status last. An image `missing` is never pulled, one
`huge` fits on no node, and the container of one `ended` has. Each pod has a sidecar, which runs at once.
"""

import asyncio
import json
import os
import subprocess
from asyncio.subprocess import PIPE
from collections.abc import Mapping
from typing import Any

from aiohttp import WSMsgType, web

PODS = "/api/v1/namespaces/{namespace}/pods"
POLICIES = "/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies"
STDIN, STDOUT, STDERR, STATUS = range(4)
PULL = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "missing"'}
ENDED = {"exitCode": 128, "reason": "StartError", "message": "no sh"}
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "Insufficient cpu"}


class ApiServer:
    """Its pods by name, and what it was asked."""

    def __init__(self, docker: str = "docker") -> None:
        self.docker = docker
        self.pods: dict[str, dict[str, Any]] = {}
        self.policies: list[dict[str, Any]] = []
        self.deleted: list[str] = []
        app = web.Application()
        app.router.add_post(PODS, self.create)
        app.router.add_get(f"{PODS}/{{name}}", self.read)
        app.router.add_delete(f"{PODS}/{{name}}", self.delete)
        app.router.add_delete(PODS, self.delete_all)
        app.router.add_get(f"{PODS}/{{name}}/exec", self.execute)
        app.router.add_post(POLICIES, self.policy)
        self.runner = web.AppRunner(app)

    async def start(self) -> str:
        """Its address."""
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        return site.name

    async def close(self) -> None:
        for name in list(self.pods):
            await self._remove(name)
        await self.runner.cleanup()

    async def create(self, request: web.Request) -> web.Response:
        pod = await request.json()
        name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]
        if name in self.pods:
            return _failure(409, "AlreadyExists", f'pods "{name}" already exists')
        pod |= {"apiVersion": "v1", "kind": "Pod", "status": _status(container["image"])}
        self.pods[name] = pod
        if container["image"] not in ("missing", "huge", "ended"):
            folder = ["--workdir", container["workingDir"]] if container.get("workingDir") else []
            entry, *words = container["command"]
            run = ["run", "-d", "--name", name, "--network", "none", *folder, "--entrypoint", entry]
            await self._call(*run, container["image"], *words)
        return web.json_response(pod, status=201)

    async def read(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        return web.json_response(self.pods[name]) if name in self.pods else _missing(name)

    async def delete(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self.pods:
            return _missing(name)
        pod = self.pods[name]
        await self._remove(name)
        return web.json_response(pod)

    async def delete_all(self, request: web.Request) -> web.Response:
        key, _, value = request.query["labelSelector"].partition("=")
        for name in [name for name, pod in self.pods.items() if pod["metadata"]["labels"].get(key) == value]:
            await self._remove(name)
        return web.json_response({"status": "Success"})

    async def policy(self, request: web.Request) -> web.Response:
        policy = await request.json()
        if any(policy["metadata"]["name"] == one["metadata"]["name"] for one in self.policies):
            return _failure(409, "AlreadyExists", "it is there")
        self.policies.append(policy)
        return web.json_response(policy, status=201)

    async def execute(self, request: web.Request) -> web.StreamResponse:
        name, query = request.match_info["name"], request.query
        if name not in self.pods:
            return _missing(name)
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await socket.prepare(request)
        for channel in (STDOUT, STDERR, STATUS):
            await socket.send_bytes(bytes([channel]))
        given = ["-i"] if query.get("stdin", "").lower() == "true" else []
        words = [self.docker, "exec", *given, name, *query.getall("command")]
        process = await asyncio.create_subprocess_exec(*words, stdin=PIPE, stdout=PIPE, stderr=PIPE)
        reading = asyncio.create_task(_feed(socket, process.stdin))
        await asyncio.gather(_pass_on(socket, STDOUT, process.stdout), _pass_on(socket, STDERR, process.stderr))
        code = await process.wait()
        reading.cancel()
        if name in self.pods:
            await socket.send_bytes(bytes([STATUS]) + json.dumps(_ended(code)).encode())
        await socket.close()
        return socket

    async def _remove(self, name: str) -> None:
        del self.pods[name]
        self.deleted.append(name)
        await self._call("rm", "-f", name)

    async def _call(self, *words: str) -> None:
        await asyncio.to_thread(subprocess.run, [self.docker, *words], capture_output=True, env=os.environ)


async def _feed(socket: web.WebSocketResponse, stdin: asyncio.StreamWriter | None) -> None:
    """Standard input, which this protocol cannot end."""
    assert stdin is not None
    async for message in socket:
        if message.type == WSMsgType.BINARY and message.data[0] == STDIN:
            stdin.write(message.data[1:])
            await stdin.drain()


async def _pass_on(socket: web.WebSocketResponse, channel: int, stream: asyncio.StreamReader | None) -> None:
    assert stream is not None
    while data := await stream.read(1 << 15):
        await socket.send_bytes(bytes([channel]) + data)


def _ended(code: int) -> dict[str, Any]:
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    details = {"causes": [{"reason": "ExitCode", "message": str(code)}]}
    message = f"command terminated with non-zero exit code: exit status {code}"
    return {"metadata": {}, "status": "Failure", "message": message, "reason": "NonZeroExitCode", "details": details}


def _status(image: str) -> dict[str, Any]:
    if image == "huge":
        return {"phase": "Pending", "conditions": [UNSCHEDULABLE]}
    states: Mapping[str, Any] = {"missing": {"waiting": PULL}, "ended": {"terminated": ENDED}}
    state = states.get(image, {"running": {}})
    about = {"image": image, "imageID": "", "ready": True, "restartCount": 0}
    containers = [{"name": "proxy", **about, "state": {"running": {}}}, {"name": "main", **about, "state": state}]
    return {"phase": "Pending" if image == "missing" else "Running", "containerStatuses": containers}


def _missing(name: str) -> web.Response:
    return _failure(404, "NotFound", f'pods "{name}" not found')


def _failure(code: int, reason: str, message: str) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason}
    return web.json_response(body | {"code": code}, status=code)
