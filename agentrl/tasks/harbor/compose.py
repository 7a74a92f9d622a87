"""Reads a task's `docker-compose.yaml`: the service that is its container, and the others for Docker's own Compose.

Invariant: settings that would make its container another one are refused, and those without an effect are noted; none
is left out silently. The other services are checked again as Compose reads them (containers/docker/compose.py).
"""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from agentrl.containers import ContainerSpec, Services
from agentrl.containers.docker.compose import refuse, refuse_service
from agentrl.core.errors import UserError, one_line
from agentrl.core.foreign import read_yaml
from agentrl.core.inside import inside, read_inside
from agentrl.tasks.harbor.fields import Fields
from agentrl.tasks.harbor.task import Copy

SAME = {"container_name", "expose", "init", "pull_policy", "restart", "stdin_open", "stop_grace_period", "tty"}
SAME |= {"depends_on", "healthcheck", "networks"}
"""Settings that no command in the container notices, or that Compose reads."""
NOTED = {"hostname", "platform", "ports"}
READ = {"build", "image", "working_dir", "environment", "volumes", "network_mode", "command", "entrypoint", "deploy"}
READ |= {"cpus", "mem_limit", "pids_limit"}
START_TIMEOUT = 600.0
"""Seconds until all services are healthy."""
TOP = {"services", "version", "name", "volumes", "networks"}
HARNESS = ("T_BENCH_", "HOST_", "ENV_VERIFIER_", "ENV_AGENT_", "ENV_ARTIFACTS_")
"""Variables of the harness itself: folders for logs, and names."""
VARIABLE = re.compile(r"\$(?:(?P<dollar>\$)|(?P<short>\w+)|\{(?P<name>\w+)(?::?-(?P<default>[^}]*))?\})")
Fill = Callable[[re.Match[str]], str]


def read_compose(file: Path, folder: Path, top: Fields, main: str) -> tuple[ContainerSpec, tuple[Copy, ...]]:
    """The container of a file in a task's folder, where it is there, and files of the task that it mounts: it gets
    copies. `top`: the task's fields; `main`: the service that is the container, where there are several. Raises
    UserError where one needs more than containers have."""
    if not file.is_file():
        return ContainerSpec(cpus=None, memory_mb=None, processes=None, network="full"), ()
    try:
        parsed = read_yaml(read_inside(file, folder))
    except yaml.YAMLError as error:
        raise UserError(f"{file} is no Compose file: {one_line(error)}") from None
    if not isinstance(parsed, Mapping) or not isinstance(parsed.get("services"), Mapping) or not parsed["services"]:
        raise UserError(f"{file} is no Compose file with services")
    variables = {"CONTEXT_DIR": str(file.parent), **top.sub("environment").texts("env")}
    services = Services(file, folder, variables, main if len(parsed["services"]) > 1 else min(parsed["services"]))

    def fill(found: re.Match[str]) -> str:
        name = found["name"] or found["short"]
        if found["dollar"] or name in variables:
            return found["dollar"] or variables[name]
        nowhere, default = name.startswith(HARNESS), found["default"]
        value = f"{services.nowhere}/{name}" if nowhere else top.variable(file.name, name, default)
        if value != default:
            variables[name] = value
        return value

    table = Fields({services.main: {}, **_filled(parsed["services"], fill)}, str(file))
    service, others = table.sub(services.main), table.values.keys() - {services.main}
    refuse(services, "top", {str(key) for key in parsed if key not in TOP and not str(key).startswith("x-")})
    _check(services, service)
    mounts = tuple(_mounts(services, service))
    spec = _spec(services, service, fill)
    for name in others:
        _check_other(services, name, table.sub(name), fill)
    if others:
        spec = replace(spec, services=services, start_timeout=START_TIMEOUT)
    top.notes += [f"{file.name}: {unread} has no effect" for unread in service.unread()]
    return spec, mounts


def _filled(value: Any, fill: Fill) -> Any:
    """A value with the variables in its texts filled in."""
    if isinstance(value, Mapping):
        return {key: _filled(one, fill) for key, one in value.items()}
    if isinstance(value, list):
        return [_filled(one, fill) for one in value]
    return VARIABLE.sub(fill, value) if isinstance(value, str) else value


def _check(services: Services, service: Fields) -> None:
    """Raises UserError for what would make the container another one."""
    where, mode = f"services.{services.main}", str(service.get("network_mode") or "bridge")
    refuse(services, where, {str(key) for key in service.values.keys() - SAME - NOTED - READ})
    refuse(services, where, {"network_mode"} if mode != "none" and "bridge" not in mode else ())
    reserved = service.sub("deploy").sub("resources").sub("reservations")
    refuse(services, f"{where}.deploy.resources.reservations", {"devices"} if reserved.get("devices") else ())
    for key in SAME:
        service.get(key)


def _check_other(services: Services, name: str, service: Fields, fill: Fill) -> None:
    """Raises UserError for what Compose would read outside of the folder, and what it may not do."""
    refuse_service(services, name, service.values, ("env_file", "extends"))
    refuse(services, f"services.{name}.extends", {"file"} & set(service.get("extends") or ()))
    files = service.get("env_file") or []
    for one in files if isinstance(files, list) else [files]:
        inside(services.file.parent / str(one["path"] if isinstance(one, Mapping) else one), services.folder)
    list(_mounts(services, service))
    dict(_environment(service, fill))


def _spec(services: Services, service: Fields, fill: Fill) -> ContainerSpec:
    build, image = _build(services, service), service.text("image")
    limits = service.sub("deploy").sub("resources").sub("limits")
    entrypoint, command = _words(service, "entrypoint"), _words(service, "command")
    return ContainerSpec(
        image=None if build else image,
        build=build,
        workdir=service.text("working_dir"),
        env={name: text for name, text in _environment(service, fill) if services.nowhere not in text},
        cpus=service.number("cpus", 0) or limits.number("cpus", 0) or None,
        memory_mb=service.size("mem_limit", in_bytes=True) or limits.size("memory", in_bytes=True),
        processes=int(service.number("pids_limit", 0) or limits.number("pids", 0)) or None,
        network="none" if service.get("network_mode") == "none" else "full",
        command=(*entrypoint, *command),
        entrypoint=service.get("entrypoint") is None,
    )


def _mounts(services: Services, service: Fields) -> Iterator[Copy]:
    """Raises UserError for a folder of this machine that is not the task's. A volume of Docker's own begins empty."""
    for volume in service.get("volumes") or ():
        bound = (
            volume
            if isinstance(volume, Mapping)
            else dict(zip(("source", "target"), str(volume).split(":"), strict=False))
        )
        source, folder = str(bound.get("source", "")), services.file.parent
        if not source.startswith((".", "/", "~")) or "target" not in bound or source.startswith(services.nowhere):
            continue
        place = inside(folder / Path(source).expanduser(), folder).resolve()
        if place.exists():
            yield Copy(place, str(bound["target"]))


def _build(services: Services, service: Fields) -> Path | None:
    given, file = service.get("build"), services.file
    if given is None:
        return None
    settings = given if isinstance(given, Mapping) else {"context": given}
    odd = Path(str(settings.get("dockerfile", "Dockerfile"))) != Path("Dockerfile")
    refuse(services, "build", settings.keys() - {"context", "dockerfile"} or ({"dockerfile"} if odd else ()))
    return inside(file.parent / str(settings.get("context", ".")), services.folder).resolve()


def _words(service: Fields, key: str) -> tuple[str, ...]:
    """A command, as a text or a list."""
    value = service.get(key) or ()
    return tuple(map(str, shlex.split(value) if isinstance(value, str) else value))


def _environment(service: Fields, fill: Fill) -> Iterator[tuple[str, str]]:
    """Variables; a name alone is a variable of this machine."""
    entries = service.get("environment") or ()
    listed = entries.items() if isinstance(entries, Mapping) else (str(one).partition("=")[::2] for one in entries)
    for name, value in listed:
        bare = value is None or (not value and name in entries and not isinstance(entries, Mapping))
        yield str(name), VARIABLE.sub(fill, f"${{{name}}}") if bare else str(value)
