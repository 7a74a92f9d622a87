"""`agentrl sft`: supervised fine-tuning on finished conversations."""

from dataclasses import dataclass, field
from typing import Any

from agentrl.config.schema.actor import Optim
from agentrl.config.schema.data import CustomClass
from agentrl.config.schema.fsdp import Sharding
from agentrl.config.schema.model import Model
from agentrl.config.schema.trainer import RayInit

EACH_EPOCH = "after_each_epoch"
"""A number of steps: as many as an epoch has."""


@dataclass
class SftData:
    """Conversations."""

    train_files: Any = None
    """A parquet or jsonl file of conversations, or a list of them."""
    val_files: Any = None
    """The same for validation; null: none."""
    conversations: bool | None = None
    """true: rows are whole conversations, under `messages_key`. false: pairs, under `prompt_key` and `response_key`.
    null: conversations where a row has some, pairs where it has none."""
    messages_key: str = "messages"
    """Column that holds the messages, OpenAI-style, tool calls included. An assistant message with `loss_mask: 0` is
    read and not trained on."""
    prompt_key: str = "prompt"
    """Column with a question, text or messages, where rows are pairs."""
    prompt_dict_keys: list[str] | None = None
    """Names that lead from that column, where it holds mappings, to the question: [question], say."""
    response_key: str = "response"
    """Column with the answer to it, which is trained on as it stands."""
    response_dict_keys: list[str] | None = None
    """Names that lead from that column to the answer."""
    tools_key: str = "tools"
    """Column that holds the schemas of the tools shown to the model; a row may lack it."""
    image_key: str = "images"
    """Column that holds a row's images: what `<image>` in its messages stands for, in order."""
    video_key: str = "videos"
    """Column that holds a row's videos: what `<video>` in its messages stands for, in order."""
    mm_processor_kwargs: dict[str, Any] = field(default_factory=dict)
    """Passed to each call of a vision-language model's processor: size, say."""
    apply_chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    """Passed to the chat template: enable_thinking, say."""
    enable_thinking_key: str = "enable_thinking"
    """Column that says for each row whether the chat template gets enable_thinking true or false; a row may lack it."""
    enable_thinking_default: bool | None = None
    """The same for rows that lack it; null: the template gets `apply_chat_template_kwargs` alone."""
    custom_cls: CustomClass = field(default_factory=CustomClass)
    """A dataset class of your own, called as verl calls it: (parquet_files, tokenizer, config). Its items have
    `input_ids` and `loss_mask`."""
    train_max_samples: int = -1
    """The first so many conversations; -1: all."""
    val_max_samples: int = -1
    """The first so many for validation; -1: all."""
    max_length: int = 2048
    """Longest conversation in tokens; longer ones meet `truncation`."""
    truncation: str | None = None
    """What happens to a longer one: null (it is left out, and counted), error, left (cut the beginning), right (cut the
    end), middle."""
    train_batch_size: int = 32
    """Conversations an optimizer step."""
    shuffle: bool = True
    """Shuffle the conversations anew each epoch."""
    seed: int = 1
    """Seed of the shuffling."""


@dataclass
class SftTrainer:
    """Length, place, batches."""

    project_name: str = "agentrl"
    """For loggers that group runs."""
    experiment_name: str = "sft"
    """Names the run there."""
    logger: list[str] = field(default_factory=lambda: ["console"])
    """Where metrics go; file is metrics.jsonl in `output_dir`."""
    output_dir: str = "runs/sft"
    """Folder for the trained model, in Hugging Face format: a model.path for `agentrl train`."""
    total_epochs: int = 1
    """Passes over the conversations."""
    total_training_steps: int | None = None
    """Optimizer steps; null: what the epochs give."""
    max_token_len_per_gpu: int | None = None
    """Token budget of a forward pass; null: 4096 on a GPU, 2048 on a CPU."""
    test_freq: int | str = -1
    """Steps between validations, or after_each_epoch; -1: only at the end."""
    save_freq: int | str | None = None
    """Steps between checkpoints, which lie in output_dir/checkpoints, or after_each_epoch; -1: none; null: 10 minutes
    or more after the last one (longer where saving takes over 5% of the time)."""
    max_ckpt_to_keep: int | None = 2
    """Newest checkpoints kept; null: all."""
    resume_mode: str = "auto"
    """auto (from the newest whole checkpoint, if any), disable, resume_path. With these two, the checkpoints there that
    the run does not go on from are set aside."""
    resume_from_path: str | None = None
    """Checkpoint folder for resume_path."""
    grad_clip: float = 1.0
    """Largest gradient norm."""
    merge_lora: bool = True
    """Fold LoRA adapters into the model before it is written; false writes the adapter alone."""
    device: str = "auto"
    """cpu, cuda, or auto: cuda where there is one."""
    nnodes: int = 1
    """Machines that train."""
    n_gpus_per_node: int = 1
    """GPUs of each, with a process to a GPU; with device=cpu: processes. More than one process in all run on Ray."""
    ulysses_sequence_parallel_size: int = 1
    """Neighbouring processes that split the tokens of a pass among them, for conversations too long for one GPU."""
    max_restarts: int = 3
    """On Ray: how often a run that lost a process or a machine goes on by itself from its newest checkpoint."""
    ray_wait_register_center_timeout: float = 300.0
    """On Ray: seconds to wait for GPUs that others hold, and for the processes to find each other."""
    nccl_timeout: float = 1800.0
    """With several processes: seconds that one waits for the others in the middle of a step, before the run fails."""
    seed: int = 0
    """Seed of new weights (LoRA)."""
    log_freq: int = 10
    """Steps between progress lines where the output is no terminal."""


def _optim() -> Optim:
    return Optim(lr=1e-5, lr_scheduler_type="cosine", lr_warmup_steps_ratio=0.1)


@dataclass
class SftConfig:
    """`agentrl sft`."""

    data: SftData = field(default_factory=SftData)
    """Conversations."""
    model: Model = field(default_factory=Model)
    """What is trained."""
    optim: Optim = field(default_factory=_optim)
    """Optimizer and schedule."""
    fsdp_config: Sharding = field(default_factory=Sharding)
    """How processes share the model."""
    trainer: SftTrainer = field(default_factory=SftTrainer)
    """The run."""
    ray_init: RayInit = field(default_factory=RayInit)
    """Ray, where several processes need it."""
