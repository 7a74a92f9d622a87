"""Keys of rows: files, columns, lengths, batches."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from agentrl.config.schema.marks import AT_LEAST_1, CodePath, LaterPath, OpenChoice, RowFiles
from agentrl.config.schema.rollout import ValSampling
from agentrl.core import points


@dataclass
class CustomClass:
    """A class of your own, by file and name."""

    path: CodePath | None = None
    """Python file or importable module with the class; null: none."""
    name: str | None = None
    """Name of the class."""


@dataclass
class Rows:
    """Rows, as both kinds of training read them."""

    train_files: RowFiles = None
    """A parquet or jsonl file, a row source such as `tasks:FOLDER`, or a list of them."""
    val_files: RowFiles = None
    """The same for validation; null: no validation."""
    prompt_key: str = "prompt"
    """Column with the messages."""
    image_key: str = "images"
    """Column with a row's images; they replace `<image>` in its messages, in order."""
    video_key: str = "videos"
    """Column with a row's videos; they replace `<video>` in its messages, in order."""
    mm_processor_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments for the processor of a vision-language model, for example size."""
    apply_chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments for the chat template, for example enable_thinking; in `tokenizer_kwargs`, split_special_tokens: false
    reads control tokens that a message spells as tokens."""
    train_max_samples: int = -1
    """Use only the first N training rows; -1 or 0: all."""
    val_max_samples: int = -1
    """Use only the first N validation rows; -1 or 0: all."""
    shuffle: bool = True
    """Shuffle the training rows in each epoch."""
    seed: int = 1
    """Seed of the shuffle."""
    custom_cls: CustomClass = field(default_factory=CustomClass)
    """A dataset class of your own, called as in verl: (data_files, tokenizer, config)."""
    custom: dict[str, Any] = field(default_factory=dict)
    """Settings of your own dataset class, which finds them in `config`."""

    def files(self) -> dict[str, Any]:
        """The rows of each key."""
        return {"data.train_files": self.train_files, "data.val_files": self.val_files}

    @property
    def media_keys(self) -> dict[str, str]:
        """image, video -> the column that holds them."""
        return {"image": self.image_key, "video": self.video_key}


@dataclass
class ValSet(ValSampling):
    """Validation rows with settings of their own."""

    files: RowFiles = None
    """A parquet or jsonl file, a row source, or a list of them."""
    max_samples: int = -1
    """Use only the first N rows; -1 or 0: all."""
    agent: str | None = None
    """Agent loop of rows that name none; null: `rollout.agent.default_agent_loop`."""
    max_tokens: Annotated[int | None, AT_LEAST_1] = None
    """Most tokens of a turn; null: `max_response_length`."""
    test_freq: int | None = None
    """Steps between validations; -1: only before the first step and at the end; null: `trainer.test_freq`."""


@dataclass
class Data(Rows):
    """Rows for training and validation."""

    val_sets: dict[str, ValSet] = field(default_factory=dict)
    """Further validation sets by name, each with its sampling, agent and rhythm: {hard: {files: hard.parquet, n: 4,
    temperature: 1.0}}. Metrics are `val/NAME/...`."""

    environment_config_path: LaterPath = "environments.yaml"
    """YAML that names the environments of the row source `env:NAME`."""
    reward_fn_key: str = "data_source"
    """Column with the data source of a row, for the reward function."""
    max_prompt_length: Annotated[int, AT_LEAST_1] = 512
    """Longest first prompt in tokens, including tools and template; `truncation` handles longer ones."""
    max_response_length: Annotated[int, AT_LEAST_1] = 512
    """Most tokens after the prompt, over all turns, including tool and user tokens."""
    train_batch_size: Annotated[int, AT_LEAST_1] = 16
    """Prompts per step; trajectories per step are this times `rollout.n`."""
    gen_batch_size: Annotated[int | None, AT_LEAST_1] = None
    """With `algorithm.filter_groups`: prompts per batch of rollouts; null: `train_batch_size`."""
    val_batch_size: Annotated[int | None, AT_LEAST_1] = None
    """Prompts per validation batch; null: all at once."""
    row_sampler: Annotated[str | None, OpenChoice(points.ROW_SAMPLERS)] = None
    """Order of the training rows in an epoch; null: `shuffle` decides."""
    validation_shuffle: bool = False
    """Shuffle the validation rows."""
    filter_overlong_prompts: bool = False
    """Before training, drop rows whose prompt is longer than `max_prompt_length`."""
    truncation: Annotated[str, ("error", "left", "right", "middle")] = "error"
    """Handling of an overlong prompt: error, left (cut the beginning), right (cut the end), middle."""
    use_shm: bool = False
    """Read files from a copy in /dev/shm, made once per machine; it is not deleted."""

    def files(self) -> dict[str, Any]:
        return super().files() | {f"data.val_sets.{name}.files": one.files for name, one in self.val_sets.items()}
