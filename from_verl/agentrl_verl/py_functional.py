"""Small helpers of verl's that plug-in files import."""

import asyncio
import functools
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from agentrl.core.plugins import load_attribute


def append_to_dict(data: dict[str, list[Any]], new_data: Mapping[str, Any], prefix: str = "") -> None:
    """Append each value to the list of its key."""
    for key, value in new_data.items():
        data.setdefault(f"{prefix}{key}", []).append(value)


def union_two_dict(dict1: dict[Any, Any], dict2: Mapping[Any, Any]) -> dict[Any, Any]:
    """`dict1` with the entries of `dict2`, which must be equal where both have one."""
    for key, value in dict2.items():
        if key in dict1 and dict1[key] != value:
            raise AssertionError(f"{key} is {dict1[key]!r} in one and {value!r} in the other")
        dict1[key] = value
    return dict1


def rename_dict(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The same values under names that begin with `prefix`."""
    return {name if name.startswith(prefix) else f"{prefix}{name}": value for name, value in data.items()}


def list_of_dict_to_dict_of_list(list_of_dict: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """A list for each key of the first."""
    return {key: [each[key] for each in list_of_dict] for key in (list_of_dict[0] if list_of_dict else ())}


def convert_to_regular_types(obj: Any) -> Any:
    """OmegaConf's containers as lists and dicts."""
    if isinstance(obj, DictConfig | ListConfig):
        return OmegaConf.to_container(obj, resolve=True)
    if isinstance(obj, list | tuple):
        return [convert_to_regular_types(each) for each in obj]
    return {key: convert_to_regular_types(value) for key, value in obj.items()} if isinstance(obj, dict) else obj


def convert_nested_value_to_list_recursive(data_item: Any) -> Any:
    """numpy's arrays as lists, at every depth."""
    if isinstance(data_item, dict):
        return {key: convert_nested_value_to_list_recursive(value) for key, value in data_item.items()}
    item = data_item.tolist() if hasattr(data_item, "tolist") else data_item
    return [convert_nested_value_to_list_recursive(each) for each in item] if isinstance(item, list) else item


@contextmanager
def temp_env_var(key: str, value: str) -> Iterator[None]:
    """Within, the environment variable has that value."""
    before = os.environ.get(key)
    os.environ[key] = value
    try:
        yield
    finally:
        os.environ.pop(key)
        if before is not None:
            os.environ[key] = before


async def auto_await(value: Any) -> Any:
    """The value, or what comes of awaiting it."""
    return await value if inspect.isawaitable(value) else value


def import_external_libs(external_libs: str | Iterable[str] | None = None) -> None:
    """Import modules by name."""
    import importlib

    for name in [external_libs] if isinstance(external_libs, str) else external_libs or ():
        importlib.import_module(name)


def load_class_from_fqn(fqn: str, description: str = "class") -> Any:
    """The class of a dotted name. Raises UserError."""
    module, _, name = fqn.rpartition(".")
    return load_attribute(module, name, what=description)


def resolve_config_path(config_path: str) -> str:
    """The absolute path of a file. Raises FileNotFoundError."""
    path = Path(config_path).expanduser().absolute()
    if not path.exists():
        raise FileNotFoundError(f"there is no {config_path} here ({Path.cwd()})")
    return str(path)


def timeout_limit(seconds: float, use_signals: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: TimeoutError after so many seconds; the call's thread runs on."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def limited(*args: Any, **kwargs: Any) -> Any:
            from agentrl.core.user_code import UserFunction

            return asyncio.run(UserFunction(function).run(args, kwargs, timeout=seconds))

        return limited

    return decorate


class RolloutTraceConfig:
    """verl's tracing, which keeps nothing here."""

    @classmethod
    def init(cls, *_: Any, **__: Any) -> None:
        """Do nothing."""

    @classmethod
    def get_backend(cls) -> None:
        """There is none."""

    @classmethod
    def get_client(cls) -> None:
        """There is none."""


def initialize_system_prompt(tokenizer: Any, **apply_chat_template_kwargs: Any) -> list[int]:
    """Tokens that the template writes before a conversation without a system message."""
    from agentrl_verl.hf_tokenizers import normalize_token_ids

    def rendered(times: int) -> list[int]:
        messages = [{"role": "user", "content": ""}] * times
        return normalize_token_ids(
            tokenizer.apply_chat_template(
                messages, add_generation_prompt=False, tokenize=True, **apply_chat_template_kwargs
            )
        )

    once = rendered(1)
    return once[: 2 * len(once) - len(rendered(2))]


def apply_chat_template(processing_class: Any, messages: Any, **kwargs: Any) -> Any:
    """The template's text or tokens."""
    return processing_class.apply_chat_template(messages, **kwargs)


def format_gpt_oss_tool_response_manually(tool_response: str, tool_call_name: str) -> str:
    """A tool's result as a message of gpt-oss."""
    return f"<|start|>functions.{tool_call_name} to=assistant<|channel|>commentary<|message|>{tool_response}<|end|>"


def add_generation_prompt_for_gpt_oss(message_content: str) -> str:
    """The text, and the beginning of the model's next message."""
    return f"{message_content}<|start|>assistant"


def build_gpt_oss_tool_response_text(messages: Sequence[Mapping[str, Any]], tool_call_names: Sequence[str]) -> str:
    """The results of several tools, and the beginning of the model's next message."""
    pairs = zip(messages, tool_call_names, strict=True)
    results = [format_gpt_oss_tool_response_manually(message["content"], name) for message, name in pairs]
    return add_generation_prompt_for_gpt_oss("".join(results))
