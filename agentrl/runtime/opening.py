"""Opens the runtime that a configuration asks for."""

from agentrl.config.schema import Config, Rollout, Trainer
from agentrl.config.schema.sft import SftConfig
from agentrl.runtime.runtime import Runtime
from agentrl.training.sft.run import Run, SftRun


def open_runtime(config: Config) -> Runtime:
    """This process if it is enough, otherwise Ray. Raises UserError."""
    if processes(config.trainer, config.rollout) == 1:
        from agentrl.runtime.local import LocalRuntime

        return LocalRuntime(config)
    from agentrl.runtime.ray import open_on_ray

    return open_on_ray(config)


def open_sft(config: SftConfig) -> SftRun:
    """The same for `agentrl sft`."""
    trainer = config.trainer
    if trainer.nnodes * trainer.n_gpus_per_node == 1:
        return Run(config)
    from agentrl.runtime.ray import open_sft_on_ray

    return open_sft_on_ray(config)


def processes(trainer: Trainer, rollout: Rollout) -> int:
    """Processes for training plus processes only for sampling."""
    return trainer.nnodes * trainer.n_gpus_per_node + rollout.nnodes * sampling_per_node(trainer, rollout)


def sampling_per_node(trainer: Trainer, rollout: Rollout) -> int:
    """GPUs (on a CPU: processes) of each machine that only samples."""
    return rollout.n_gpus_per_node or trainer.n_gpus_per_node
