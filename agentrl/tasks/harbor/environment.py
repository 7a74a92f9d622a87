"""The tables of a `task.toml` that describe a container: its image, limits, network and user."""

from pathlib import Path

from agentrl.containers import ContainerSpec
from agentrl.core.errors import UserError
from agentrl.tasks.harbor.fields import Fields

NETWORKS = {"public": "full", "no-network": "none", "allowlist": "allow"}
"""The format's names -> those of containers."""


def limits(environment: Fields, image: str | None, build: Path | None) -> ContainerSpec:
    """A container of an image, or of a folder to build, with the limits of a table and no others. The image comes
    first. Raises UserError for devices that containers do not have."""
    for devices, asked in (("gpus", environment.number("gpus", 0)), ("tpu", environment.get("tpu"))):
        if asked:
            kind = "GPU" if devices == "gpus" else "TPU"
            why = f"containers with a {kind} are not supported; leave the task out"
            raise UserError(f"{environment.file}: {environment.table}{devices}: {why}")
    return ContainerSpec(
        image=image,
        build=None if image else build,
        workdir=environment.text("workdir"),
        env=environment.texts("env"),
        cpus=environment.number("cpus", 0) or None,
        memory_mb=environment.megabytes("memory_mb", "memory"),
        storage_mb=environment.megabytes("storage_mb", "storage"),
        processes=None,
        build_timeout=environment.number("build_timeout_sec", ContainerSpec.build_timeout),
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
