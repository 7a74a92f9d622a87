"""The engine of a run with rollout workers, and their start.

Invariant: weights change only while no worker has a request under way; a worker that starts learns the present state
first.
"""

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import ray
from ray._private.state import available_resources_per_node
from ray.util.placement_group import placement_group_table
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from agentrl.config.schema import Config
from agentrl.core.errors import UserError
from agentrl.core.shares import KEY, VARIABLE
from agentrl.engines.engine import Engine
from agentrl.engines.servers import RemoteEngine
from agentrl.rollout.building import scored_together
from agentrl.rollout.pausable_engine import StoppableEngine
from agentrl.rollout.user_objects import UserObjects
from agentrl.runtime.ray.links import Link, State
from agentrl.runtime.ray.rollout_worker import RolloutWorker
from agentrl.runtime.ray.worker_group import CALLS
from agentrl.runtime.ray.worker_handle import WorkerHandle
from agentrl.trajectory.store import Store

SMALL_ANSWERS = {"RAY_max_direct_call_object_size": "4096"}
"""Larger answers, such as bodies of trajectories, stay on the machine of the worker until they are read."""
KEPT = ("RAY_", "CUDA_", "NVIDIA_", "PYTHON", "LD_")
"""Prefixes of environment variables that belong to a machine; tools may need any other."""


class WorkerEngine(StoppableEngine):
    """The engine of a run with rollout workers: its servers or hf engines, and the workers that send requests to it."""

    def __init__(self, own: Engine, handles: Sequence[WorkerHandle]) -> None:
        super().__init__(own)
        self.handles = handles
        self.state: State = None

    async def start(self) -> None:
        """Start the engine, and wait for the workers. Raises UserError."""
        workers = (handle.opened() for handle in self.handles if not handle.serving)
        await asyncio.gather(self.engine.start(), *workers)

    async def close(self) -> None:
        await asyncio.gather(*(handle.close() for handle in self.handles))
        await self.engine.close()

    async def abort(self) -> None:
        await self._all("settle")
        await self.engine.abort()

    async def stop(self) -> None:
        await self._set(None)

    async def go_on(self) -> None:
        await self._set(self.weight_version)

    async def activity(self) -> dict[str, float]:
        """Metrics of all workers since the last call. The engine is idle at most as long as the worker that uses it
        most leaves it."""
        figures = [figure for figure in await self._all("activity") if figure]
        idle = min((figure["perf/engine_idle_share"] for figure in figures), default=1.0)
        added = "perf/running_requests", "perf/interruptions"
        return {"perf/engine_idle_share": idle, **{name: sum(each[name] for each in figures) for name in added}}

    async def _set(self, state: State) -> None:
        self.state = state
        await self._all("set", state)

    async def _all(self, method: str, *args: Any) -> list[Any]:
        return await asyncio.gather(*(handle.ask(method, *args) for handle in self.handles))


def start_rollout_workers(
    config: Config, own: Engine, link: Link, objects: UserObjects, store: Store, stack: ExitStack
) -> WorkerEngine:
    """Start `rollout.agent.num_workers` workers on the machines with most free CPUs; `stack` ends them.

    `link`: how they reach the engine. `store`: has their trajectories. Raises UserError for an object in `objects` that
    cannot be pickled.
    """
    count = config.rollout.agent.num_workers
    nodes = shared_out(free_cpus(), count)
    shipped, scored = replace(objects, rows=None, validation=None), not scored_together(config)
    engine: WorkerEngine

    def handle(number: int) -> WorkerHandle:
        env = {name: value for name, value in os.environ.items() if not name.startswith(KEPT)}

        def make() -> tuple[Any, Any]:
            free = free_cpus()
            node = nodes[number] if nodes[number] in free else shared_out(free, 1)[0]
            strategy = NodeAffinitySchedulingStrategy(node, soft=False)  # a soft one does not hold without a CPU
            kind: Any = ray.remote(RolloutWorker).options(
                num_cpus=0,
                scheduling_strategy=strategy,
                runtime_env={"env_vars": SMALL_ANSWERS},
                max_concurrency=CALLS,  # a job is a call until it ends
            )
            actor = kind.remote(config, os.getcwd(), env | {VARIABLE: f"{number}/{count}"}, 1, sys.path)
            stack.callback(ray.kill, actor)
            try:
                return actor, actor.open.remote(link, shipped, scored)
            except TypeError as error:
                raise UserError(
                    f"{KEY}={count}: a tool, interaction or reward function cannot be pickled: {error}"
                ) from error

        name = f"rollout worker {number}"
        return WorkerHandle(name, make, lambda url: confirm(own, url), lambda: engine.state, store)

    engine = WorkerEngine(own, [handle(number) for number in range(count)])
    for worker in engine.handles:
        worker.launch()
    return engine


def free_cpus() -> dict[str, float]:
    """Machine's id -> CPUs that nothing has reserved, of all machines with CPUs."""
    all_of = {node["NodeID"]: node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]}
    return unreserved(all_of, available_resources_per_node(), placement_group_table().values())


def unreserved(
    all_of: Mapping[str, float], free: Mapping[str, Mapping[str, float]], groups: Iterable[Mapping[str, Any]]
) -> dict[str, float]:
    """CPUs that are free by Ray's view of the machines, less those that placement groups have reserved: the view learns
    of the run's own ranks later. `all_of`: CPUs of each machine; without any it is left out."""
    taken: Counter[str] = Counter()
    for group in (group for group in groups if group["state"] == "CREATED"):
        for bundle, node in group["bundles_to_node_id"].items():
            taken[node] += group["bundles"][bundle].get("CPU", 0.0)
    return {node: min(free.get(node, {}).get("CPU", 0.0), cpus - taken[node]) for node, cpus in all_of.items() if cpus}


def shared_out(free: Mapping[str, float], count: int) -> list[str]:
    """The machine of each of `count` workers: the one with most free CPUs for each worker there."""
    placed: Counter[str] = Counter()
    for _ in range(count):
        placed[max(free, key=lambda node: (free[node] / (placed[node] + 1), -placed[node]))] += 1
    return list(placed.elements())


async def confirm(own: Engine, url: str) -> None:
    """Wait until a server that a worker got no answer from serves again. Raises InfraError."""
    if isinstance(own, RemoteEngine):
        await own.pool.report_unreachable(url)
