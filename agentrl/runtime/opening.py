"""Opens the runtime that a configuration asks for."""

from typing import Any

from agentrl.config.derived import processes
from agentrl.config.schema import Config
from agentrl.config.schema.sft import SftConfig
from agentrl.data.splits import Reader, Splits
from agentrl.rollout.user_objects import NO_OBJECTS, UserObjects
from agentrl.runtime.ray import need_ray
from agentrl.runtime.runtime import Runtime
from agentrl.runtime.starting import Start
from agentrl.training import load_processor
from agentrl.training.sft.run import Run


def open_runtime(config: Config, objects: UserObjects = NO_OBJECTS, start: Start | None = None) -> Runtime:
    """This process alone where that is enough, or else Ray. `objects`: objects in place of files; `start`: the servers
    that are starting already. Raises UserError."""
    if config.rollout.name == "openai" and config.trainer.val_only:
        from agentrl.runtime.endpoint import EndpointRuntime

        return EndpointRuntime(config, objects)
    if processes(config.trainer, config.rollout) == 1:
        from agentrl.runtime.local import LocalRuntime

        return LocalRuntime(config, objects, start)
    need_ray(config)
    from agentrl.runtime.ray.runtime import RayRuntime

    return RayRuntime(config, objects, start)


def read_splits(config: Config, runtime: Runtime, objects: UserObjects = NO_OBJECTS) -> Splits:
    """The rows of a run, prompts measured as the runtime sees them. Raises UserError."""

    def processor() -> Any:
        return load_processor(config.model, runtime.tokenizer).processor

    measure = runtime.rollouts.prompt_length
    return Reader(config, runtime.tokenizer, measure, processor, objects.rows, objects.validation).splits()


def open_sft(config: SftConfig) -> Run:
    """The run of `agentrl sft`, in this process or on Ray."""
    trainer = config.trainer
    if trainer.nnodes * trainer.n_gpus_per_node == 1:
        return Run(config)
    need_ray(config)
    from agentrl.runtime.ray.all_ranks import AllRanks, SftRank

    run: Any = AllRanks(SftRank, config)  # it has the methods of a Run
    return run
