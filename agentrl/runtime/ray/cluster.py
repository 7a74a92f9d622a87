"""Joins or starts the Ray cluster of a run, and reserves its resources."""

import logging
import os
import socket
import time
from contextlib import ExitStack
from typing import Any

import ray
from ray._private.services import find_bootstrap_address
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group

from agentrl.config.schema import RayInit
from agentrl.core.errors import UserError
from agentrl.tracking.waiting import Waiting

FORWARDED = ("HF_", "NCCL_", "GLOO_", "TORCH_", "TOKENIZERS_")
"""Prefixes of environment variables that the controller passes to workers, unless already set there."""
QUIET: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}


def connect(ray_init: RayInit, stack: ExitStack) -> None:
    """Join the cluster that `ray_init` or the environment names, or start one; `stack` leaves it. Raises UserError."""
    if ray.is_initialized():  # started by the caller in this process: a notebook, a test
        return
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # workers without a GPU still see them
    os.environ.setdefault("RAY_worker_niceness", "0")  # otherwise training gets the lowest CPU priority
    address = ray_init.address or ("local" if ray_init.num_cpus or not cluster_is_running() else None)
    try:
        ray.init(address, num_cpus=ray_init.num_cpus, **QUIET)
    except (ConnectionError, ValueError) as error:
        raise UserError(
            f"ray_init.address={address}: {error}; `ray start --head` starts a cluster; all machines of it and this "
            "run need RAY_AUTH_MODE=token and the same ~/.ray/auth_token"
        ) from error
    stack.callback(ray.shutdown)
    if ray_init.timeline_json_file:
        stack.callback(ray.timeline, os.path.abspath(os.path.expanduser(ray_init.timeline_json_file)))


def cluster_is_running() -> bool:
    """Whether `RAY_ADDRESS` names a cluster, or a cluster started by `ray start` on this machine answers.

    A killed cluster leaves its address behind, and Ray would wait minutes for it.
    """
    if os.environ.get("RAY_ADDRESS"):
        return True
    host, _, port = (find_bootstrap_address(None) or "").rpartition(":")
    if not host:
        return False
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def on_gpus(device: str) -> bool:
    """Whether the run uses GPUs of this cluster; the controller's machine may have none."""
    if device == "auto":
        return ray.cluster_resources().get("GPU", 0) > 0
    return device == "cuda"


def bundle_of(each: int, *, gpus: bool) -> dict[str, float]:
    """The resources of `each` processes of a machine."""
    return {"CPU": each, "GPU": each} if gpus else {"CPU": each}


def machines_with(bundle: dict[str, float]) -> int:
    """How many machines are large enough, including resources in use."""
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return sum(all(has.get(name, 0) >= amount for name, amount in bundle.items()) for has in alive)


def reserve(
    keys: str, machines: int, each: int, *, gpus: bool, timeout: float, stack: ExitStack
) -> tuple[PlacementGroup, list[int]]:
    """`each` GPUs (CPUs without) on each of `machines`, and the bundle of every process, this machine's first.

    `keys`: the settings that ask for it. `stack` gives them back. Raises UserError when they are not there, at once
    where more cannot come, or after `timeout` seconds.
    """
    bundle = bundle_of(each, gpus=gpus)
    grows = "RAY_ADDRESS" in os.environ or len(ray.nodes()) > 1
    group = placement_group([bundle] * machines, strategy="STRICT_SPREAD" if machines > 1 else "STRICT_PACK")
    stack.callback(remove_placement_group, group)
    patience = timeout if grows or machines_with(bundle) >= machines else 0.1
    last = time.monotonic() + patience
    with Waiting("waiting for the cluster") as waiting:
        while not group.wait(min(1.0, patience)):
            if time.monotonic() >= last:
                raise UserError(missing(keys, machines, bundle))
            waiting(f"waiting for {describe(machines, bundle)}")
    nodes = placement_group_table(group)["bundles_to_node_id"]
    here = ray.get_runtime_context().get_node_id()
    order = sorted(range(machines), key=lambda i: (nodes[i] != here, i))
    return group, [bundle_index for bundle_index in order for _ in range(each)]


def missing(keys: str, machines: int, bundle: dict[str, float]) -> str:
    """Error message: the request, the cluster's resources, the fix."""
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    every = (*alive, ray.available_resources())
    *there, idle = (f"{has.get('CPU', 0):g} CPUs and {has.get('GPU', 0):g} GPUs" for has in every)
    return (
        f"{keys} asks for {describe(machines, bundle)}; the Ray cluster has {len(alive)} with {', '.join(there)}, "
        f"{idle} of them free: ask for less, join a larger cluster (ray_init.address), "
        "let a CPU count more than once (ray_init.num_cpus), or open all TCP ports between the machines"
    )


def describe(machines: int, bundle: dict[str, float]) -> str:
    """A request in words: "2 machines with 4 GPUs each"."""
    amounts = " and ".join(f"{amount:g} {name}s" for name, amount in bundle.items())
    return f"{machines} machine{'s' if machines > 1 else ''} with {amounts}{' each' if machines > 1 else ''}"


def forwarded_env() -> dict[str, str]:
    """Environment variables of this process that workers may need."""
    return {name: value for name, value in os.environ.items() if name.startswith(FORWARDED)}
