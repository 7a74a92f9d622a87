"""Runs on several processes: Ray starts them, moves batches between them, and reports a dead one.

    controller      RayRuntime: the loop of train.py, rows; tools, rewards and conversations without rollout workers
    rollout worker  RolloutWorker: conversations, tools, rewards; as many as `rollout.agent.num_workers`
    rank 0..N-1     Rank: a Learner each, in one torch.distributed group; it also samples if engines share its GPU
    worker 0..M-1   EngineWorker: an hf engine on a copy of the policy; or a ServerWorker: an SGLang or vLLM server

`agentrl sft` has ranks only.

Invariant: only this package imports Ray.
"""

import os

from agentrl.config.given import given_objects
from agentrl.config.schema import Config
from agentrl.config.schema.sft import SftConfig
from agentrl.core.errors import UserError, one_line


def need_ray(config: Config | SftConfig) -> None:
    """Raises UserError if Ray is not installed, or the settings cannot be sent to other processes."""
    # Otherwise Ray prints a paragraph about a dead worker into the live view.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "worker died or was killed")
    try:
        import ray  # noqa: F401
    except ImportError:
        raise UserError(
            "several processes need Ray: `pip install 'agentrl[ray]'`, or set trainer.nnodes=1, "
            "trainer.n_gpus_per_node=1 and rollout.nnodes=0"
        ) from None
    check_travels(config)


def check_travels(config: Config | SftConfig) -> None:
    """Raises UserError for a Python object among the settings that cannot be sent to other processes."""
    from ray import cloudpickle

    for key, item in given_objects(config):
        try:
            cloudpickle.dumps(item)
        except Exception as error:
            fix = "define it in a module, and give its path"
            raise UserError(f"{key}={item} cannot be sent to other processes ({one_line(error)}): {fix}") from error
