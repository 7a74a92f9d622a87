"""Services that run with a container, by Docker's own Compose.

Invariants:
- Compose reads one file, and of this machine's variables those alone that the task may have;
- its own reading of the file is checked, and that is what runs: no folder, device, port, network or right of this
  machine is in it; mounted files of the task are copied;
- all that it makes has the labels of the run, and is removed with the container.
"""

import hashlib
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.containers.archive import MAX_BYTES, packed
from agentrl.containers.commands import Command, piped
from agentrl.containers.contract import ContainerSpec, Services
from agentrl.containers.docker import reaper
from agentrl.containers.docker.engine import Engine
from agentrl.containers.docker.images import LABEL, Images
from agentrl.containers.docker.networks import NO_NAMES
from agentrl.containers.output import OutputEnds
from agentrl.core.errors import InfraError, UserError, last_line
from agentrl.core.inside import inside

BUILD = {"context", "dockerfile", "dockerfile_inline", "args", "target", "labels", "shm_size"}
SETTINGS = """build image command entrypoint environment working_dir user volumes tmpfs networks network_mode depends_on
healthcheck hostname domainname expose init restart stop_signal stop_grace_period stdin_open tty shm_size ulimits
read_only platform cpus mem_limit memswap_limit pids_limit deploy extra_hosts cap_drop links group_add"""
"""A service's, as far as they concern its container alone."""
KEPT = frozenset(SETTINGS.split())
DROPPED = {"container_name", "ports", "labels", "logging", "attach", "pull_policy", "annotations"}
"""Settings that no process of the task's notices, or that would publish or name something on this machine."""
LIMITS = {"cpus": "cpus", "memory": "mem_limit", "pids": "pids_limit"}
"""Names of limits in `deploy` and of a service: the same limit twice is refused."""
UP = "--env-file /dev/null -f - up --detach --wait --no-build --pull never"
NO_COMPOSE = "a task with several services needs Docker's compose plugin: install docker-compose-plugin, and try again"


@dataclass(frozen=True)
class Project:
    """The services of a task."""

    document: dict[str, Any]
    """Without the service that is the container."""
    copies: tuple[tuple[str, Path, str], ...]
    """Service, file or folder of the task, place in the service's container."""
    networks: tuple[str, ...]
    """Networks that the container is in with services."""
    volumes: Mapping[str, str]
    """Volumes of the container -> their places in it."""


class Composer:
    """Runs the services of one run's containers."""

    def __init__(self, engine: Engine, images: Images) -> None:
        self.engine, self.images = engine, images
        self._projects: dict[str, Project] = {}

    async def project(self, spec: ContainerSpec) -> Project:
        """The services of a spec, with their images. Raises UserError, InfraError."""
        assert spec.services is not None
        key = str(spec.services)
        if key not in self._projects:
            project = checked(await self._read(spec.services), spec.services)
            for values in project.document["services"].values():
                if "build" not in values:
                    await self.images.have(ContainerSpec(image=values["image"]))
            await self._compose("-p agentrl -f - build", project.document, spec.services, {})
            self._projects[key] = project
        return self._projects[key]

    async def up(self, name: str, spec: ContainerSpec, limits: Mapping[str, Any]) -> Project:
        """Start the services of a container and wait until they are healthy. Raises InfraError."""
        project, client = await self.project(spec), self.engine.client
        document: dict[str, Any] = json.loads(json.dumps(project.document))
        labels = {**self.engine.labels, reaper.PROJECT: name}
        closed = {} if spec.network == "full" else {"dns": NO_NAMES}
        for service, values in document["services"].items():
            asked, most = int(values.get("pids_limit") or 0), limits["pids_limit"]
            pids = asked if 0 < asked < most else most
            values |= {**limits, "pids_limit": pids, "container_name": f"{name}-{service}", "labels": labels, **closed}
        for network in document["networks"].values():
            network |= {"internal": True} if closed else {}
        for shared in (*document["networks"].values(), *document["volumes"].values()):
            shared["labels"] = labels
        if project.copies:
            await self._compose(f"-p {name} {UP.replace('up --detach --wait', 'create')}", document, spec.services, {})
        for service, source, target in project.copies:
            raw = await self.engine.call(client.containers.get, f"{name}-{service}")
            await self.engine.call(upload, raw, source, target)
        await self._compose(f"-p {name} {UP}", document, spec.services, {})
        for key in project.volumes:
            await self.engine.call(client.volumes.create, f"{name}_{key}", labels=labels)
        return project

    async def _compose(self, words: str, document: Any, services: Any, variables: Mapping[str, str]) -> str:
        """Standard output of a command. Raises UserError, InfraError."""
        config = os.environ.get("DOCKER_CONFIG") or str(Path.home() / ".docker")
        own = {name: value for name, value in self.engine.env.items() if name in ("PATH", "DOCKER_HOST")}
        command = Command([], 0.0, stdin=json.dumps(document).encode(), stdout=OutputEnds(MAX_BYTES))
        env = {**variables, **own, "DOCKER_CONFIG": config, "COMPOSE_ANSI": "never"}
        if await piped(["docker", "compose", *words.split()], command, cwd=services.file.parent, env=env):
            said = last_line(command.stderr.text())
            raise InfraError(f"{services.file}: docker compose: {said[:500]}")
        return command.stdout.text()

    async def _read(self, services: Services) -> Any:
        base = {"services": {services.main: {"image": "main"}}}
        try:
            await self._compose("version", None, services, {})
        except (InfraError, OSError):
            raise UserError(NO_COMPOSE) from None
        words = f"-p agentrl -f - -f {services.file.name} config --format json"
        return json.loads(await self._compose(words, base, services, services.variables))


def checked(document: Any, services: Services) -> Project:
    """Compose's reading of a file without what a task may not have. Raises UserError."""
    copies = list[tuple[str, Path, str]]()
    own = document["services"].pop(services.main)
    made = {name: _service(name, values, services, copies) for name, values in document["services"].items()}
    shared: dict[str, Any] = {"networks": {}, "volumes": {}}
    for kind, found in shared.items():
        for name, values in (document.get(kind) or {}).items():
            odd = {key for key, one in values.items() if one and key not in ("name", "internal", "labels")}
            refuse(services, f"{kind}.{name}", odd if values.get("driver") != "bridge" else odd - {"driver"})
            found[name] = {"internal": True} if values.get("internal") else {}
    used = {network for values in made.values() for network in values.get("networks", ())}
    named = (one for one in own.get("volumes", ()) if one["type"] == "volume" and "source" in one)
    volumes = {one["source"]: one["target"] for one in named}
    networks = tuple(name for name in own.get("networks", ()) if name in used)
    return Project({"services": made, **shared}, tuple(copies), networks, volumes)


def _service(name: str, values: Mapping[str, Any], services: Services, copies: list[Any]) -> dict[str, Any]:
    where = f"services.{name}"
    refuse_service(services, name, values)
    made = {key: value for key, value in values.items() if key in KEPT and value is not None}
    resources = made.pop("deploy", {}).get("resources", {})
    refuse(services, f"{where}.deploy.resources", {"devices"} & resources.get("reservations", {}).keys())
    if section := made.get("build"):
        refuse(services, f"{where}.build", section.keys() - BUILD)
        context = inside(Path(section["context"]), services.folder)
        inside(context / section.get("dockerfile", "Dockerfile"), services.folder)
        tag = f"agentrl-built:{hashlib.sha256(f'{services.file} {name}'.encode()).hexdigest()[:32]}"
        made |= {"image": tag, "build": {**section, "labels": {LABEL: tag}}}
    mounts = values.get("volumes", ())
    refuse(services, f"{where}.volumes", {one["type"] for one in mounts} - {"bind", "volume", "tmpfs"})
    for one in (one for one in mounts if one["type"] == "bind" and not one["source"].startswith(services.nowhere)):
        copies.append((name, inside(Path(one["source"]), services.folder), one["target"]))
    made["volumes"] = [one for one in mounts if one["type"] != "bind"]
    made |= {LIMITS[key]: value for key, value in resources.get("limits", {}).items() if key in LIMITS}
    made["depends_on"] = {key: one for key, one in values.get("depends_on", {}).items() if key != services.main}
    if old := values.get("container_name"):  # by which others may reach it
        for key, own in values.get("networks", {}).items():
            made["networks"][key] = {**(own or {}), "aliases": [*(own or {}).get("aliases", ()), old]}
    return made


def refuse_service(services: Services, name: str, values: Mapping[str, Any], more: Collection[str] = ()) -> None:
    """Raises UserError for a service with settings that a task may not have, or in this machine's network."""
    refuse(services, f"services.{name}", values.keys() - {*KEPT, *DROPPED, *more})
    mode = str(values.get("network_mode") or "none")
    alone = mode == "none" or (mode.startswith("service:") and mode != f"service:{services.main}")
    refuse(services, f"services.{name}", () if alone else {"network_mode"})


def refuse(services: Services, where: str, keys: Collection[str]) -> None:
    """Raises UserError for settings that a task may not have."""
    if keys:
        raise UserError(f"{services.file}: {where}.{min(keys)} is not supported; leave the task out")


def upload(raw: Any, source: Path, to: str) -> None:
    """Copy a file, or the content of a folder, into a container."""
    with packed(source, to) as archive:
        raw.put_archive("/", archive)
