"""How many processes a run has."""

from agentrl.config.schema import Rollout, Trainer


def processes(trainer: Trainer, rollout: Rollout) -> int:
    """Processes for training plus processes only for sampling."""
    return trainer.nnodes * trainer.n_gpus_per_node + rollout.nnodes * sampling_per_node(trainer, rollout)


def sampling_per_node(trainer: Trainer, rollout: Rollout) -> int:
    """GPUs (on a CPU: processes) of each machine that only samples."""
    return rollout.n_gpus_per_node or trainer.n_gpus_per_node
