"""Tokenizers as code written for verl expects them: `apply_chat_template` gives a list of ids, as it did for years."""

import copy
from typing import Any


def with_lists(tokenizer: Any) -> Any:
    """A copy whose `apply_chat_template(tokenize=True)` returns a list by default."""
    older = copy.copy(tokenizer)

    def apply_chat_template(*args: Any, **kwargs: Any) -> Any:
        return tokenizer.apply_chat_template(*args, **{"return_dict": False} | kwargs)

    vars(older)["apply_chat_template"] = apply_chat_template
    return older


def normalize_token_ids(tokenized: Any) -> list[int]:
    """One list of ids from the output of a tokenizer: a list, a list of one, a tensor, a BatchEncoding."""
    ids = tokenized["input_ids"] if hasattr(tokenized, "keys") else tokenized
    ids = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    return list(ids[0]) if ids and isinstance(ids[0], list) else ids


def hf_tokenizer(name_or_path: str, **kwargs: Any) -> Any:
    """transformers' tokenizer; a padding token where there is none."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(name_or_path, **kwargs)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return with_lists(tokenizer)


def hf_processor(name_or_path: str, **kwargs: Any) -> Any:
    """transformers' processor; None for a model of text alone."""
    from transformers import AutoProcessor

    try:
        processor = AutoProcessor.from_pretrained(name_or_path, **kwargs)
    except (OSError, ValueError):
        return None
    return processor if "Processor" in type(processor).__name__ else None
