"""Reads the one service that a task's `docker-compose.yaml` describes.

Invariant: settings that would make its container another one are refused, never left out silently.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from agentrl.core.errors import UserError

IGNORED = {"container_name", "ports", "expose", "deploy", "hostname", "tty", "stdin_open", "init", "restart"}
IGNORED |= {"pull_policy", "stop_grace_period", "command", "cpus", "mem_limit"}
"""Settings without an effect on a task: its container idles, under the limits of the task."""


@dataclass(frozen=True)
class Service:
    """What is used of a service."""

    image: str | None = None
    build: Path | None = None
    workdir: str | None = None
    env: dict[str, str] = field(default_factory=dict)


def read_compose(file: Path, main: str) -> Service:
    """The service of a file, usually named `main`. Raises UserError where there are several, or it needs more."""
    try:
        parsed = yaml.safe_load(file.read_text())
        services = dict(parsed["services"])
    except (yaml.YAMLError, TypeError, KeyError, ValueError):
        raise UserError(f"{file} is no Compose file with services") from None
    if len(services) != 1:
        raise UserError(f"{file}: the task needs {len(services)} services, and one is supported; leave the task out")
    name, service = next(iter(services.items()))
    service = service or {}
    refused = set(service) - IGNORED - {"build", "image", "working_dir", "environment", "volumes"}
    refused |= {"volumes"} if any("T_BENCH" not in str(one) for one in service.get("volumes") or ()) else set()
    if refused:
        raise UserError(f"{file}: {name}.{min(refused)} is not supported; leave the task out")
    build = _build(file, service.get("build"))
    image = str(service["image"]) if "image" in service and build is None else None
    return Service(image, build, service.get("working_dir"), _environment(service.get("environment")))


def _build(file: Path, build: Any) -> Path | None:
    if build is None:
        return None
    settings = build if isinstance(build, Mapping) else {"context": build}
    refused = set(settings) - {"context", "dockerfile"}
    if refused or settings.get("dockerfile", "Dockerfile") != "Dockerfile":
        raise UserError(f"{file}: build.{min(refused, default='dockerfile')} is not supported; leave the task out")
    context = str(settings.get("context", "."))
    return file.parent if "$" in context else (file.parent / context).resolve()


def _environment(entries: Any) -> dict[str, str]:
    pairs = entries.items() if isinstance(entries, Mapping) else (str(one).split("=", 1) for one in entries or ())
    found = {pair[0]: str(pair[1]) for pair in pairs if len(pair) == 2}
    return {key: value for key, value in found.items() if "${" not in value}
