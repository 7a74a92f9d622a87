"""A run on several processes: Ray starts them, carries batches to them, and says when one died.

    controller    RayRuntime: the loop of train.py, rows, tools, scoring, the scheduler of trajectories
    rank 0..N-1   Rank: a Learner each, in one torch.distributed group, and where engines share its GPU a Host
    host 0..M-1   Host: an hf engine on a copy of the policy; or a ServerHost with an SGLang or vLLM server

`agentrl sft` has ranks alone.

Ray is imported below this package only.
"""

import os

from agentrl.config.schema import Config
from agentrl.config.schema.sft import SftConfig
from agentrl.core.errors import UserError
from agentrl.rollout.parts import NO_PARTS, Parts
from agentrl.runtime.runtime import Runtime
from agentrl.training.sft.contract import SftRun


def open_on_ray(config: Config, parts: Parts = NO_PARTS) -> Runtime:
    """The runtime, its workers started. Raises UserError without Ray, or where the cluster cannot hold the run."""
    need_ray()
    from agentrl.runtime.ray.runtime import RayRuntime

    return RayRuntime(config, parts)


def open_sft_on_ray(config: SftConfig) -> SftRun:
    """The same for supervised training."""
    need_ray()
    from agentrl.runtime.ray.sft import RaySft

    return RaySft(config)


def need_ray() -> None:
    """Raises UserError where it is not installed."""
    # Ray would print a paragraph of its own about a worker's death, between the lines of the live view.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "worker died or was killed")
    try:
        import ray  # noqa: F401
    except ImportError:
        raise UserError(
            "several processes need Ray: `pip install 'agentrl[ray]'`, or set trainer.nnodes=1, "
            "trainer.n_gpus_per_node=1 and rollout.nnodes=0"
        ) from None
