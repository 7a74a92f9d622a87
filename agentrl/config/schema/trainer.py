"""The run around the algorithm."""

from dataclasses import dataclass, field


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
    seed: int = 0
    """Seed of model initialisation and dropout."""
    logger: list[str] = field(default_factory=lambda: ["console", "file"])
    """Any of console, file (metrics.jsonl), tensorboard."""
    live: bool = True
    """Live terminal view; where the output is no terminal, one line a step."""
    log_val_generations: int = 0
    """Conversations shown after each validation."""
    val_before_train: bool = True
    """Validate before the first step."""
    val_only: bool = False
    """Validate and stop."""
    test_freq: int = -1
    """Steps between validations; -1: only at the end."""
    save_freq: int = -1
    """Steps between checkpoints; -1: only at the end."""
    max_actor_ckpt_to_keep: int | None = None
    """Newest checkpoints kept; null: all."""
    resume_mode: str = "auto"
    """auto (from the newest checkpoint in the run's folder, if any), disable, resume_path."""
    resume_from_path: str | None = None
    """Checkpoint folder for resume_path."""
    rollout_data_dir: str | None = None
    """Folder for training trajectories, one jsonl file a step; null: not written."""
    validation_data_dir: str | None = None
    """The same for validation."""
