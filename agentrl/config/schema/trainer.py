"""The run around the algorithm."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Trainer:
    """Length, place, saving, logging."""

    project_name: str = "agentrl"
    """For loggers that group runs."""
    experiment_name: str = "run"
    """Names the run and its folder."""
    default_local_dir: str = "runs/${trainer.experiment_name}"
    """The run's folder: config, metrics, checkpoints, dumps."""
    total_epochs: int = 1
    """Passes over the training rows."""
    total_training_steps: int | None = None
    """Steps; null: what the epochs give."""
    device: str = "auto"
    """cpu, cuda, or auto: cuda where there is one."""
    nnodes: int = 1
    """Machines that train."""
    n_gpus_per_node: int = 1
    """GPUs of each, with a process to a GPU; with device=cpu: processes. More than one process in all run on Ray."""
    max_restarts: int = 3
    """On Ray: how often a run that lost a process or a machine goes on by itself from its newest checkpoint."""
    ray_wait_register_center_timeout: float = 300.0
    """On Ray: seconds to wait for GPUs that others hold, and for the processes to find each other."""
    nccl_timeout: float = 1800.0
    """With several processes: seconds that one waits for the others in the middle of a step, before the run fails."""
    balance_batch: bool = True
    """Deal sequences out to processes by work, tokens and their attention, instead of by number."""
    critic_warmup: int = 0
    """First steps in which only the critic learns."""
    seed: int = 0
    """Seed of model initialisation and dropout."""
    logger: list[str] = field(default_factory=lambda: ["console", "file"])
    """Where metrics go; file is metrics.jsonl in the run's folder."""
    live: bool = True
    """Live terminal view; where the output is no terminal, one line a step."""
    log_val_generations: int = 0
    """Conversations of each validation that go to loggers with tables, and that the end of a run shows."""
    val_before_train: bool = True
    """Validate before the first step."""
    val_only: bool = False
    """Validate and stop."""
    test_freq: int = -1
    """Steps between validations; -1: only at the end."""
    save_freq: int | None = None
    """Steps between checkpoints; -1: only at the end; null: at the end of a step, 10 minutes or more after the last
    one (longer where saving takes over 5% of the time), and the newest two stay."""
    default_hdfs_dir: str | None = None
    """Folder elsewhere (hdfs://, s3://, any of fsspec's) that finished checkpoints are copied to; auto resumes from
    there where this machine has none."""
    max_actor_ckpt_to_keep: int | None = None
    """Newest checkpoints kept; null: all, but for those of `save_freq=null`."""
    max_critic_ckpt_to_keep: int | None = None
    """Newest checkpoints that keep their critic, too; null: all."""
    resume_mode: str = "auto"
    """auto (from the newest whole checkpoint in the run's folder, if any), disable, resume_path. With these two, the
    checkpoints there that the run does not go on from are set aside."""
    resume_from_path: str | None = None
    """Checkpoint folder for resume_path."""
    del_local_ckpt_after_load: bool = False
    """Delete the checkpoint that the run goes on from, once it is loaded: one less on the disk."""
    profile_steps: list[int] | None = None
    """Steps to profile, into profiles/ in the run's folder; null: none."""
    worker_nsight_options: dict[str, Any] = field(default_factory=dict)
    """On Ray: options of `nsys profile`, under which each training process then runs; see actor.profiler.tool."""
    rollout_data_dir: str | None = "${trainer.default_local_dir}/rollouts"
    """Folder for training trajectories, one jsonl file a step, about 20 bytes a token: what `agentrl view` shows; null:
    not written."""
    validation_data_dir: str | None = "${trainer.default_local_dir}/validation"
    """The same for validation."""


@dataclass
class RayInit:
    """The Ray cluster of a run with several processes."""

    address: str | None = None
    """Cluster to join, host:port; local: one of the run's own; null: that of RAY_ADDRESS or of `ray start` on this
    machine, or else one of the run's own."""
    num_cpus: int | None = None
    """CPUs of a cluster of the run's own; null: those that the machine has."""
    timeline_json_file: str | None = None
    """File for what ran when on Ray, which chrome://tracing and Perfetto show; null: not written."""
