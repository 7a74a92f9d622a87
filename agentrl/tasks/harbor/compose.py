"""Reads a task's `docker-compose.yaml`: the service that is its container, and the others for Docker's own Compose.

Invariant: settings that would make its container another one are refused, and those without an effect are noted; none
is left out silently. The other services are checked again as Compose reads them (containers/docker/compose.py).
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
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

SAME = ("container_name", "expose", "init", "pull_policy", "restart", "stdin_open", "stop_grace_period", "tty")
"""Settings that no command in the container notices."""
NOTED = ("hostname", "platform", "ports")
READ = {"build", "image", "working_dir", "environment", "volumes", "network_mode", "command", "entrypoint", "deploy"}
READ |= {"cpus", "mem_limit", "pids_limit"}
WITH_OTHERS = {"depends_on", "healthcheck", "networks"}
"""Settings that matter where there are several services."""
START_TIMEOUT = 600.0
"""Seconds until all services are healthy."""
TOP = {"services", "version", "name", "volumes", "networks"}
CONTEXTS = ("${CONTEXT_DIR}", "$CONTEXT_DIR")
"""Harbor's variables for the folder of the file."""
HARNESS = ("${T_BENCH_", "${HOST_")
"""Variables of the harness itself: folders for logs, and names."""
VARIABLE = re.compile(r"\$(?:(?P<dollar>\$)|(?P<short>\w+)|\{(?P<name>\w+)(?::?-(?P<default>[^}]*))?\})")


@dataclass(frozen=True)
class Service:
    """A container as a service asks for it."""

    spec: ContainerSpec
    mounts: tuple[Copy, ...] = ()
    """Files of the task that it mounts: the container gets copies."""


def read_compose(file: Path, folder: Path, top: Fields, main: str) -> Service:
    """The services of a file in a task's folder, where it is there; `top`: the task's fields; `main`: the name of the
    service that is the container, where there are several. Raises UserError where one needs more than containers
    have."""
    if not file.is_file():
        return Service(ContainerSpec(cpus=None, memory_mb=None, processes=None, network="full"))
    try:
        parsed = read_yaml(read_inside(file, folder))
    except yaml.YAMLError as error:
        raise UserError(f"{file} is no Compose file: {one_line(error)}") from None
    services = parsed.get("services") if isinstance(parsed, Mapping) else None
    if not isinstance(services, Mapping) or not services:
        raise UserError(f"{file} is no Compose file with services")
    outside = {key for key in parsed if key not in TOP and not str(key).startswith("x-")}
    name = main if len(services) > 1 else next(iter(services))
    service = Fields({name: services.get(name)}, str(file), passed=top.passed).sub(name)
    service.notes, others = top.notes, len(services.keys() - {name}) > 0
    _refuse(service, outside | (service.values.keys() - {*SAME, *NOTED, *READ, *(WITH_OTHERS if others else ())}))
    mounts = tuple(_mounts(file, service))
    spec = _spec(file, folder, service)
    if others:
        list(map(service.get, WITH_OTHERS))
        beside = _others(Services(file, folder, main=name), parsed, top)
        spec = replace(spec, services=beside, start_timeout=START_TIMEOUT)
    service.notes += [f"{file.name}: {unread} has no effect" for unread in service.unread()]
    return Service(spec, mounts)


def _others(services: Services, parsed: Mapping[str, Any], top: Fields) -> Services:
    """The other services, and values of their variables. What Compose would read outside of the folder is refused."""
    texts = [*_texts(parsed)]
    for name, values in parsed["services"].items():
        service = Fields({name: values}, str(services.file)).sub(name)
        given, files = service.get("environment") or (), service.get("env_file") or ()
        bare = (one for one in given if (given[one] is None if isinstance(given, Mapping) else "=" not in one))
        texts += [f"${{{one}}}" for one in bare]
        if name == services.main:
            continue
        refuse_service(services, name, service.values, ("env_file", "extends"))
        refuse(services, f"services.{name}.extends", {"file"} & set(service.get("extends") or ()))
        for one in [files] if isinstance(files, str) else files:
            inside(services.file.parent / str(one["path"] if isinstance(one, Mapping) else one), services.folder)
        list(_mounts(services.file, service))
        top.notes += [f"{services.file.name}: {name}.ports has no effect"] if service.get("ports") else []
    return replace(services, variables=_variables(services, texts, top))


def _variables(services: Services, texts: Iterable[str], top: Fields) -> dict[str, str]:
    """Values of the variables in texts. Raises UserError for one that the task may not have."""
    found = {"CONTEXT_DIR": str(services.file.parent), **top.sub("environment").texts("env")}
    for match in (match for text in texts for match in VARIABLE.finditer(text) if not match["dollar"]):
        name, default = match["name"] or match["short"], match["default"]
        if f"${{{name}".startswith(HARNESS):
            found[name] = f"{services.nowhere}/{name}"
        elif name not in found and (value := top.variable(services.file.name, name, default)) != default:
            found[name] = value
    return found


def _texts(value: Any) -> Iterator[str]:
    """All texts in a value, at any depth."""
    if isinstance(value, Mapping | list):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(one)
    elif isinstance(value, str):
        yield value


def _refuse(service: Fields, unknown: Iterable[Any]) -> None:
    """Raises UserError for what would make the container another one."""
    refused = [str(key) for key in unknown]
    network = str(service.get("network_mode") or "bridge")
    refused += ["network_mode"] if network != "none" and "bridge" not in network else []
    reserved = service.sub("deploy").sub("resources").sub("reservations")
    refused += ["deploy.resources.reservations.devices"] if reserved.get("devices") else []
    if refused:
        raise UserError(f"{service.file}: {service.table}{min(refused)} is not supported; leave the task out")
    for key in SAME:
        service.get(key)


def _spec(file: Path, folder: Path, service: Fields) -> ContainerSpec:
    build, image = _build(file, folder, service), service.text("image")
    limits = service.sub("deploy").sub("resources").sub("limits")
    entrypoint, command = _words(service, "entrypoint"), _words(service, "command")
    return ContainerSpec(
        image=None if build else image,
        build=build,
        workdir=service.text("working_dir"),
        env=dict(_environment(service)),
        cpus=service.number("cpus", 0) or limits.number("cpus", 0) or None,
        memory_mb=service.size("mem_limit", in_bytes=True) or limits.size("memory", in_bytes=True),
        processes=int(service.number("pids_limit", 0) or limits.number("pids", 0)) or None,
        network="none" if service.get("network_mode") == "none" else "full",
        command=(*entrypoint, *command),
        entrypoint=service.get("entrypoint") is None,
    )


def _mounts(file: Path, service: Fields) -> Iterator[Copy]:
    """Raises UserError for a folder of this machine that is not the task's. A volume of Docker's own begins empty."""
    for volume in service.get("volumes") or ():
        source, to = _ends(volume)
        if source.startswith(HARNESS) or not source.startswith((".", "/", "~", "$")):
            continue
        if source[0] in "~$":
            raise UserError(f"{file}: {service.table}volumes: {source} is outside of the task; leave the task out")
        place = inside(file.parent / source, file.parent).resolve()
        if place.exists():
            yield Copy(place, to)


def _ends(volume: Any) -> tuple[str, str]:
    """Source and target; no source: a volume without a name."""
    if isinstance(volume, Mapping):
        bound = volume.get("type", "bind") == "bind"
        return str(volume.get("source", "")) if bound else "", str(volume.get("target", ""))
    source, colon, rest = str(volume).partition(":")
    return (source, rest.partition(":")[0]) if colon else ("", source)


def _build(file: Path, folder: Path, service: Fields) -> Path | None:
    given = service.get("build")
    if given is None:
        return None
    settings = given if isinstance(given, Mapping) else {"context": given}
    refused = [str(key) for key in settings.keys() - {"context", "dockerfile"}]
    refused += ["dockerfile"] if Path(str(settings.get("dockerfile", "Dockerfile"))) != Path("Dockerfile") else []
    if refused:
        raise UserError(f"{file}: build.{min(refused)} is not supported; leave the task out")
    context = str(settings.get("context", "."))
    return file.parent if context in CONTEXTS else inside(file.parent / context, folder).resolve()


def _words(service: Fields, key: str) -> tuple[str, ...]:
    """A command, as a text or a list."""
    value = service.get(key) or ()
    words = shlex.split(value) if isinstance(value, str) else value
    return tuple(_filled(service, key, str(word)) for word in words)


def _environment(service: Fields) -> Iterator[tuple[str, str]]:
    """Variables, without those that only the harness can fill in."""
    entries = service.get("environment") or ()
    listed = entries.items() if isinstance(entries, Mapping) else (str(one).partition("=")[::2] for one in entries)
    for name, value in listed:
        bare = value is None or (not value and name in entries and not isinstance(entries, Mapping))
        text = f"${{{name}}}" if bare else str(value)
        if not any(start in text for start in HARNESS):
            yield str(name), _filled(service, f"environment.{name}", text)


def _filled(service: Fields, key: str, text: str) -> str:
    """A text with its variables filled in."""

    def value(found: re.Match[str]) -> str:
        return found["dollar"] or service.variable(key, found["name"] or found["short"], found["default"])

    return VARIABLE.sub(value, text)
