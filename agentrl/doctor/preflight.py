"""Finds mistakes in a run's files before a library, a model or a server is loaded.

Invariants: nothing of the user's is called or made here, only imported, but for an optimizer; PyTorch is imported only
for one that is not the default; what cannot be known yet (a hub id, files elsewhere) is left to the run itself.
"""

import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.config.derived import has_critic, inherited, optimizer_name
from agentrl.config.given import file_named, is_given
from agentrl.config.keys import as_list
from agentrl.config.paths import forget_missing, settle_paths
from agentrl.core.errors import UserError, plural
from agentrl.core.foreign import read_object
from agentrl.core.model_files import language_config
from agentrl.core.numbers import limit_of
from agentrl.core.outputs import check_folder
from agentrl.core.paths import expanded, shown
from agentrl.core.plugins import import_external
from agentrl.core.remote_files import is_remote
from agentrl.engines.gpus import device_kind, visible_gpus

if TYPE_CHECKING:
    from agentrl.rewards.function import RewardFn

NAMING = ("rollout.agent.agent_loop_config_path", "data.custom_cls.path")
"""Files that decide how rows are read."""
MANAGERS = ("reward.reward_manager.module.path", "reward.custom_reward_function.path")
"""Files that may have the reward manager."""
STARTED_CLUSTER = Path(tempfile.gettempdir()) / "ray" / "ray_current_cluster"
"""The file of a cluster that `ray start` made on this machine."""
MOST_ROWS = 200_000
"""Rows whose prompts are looked at; those behind them are looked at as the run comes to them."""
WHOLE_ROWS = 100
"""Rows of which everything is looked at."""
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt", "spiece.model")
WEIGHTS = ("*.safetensors", "*.bin", "*.safetensors.index.json")
TEMPLATES = ("chat_template.jinja", "chat_template.json", "chat_templates")


def preflight(config: Any, *, trains: bool = False) -> list[str]:
    """Raises UserError in one line for the first mistake in files, classes and folders; returns notes.

    `config`: of `agentrl train`, or of a command with the same sections.
    """
    check_model(config.model)
    scorers = check_plugins(config)
    return [*check_context(config), *check_rows(config, scorers, trains=trains)]


def preflight_training(config: Any) -> list[str]:
    """`preflight` for a run that trains, which needs enough rows, and a place to write."""
    check_machine(config)
    trainer = config.trainer
    for name in ("default_local_dir", "rollout_data_dir", "validation_data_dir"):
        if (folder := getattr(trainer, name)) is not None:
            check_folder(folder, f"trainer.{name}")
    actor = config.actor.optim
    check_optimizer(actor, "actor.optim", config.model)
    if has_critic(config):
        check_optimizer(inherited(config.critic.optim, actor), "critic.optim", config.model)
    return preflight(config, trains=not trainer.val_only)


def preflight_sft(config: Any) -> None:
    """`preflight` for supervised training."""
    if not config.data.train_files:
        raise UserError("data.train_files is not set: name conversations, parquet or jsonl")
    check_machine(config)
    check_folder(config.trainer.output_dir, "trainer.output_dir")
    check_optimizer(config.optim, "optim", config.model)
    _check_sft_files(config)


def preflight_here(config: Any, folders: Sequence[Path] = ()) -> list[str]:
    """`preflight` for settings that may be of another machine: what they name and is not on this one is left out.

    `folders`: those in which paths are looked for, after the current one. The settings change in place.
    """
    settle_paths(config, folders)
    missing = forget_missing(config, folders)
    if not hasattr(config, "rollout"):
        _check_sft_files(config)
        return []
    if "rollout.agent.agent_loop_config_path" in missing:  # which gives loops their names
        config.rollout.agent.default_agent_loop = None
    if not missing.isdisjoint(MANAGERS):
        config.reward.reward_manager = type(config.reward.reward_manager)()
    scorers, whole = check_plugins(config), missing.isdisjoint(NAMING)
    check_model(config.model)
    return [*check_context(config), *(check_rows(config, scorers) if whole and not config.model.external_lib else [])]


def _check_sft_files(config: Any) -> None:
    """Models, and files of conversations that can be read. Raises UserError."""
    from agentrl.data.files import paths, read_records

    check_model(config.model)
    for key, files in config.data.files().items():
        remote = any(is_remote(str(file)) for file in as_list(files))
        for file in paths(files, key) if files and not remote else []:
            if not len(read_records(file)):
                raise UserError(f"{key}: {file} has no rows; write a conversation a line")


def check_machine(config: Any) -> None:
    """Raises UserError where this machine has fewer GPUs, or CPU cores, than the run needs and joins no cluster."""
    trainer, ray_init, each = config.trainer, config.ray_init, config.trainer.n_gpus_per_node
    joins = ray_init.address not in (None, "local") or "RAY_ADDRESS" in os.environ or STARTED_CLUSTER.exists()
    connected = "ray" in sys.modules and sys.modules["ray"].is_initialized()
    if each == 1 or joins or ray_init.num_cpus or connected:
        return
    on_gpus = device_kind(trainer.device) == "cuda"
    there = len(visible_gpus()) if on_gpus else os.cpu_count() or 1
    if each > there:
        what = plural(there, "GPU") if on_gpus else f"no GPU and {plural(there, 'CPU core')}"
        raise UserError(
            f"trainer.n_gpus_per_node={each}: this machine has {what}; lower it, or join a Ray cluster "
            "(ray_init.address)"
        )


def check_optimizer(optim: Any, key: str, model: Any) -> None:
    """The optimizer can be made with its arguments. Raises UserError."""
    if optim.override_optimizer_config or optimizer_name(optim) != "adamw":
        from agentrl.training.update.optimizers import try_optimizer

        import_external(model.external_lib, "model")
        try_optimizer(optim, key)


def check_plugins(config: Any) -> "list[RewardFn]":
    """Tools, interactions, agent loops and the reward functions: importable, and of a form that can be called.

    Returns the reward functions that files have."""
    from agentrl.interactions.loading import check_interactions
    from agentrl.rewards.function import load_reward_function
    from agentrl.rewards.managers import manager_class, server_arguments, takes_lists
    from agentrl.rewards.terms import load_terms
    from agentrl.rollout.loops.registry import check_loops
    from agentrl.tools.loading import check_tools

    multi_turn, reward = config.rollout.multi_turn, config.reward
    if multi_turn.enable:
        check_tools(file_named(multi_turn.tool_config_path), multi_turn.function_tool_path)
        check_interactions(file_named(multi_turn.interaction_config_path))
    registered = config.model.external_lib is not None  # it may give names to loops and managers
    if not registered:
        check_loops(config.rollout, *(one.agent for one in config.data.val_sets.values()))
    named, offered = reward.custom_reward_function, server_arguments(reward.reward_model)
    batch = takes_lists(reward)
    found = list(load_terms(reward.functions, {}, batch=bool(batch), offered=offered).values())
    if not is_given(named.path):
        one = load_reward_function(named.path, named.name, named.reward_kwargs, batch=batch, offered=offered)
        found += [] if one is None else [one]
    if not registered:
        manager_class(reward.reward_manager.name, reward.reward_manager.module.path)
    return found


def check_model(model: Any) -> None:
    """A folder in Hugging Face format. A hub id, a URL and an adapter are left to the run."""
    folder = expanded(model.path or "")
    if not model.path or not folder.exists() or (folder / "adapter_config.json").exists():
        return
    if not folder.is_dir():
        raise UserError(f"model.path: {folder} is a file; name the model's folder")
    if not (folder / "config.json").is_file():
        raise UserError(f"model.path: {folder} has no config.json; name a model's folder in Hugging Face format")
    if not any(any(folder.glob(pattern)) for pattern in WEIGHTS):
        raise UserError(f"model.path: {folder} has no weights (*.safetensors); download the whole model")
    if model.tokenizer_path is None and not any((folder / name).exists() for name in TOKENIZERS):
        raise UserError(f"model.path: {folder} has no tokenizer; put it there, or set model.tokenizer_path")
    if model.chat_template is None:
        _check_template(folder if model.tokenizer_path is None else expanded(model.tokenizer_path))


def check_context(config: Any) -> list[str]:
    """A sequence fits into the model's context: a note; an error for an engine that refuses it, and for a table of
    positions, which ends there."""
    model, rollout, data = config.model, config.rollout, config.data
    known = language_config(model.path) | model.override_config
    context = known.get("max_position_embeddings") or known.get("n_positions")
    longest = rollout.max_model_len or data.max_prompt_length + data.max_response_length
    scaled = known.get("rope_scaling") or "rope_parameters" in model.override_config
    if not isinstance(context, int) or longest <= context or scaled:
        return []
    named = "rollout.max_model_len" if rollout.max_model_len else "data.max_prompt_length + data.max_response_length"
    line = f"{named} = {longest} is over the {context} tokens that the model in {shown(model.path)} was made for"
    if "n_positions" in known or rollout.name in ("sglang", "vllm"):
        raise UserError(f"{line}; lower it to {context}")
    return [f"{line}: longer texts come out worse; lower it to {context}"]


def check_rows(config: Any, scorers: "Sequence[RewardFn]" = (), *, trains: bool = False) -> list[str]:
    """Every row has a prompt, and what the `scorers` need; where a run `trains` there are enough for a batch."""
    data = config.data
    if data.custom_cls.path is not None:
        return []
    notes = []
    for key, named in data.files().items():
        files = as_list(named)
        if files and not any(is_remote(str(file)) or is_given(file) for file in files):
            notes += _check_rows(config, files, key, scorers, trains=trains)
    return notes


def _check_rows(
    config: Any, files: Iterable[Any], what: str, scorers: "Sequence[RewardFn]", *, trains: bool
) -> list[str]:
    from agentrl.data.dataset import plain_parts
    from agentrl.data.rows import FileRows
    from agentrl.doctor.containers import check_containers
    from agentrl.rewards.truths import check_truths
    from agentrl.rollout.loops.registry import loop_class

    data, agent = config.data, config.rollout.agent
    parts = plain_parts(data, list(files), what)
    first = [row for rows in parts for row in rows[:WHOLE_ROWS]]
    if trains and what == "data.train_files":
        check_enough_rows(config, sum(len(rows) for rows in parts))
    read = [rows for rows in parts if isinstance(rows, FileRows)]
    prompts = chain.from_iterable(islice(rows.prompts(), MOST_ROWS) for rows in read)
    silent = [uid for uid, messages in prompts if all(message["role"] != "user" for message in messages)]
    names = {row.agent_name for row in first if row.agent_name}.union(*(rows.agent_names() for rows in read))
    for name in sorted(names) if config.model.external_lib is None else ():
        loop_class(name, agent.agent_loop_config_path, agent.default_agent_loop)
    check_containers(config, first)
    check_truths(first, scorers)
    some = f"{plural(len(silent), 'row')} {'has' if len(silent) == 1 else 'have'}"
    return [f"{what}: {some} no user message (first: {silent[0]}); many chat templates refuse that"] if silent else []


def check_enough_rows(config: Any, rows: int) -> None:
    """Raises UserError where the training rows do not fill a batch."""
    from agentrl.data.loader import check_batch

    data = config.data
    batch = data.gen_batch_size if config.algorithm.filter_groups.enable else None
    check_batch(min(rows, limit_of(data.train_max_samples) or rows), batch or data.train_batch_size)


def _check_template(folder: Path) -> None:
    """The tokenizer has a chat template, if it is a folder."""
    if not folder.is_dir() or any((folder / name).exists() for name in TEMPLATES):
        return
    file = folder / "tokenizer_config.json"
    found = read_object(file.read_bytes()) if file.exists() else {}
    if found is not None and not found.get("chat_template"):  # None is the tokenizer's own trouble
        raise UserError(
            f"model.chat_template: the tokenizer in {folder} has no chat template, as base models have none; name a "
            "Jinja file that fits the model, such as configs/templates/chatml_tools.jinja"
        )
