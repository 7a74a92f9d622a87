"""Where rows come from and how long they may be."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class CustomClass:
    """A class of the user's own, by file and name."""

    path: str | None = None
    """Python file, or importable module, that holds it; null: none."""
    name: str | None = None
    """The class in it."""


@dataclass
class Data:
    """Rows for training and validation."""

    train_files: Any = None
    """A parquet or jsonl file, or a list of them."""
    val_files: Any = None
    """The same for validation; null: no validation."""
    prompt_key: str = "prompt"
    """Column that holds the messages."""
    reward_fn_key: str = "data_source"
    """Column that tells the reward function which data a row is from."""
    image_key: str = "images"
    """Column that holds a row's images: what `<image>` in its prompt stands for, in order."""
    video_key: str = "videos"
    """Column that holds a row's videos: what `<video>` in its prompt stands for, in order."""
    mm_processor_kwargs: dict[str, Any] = field(default_factory=dict)
    """Passed to each call of a vision-language model's processor: size, say."""
    max_prompt_length: int = 512
    """Tokens of the first prompt, tools and template included; longer ones meet `truncation`."""
    max_response_length: int = 512
    """Tokens after the prompt, over all turns, tool and user tokens included."""
    train_batch_size: int = 16
    """Prompts a step; trajectories a step are this times `rollout.n`."""
    gen_batch_size: int | None = None
    """Prompts that are rolled out at a time with `algorithm.filter_groups`; null: `train_batch_size`."""
    val_batch_size: int | None = None
    """Prompts a validation batch; null: all at once."""
    shuffle: bool = True
    """Shuffle the training rows anew each epoch."""
    row_sampler: str | None = None
    """The order of an epoch's training rows; null: as `shuffle` says."""
    validation_shuffle: bool = False
    """Shuffle the validation rows."""
    seed: int = 1
    """Seed of the shuffling."""
    filter_overlong_prompts: bool = False
    """Drop rows whose prompt is over `max_prompt_length` before training starts."""
    filter_overlong_prompts_workers: int = 1
    """Processes that filter."""
    train_max_samples: int = -1
    """The first so many training rows; -1: all."""
    val_max_samples: int = -1
    """The first so many validation rows; -1: all."""
    apply_chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    """Passed to the chat template: enable_thinking, say."""
    truncation: str = "error"
    """What happens to an overlong prompt: error, left (cut the beginning), right (cut the end), middle."""
    use_shm: bool = False
    """Read files from a copy in /dev/shm, made once a machine; it stays there."""
    custom_cls: CustomClass = field(default_factory=CustomClass)
    """A dataset class of your own, called as verl calls it: (data_files, tokenizer, config)."""
