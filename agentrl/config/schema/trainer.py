"""Keys of the run: length, machines, checkpoints, logging; and of Ray."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from agentrl.config.schema.marks import ABOVE_0, AT_LEAST_0, AT_LEAST_1, InputPath, OpenChoice, OutputPath, Range
from agentrl.core import points

STALENESS = Range(lambda value: value >= 0, "must be at least 0, which waits for the rollouts of a step")
GAP = Range(lambda value: value > 0, "must be above 0; null stops no run")


@dataclass
class AnyTrainer:
    """The run, as both kinds of training configure it."""

    project_name: str = "agentrl"
    """Project name for loggers that group runs."""
    experiment_name: str = "run"
    """Name of the run and its folder."""
    total_epochs: Annotated[int, ABOVE_0] = 1
    """Passes over the training rows."""
    total_training_steps: int | None = None
    """Training steps; null: as many as `total_epochs` gives."""
    resume_mode: Annotated[str, ("auto", "disable", "resume_path")] = "auto"
    """auto (resume from the newest complete checkpoint in the run's folder, if any), disable, or resume_path. With
    disable and resume_path, other checkpoints in the folder are moved to a subfolder."""
    resume_from_path: InputPath | None = None
    """Checkpoint folder for resume_mode=resume_path."""
    callbacks: Annotated[list[str], OpenChoice(points.CALLBACKS)] = field(default_factory=list)
    """Code of your own, by path: a class with any of the methods start, step, validation, checkpoint and end, or a
    function that is called with each step; see docs/extending.md."""
    seed: int = 0
    """Seed of sampling, of new weights (LoRA), and of all other chance but the order of rows, which is `data.seed`."""
    device: Annotated[str, ("auto", "cpu", "cuda")] = "auto"
    """cpu, cuda, or auto: cuda if there is a GPU."""
    nnodes: Annotated[int, AT_LEAST_1] = 1
    """Machines that train."""
    n_gpus_per_node: Annotated[int, AT_LEAST_1] = 1
    """GPUs per machine, with one process per GPU (device=cpu: processes). More than one process in total runs on
    Ray."""
    max_restarts: Annotated[int, AT_LEAST_0] = 3
    """On Ray: how often a run that lost a process or a machine resumes by itself from its newest checkpoint."""
    ray_wait_register_center_timeout: Annotated[float, AT_LEAST_1] = 300.0
    """On Ray: seconds to wait for GPUs that are in use, and for the processes to connect."""
    nccl_timeout: Annotated[float, ABOVE_0] = 1800.0
    """With several processes: seconds that a process waits for the others within a step before the run fails."""


@dataclass
class Trainer(AnyTrainer):
    """Length, machines, checkpoints, logging."""

    default_local_dir: OutputPath = "runs/${trainer.experiment_name}"
    """The run's folder: config, metrics, checkpoints, dumps."""
    critic_warmup: Annotated[int, AT_LEAST_0] = 0
    """Number of first steps that train only the critic."""
    max_staleness: Annotated[int, STALENESS] = 0
    """Most updates between the weights that draw a token and those that train on it. 0: a step waits for its rollouts.
    Above 0: rollouts continue while the policy trains, up to this many batches ahead; none is dropped for its age."""
    max_rollout_gap: Annotated[float | None, GAP] = 0.1
    """Largest mean difference of the trainer's and the engine's log-probs, in nats a token drawn by the present
    weights; a step with more stops the run, after a checkpoint, and one with half of it warns. bfloat16 makes 0.01 to
    0.04. null: no stop."""
    logger: Annotated[list[str], OpenChoice(points.LOGGERS)] = field(default_factory=lambda: ["console", "file"])
    """Where metrics go; file is metrics.jsonl in the run's folder."""
    live: bool = True
    """Live view in the terminal; without a terminal, one line per step."""
    log_val_generations: int = 0
    """Validation conversations that are sent to loggers with tables, and shown at the end of a run."""
    val_before_train: bool = True
    """Validate before the first step."""
    val_only: bool = False
    """Validate and stop."""
    test_freq: int = -1
    """Steps between validations; -1: only at the end."""
    save_freq: int | None = None
    """Steps between checkpoints; -1: none, only the model at the end, and a whole checkpoint where the run is stopped;
    null: a checkpoint every 10 minutes or more (longer if saving takes over 5% of the time), and only the newest two
    are kept."""
    default_hdfs_dir: OutputPath | None = None
    """Remote folder (hdfs://, s3://, any URL of fsspec) to copy finished checkpoints to; resume_mode=auto resumes from
    there if this machine has no checkpoint."""
    max_actor_ckpt_to_keep: int | None = None
    """Number of newest checkpoints to keep; 0 or -1: all; null: all (with `save_freq=null`: two)."""
    max_critic_ckpt_to_keep: int | None = None
    """Number of newest checkpoints that keep their critic; null, 0 or -1: all."""
    profile_steps: list[int] | None = None
    """Steps to profile; the profiles go to profiles/ in the run's folder. null: none."""
    worker_nsight_options: dict[str, Any] = field(default_factory=dict)
    """On Ray: options of `nsys profile`; each training process then runs under it; see actor.profiler.tool."""
    rollout_data_dir: OutputPath | None = "${trainer.default_local_dir}/rollouts"
    """Folder for training trajectories, for `agentrl view`: one jsonl file per step, about 20 bytes per token; null:
    not written."""
    validation_data_dir: OutputPath | None = "${trainer.default_local_dir}/validation"
    """The same for validation."""


@dataclass
class RayInit:
    """The Ray cluster of a run with several processes."""

    address: str | None = None
    """Cluster to join, host:port; local: start one for this run; null: join the one of RAY_ADDRESS or of `ray start` on
    this machine, otherwise start one."""
    num_cpus: Annotated[int | None, AT_LEAST_1] = None
    """CPUs of the cluster that the run starts; null: all of the machine."""
    timeline_json_file: OutputPath | None = None
    """File for Ray's timeline, for chrome://tracing or Perfetto; null: not written."""
