"""The tables of a `task.toml` that describe a container: its image, limits, network and user."""

from pathlib import Path

from agentrl.containers import ContainerSpec
from agentrl.tasks.harbor.fields import Fields

NETWORKS = {"public": "full", "no-network": "none", "allowlist": "allow"}
"""The format's names -> those of containers."""


def limits(environment: Fields, image: str | None, build: Path | None) -> ContainerSpec:
    """A container of an image, or of a folder to build, with the limits of a table. The image comes first."""
    defaults = ContainerSpec()
    return ContainerSpec(
        image=image,
        build=None if image else build,
        workdir=environment.text("workdir"),
        env=environment.texts("env"),
        cpus=environment.number("cpus", defaults.cpus) or defaults.cpus,
        memory_mb=environment.megabytes("memory_mb", "memory") or defaults.memory_mb,
        storage_mb=environment.megabytes("storage_mb", "storage"),
        build_timeout=environment.number("build_timeout_sec", defaults.build_timeout),
    )


def network(environment: Fields) -> tuple[str, tuple[str, ...]]:
    """The network of an environment, by its field of today or the one before."""
    closed = environment.get("allow_internet") is False
    return policy(environment) or ("none" if closed else "full", ())


def policy(table: Fields) -> tuple[str, tuple[str, ...]] | None:
    mode, hosts = table.text("network_mode"), table.names("allowed_hosts")
    if mode is None:
        return None
    if mode not in NETWORKS:
        raise table.wrong("network_mode", mode, f"one of {', '.join(NETWORKS)}")
    return NETWORKS[mode], hosts


def user_of(table: Fields) -> str | None:
    """A user's name or number."""
    value = table.get("user")
    if isinstance(value, bool) or not isinstance(value, str | int | None):
        raise table.wrong("user", value, "a name or a number")
    return None if value is None else str(value)
