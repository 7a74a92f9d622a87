"""`agentrl sft`: supervised fine-tuning on finished conversations."""

from dataclasses import dataclass, field
from typing import Annotated

from agentrl.config.schema.actor import Optim
from agentrl.config.schema.data import CustomClass, Rows
from agentrl.config.schema.fsdp import Sharding
from agentrl.config.schema.marks import ABOVE_0, AT_LEAST_1, OpenChoice, OutputPath, Range, RowFiles
from agentrl.config.schema.model import Model
from agentrl.config.schema.trainer import AnyTrainer, RayInit
from agentrl.core import points

EACH_EPOCH = "after_each_epoch"
"""Value of a frequency: once per epoch."""
FREQUENCY = Range(
    lambda value: not isinstance(value, str) or value == EACH_EPOCH, f"must be a number of steps, or {EACH_EPOCH}"
)


@dataclass
class SftData(Rows):
    """Conversations."""

    train_files: RowFiles = None
    """A parquet or jsonl file of conversations, or a list of them."""
    val_files: RowFiles = None
    """The same for validation; null: none."""
    conversations: bool | None = None
    """true: rows are conversations, in `messages_key`. false: rows are pairs, in `prompt_key` and `response_key`. null:
    a row with messages is a conversation, another one a pair."""
    messages_key: str = "messages"
    """Column with the messages in OpenAI format, including tool calls. An assistant message with `loss_mask: 0` is
    context only: it is not trained on."""
    prompt_key: str = "prompt"
    """For pairs: column with the question, as text or messages."""
    prompt_dict_keys: list[str] | None = None
    """For pairs: keys that lead to the question in a column of mappings, for example [question]."""
    response_key: str = "response"
    """For pairs: column with the answer; it is trained on unchanged."""
    response_dict_keys: list[str] | None = None
    """For pairs: keys that lead to the answer in a column of mappings."""
    min_reward: float | None = None
    """Least reward of the rows to train on, for rows that are rollouts: dumps of a run, or the output of `agentrl
    generate`. null: rollouts are refused."""
    tools_key: str = "tools"
    """Column with the schemas of the tools; optional."""
    enable_thinking_key: str = "enable_thinking"
    """Column with the chat template's enable_thinking for each row; optional."""
    enable_thinking_default: bool | None = None
    """enable_thinking for rows without that column; null: only `apply_chat_template_kwargs` is used."""
    custom_cls: CustomClass = field(default_factory=CustomClass)
    """A dataset class of your own, called as in verl: (parquet_files, tokenizer, config). Its items have
    `input_ids` and `loss_mask`."""
    max_length: Annotated[int, AT_LEAST_1] = 2048
    """Longest conversation in tokens; `truncation` handles longer ones."""
    truncation: Annotated[str | None, ("error", "left", "right", "middle")] = None
    """Handling of a longer conversation: null (skip and count it), error, left (cut the beginning), right (cut the
    end), middle."""
    train_batch_size: Annotated[int, AT_LEAST_1] = 32
    """Conversations per optimizer step."""


@dataclass
class SftTrainer(AnyTrainer):
    """Length, machines, batches."""

    experiment_name: str = "sft"
    """Name of the run for loggers."""
    logger: Annotated[list[str], OpenChoice(points.LOGGERS)] = field(default_factory=lambda: ["console"])
    """Where metrics go; file is metrics.jsonl in `output_dir`."""
    output_dir: OutputPath = "runs/sft"
    """Folder for the trained model, in Hugging Face format; usable as model.path of `agentrl train`."""
    max_token_len_per_gpu: int | None = None
    """Token budget of a micro-batch; null: 4096 on a GPU, 2048 on a CPU."""
    test_freq: Annotated[int | str, FREQUENCY] = -1
    """Steps between validations, or after_each_epoch; -1: only at the end."""
    save_freq: Annotated[int | str | None, FREQUENCY] = None
    """Steps between checkpoints (in output_dir/checkpoints), or after_each_epoch; -1: none; null: every 10 minutes or
    more (longer if saving takes over 5% of the time)."""
    max_ckpt_to_keep: int | None = 2
    """Number of newest checkpoints to keep; null, 0 or -1: all."""
    grad_clip: Annotated[float, ABOVE_0] = 1.0
    """Gradients are clipped to this norm."""
    merge_lora: bool = True
    """Merge LoRA adapters into the written model; false: write only the adapter."""
    ulysses_sequence_parallel_size: Annotated[int, ABOVE_0] = 1
    """Processes that split the tokens of a micro-batch (Ulysses), for conversations too long for one GPU."""
    log_freq: int = 10
    """Steps between progress lines if the output is not a terminal."""


@dataclass
class SftConfig:
    """`agentrl sft`."""

    data: SftData = field(default_factory=SftData)
    """Conversations."""
    model: Model = field(default_factory=Model)
    """The model to train."""
    optim: Optim = field(default_factory=lambda: Optim(lr=1e-5, lr_scheduler_type="cosine", lr_warmup_steps=0.1))
    """Optimizer and schedule."""
    fsdp_config: Sharding = field(default_factory=Sharding)
    """Sharding over processes."""
    trainer: SftTrainer = field(default_factory=SftTrainer)
    """The run."""
    ray_init: RayInit = field(default_factory=RayInit)
    """Ray, for runs with several processes."""
