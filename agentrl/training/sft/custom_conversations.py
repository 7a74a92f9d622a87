"""Conversations of the user's dataset class, called by keyword as in verl: parquet_files, tokenizer, config, and
processor and max_samples where it has these parameters.

Invariant: an item's `input_ids` are trained on where its `loss_mask` is 1, as in verl since 0.6; padding, where its
`attention_mask` is 0, is left out. The first token is never trained on, because no token predicts it.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from agentrl.chat import Chat
from agentrl.config.schema.sft import SftData
from agentrl.core.errors import UserError
from agentrl.core.plugins import load_attribute
from agentrl.data.dataset import CUSTOM_SECTION, custom_dataset
from agentrl.data.files import paths
from agentrl.data.plain import plain
from agentrl.trajectory.ledger import Ledger, Source

STORED = {"teacher_topk_ids": np.int32, "teacher_topk_logprobs": np.float32}
"""Columns with a teacher's likeliest tokens, and their types."""


def custom_ledgers(data: SftData, chat: Chat, files: Any, what: str) -> Iterator[tuple[Ledger, str]]:
    """The items of the user's dataset as ledgers, each with its class and index. Raises UserError."""
    cls = load_attribute(str(data.custom_cls.path), data.custom_cls.name, what=CUSTOM_SECTION, section=True)
    given = {"parquet_files": [str(path) for path in paths(files, what)], "tokenizer": chat.tokenizer}
    dataset = custom_dataset(cls, data, given, {"processor": chat.processor.processor, "max_samples": -1})
    for i in range(len(dataset)):
        where = f"{CUSTOM_SECTION}: {type(dataset).__name__}[{i}]"
        yield token_ledger(dataset[i], len(chat.tokenizer), where), where


def token_ledger(item: Any, vocabulary: int, where: str) -> Ledger:
    """Tokens with a mask, and a teacher's likeliest ones, ids below `vocabulary`, where stored. Raises UserError."""
    if not isinstance(item, Mapping) or not {"input_ids", "loss_mask"} <= item.keys():
        raise UserError(f"{where} must be a mapping with input_ids and loss_mask")
    if item.get("multi_modal_inputs"):
        raise UserError(f"{where} has multi_modal_inputs: classes of your own show text alone; see data.image_key")
    ids, mask = plain(item["input_ids"]), plain(item["loss_mask"])
    shown = plain(item.get("attention_mask", [1] * len(ids)))
    if not len(ids) == len(mask) == len(shown):
        raise UserError(f"{where}: input_ids, loss_mask and attention_mask must be equally long")
    ids, mask = ([value for value, real in zip(column, shown, strict=True) if real] for column in (ids, mask))
    if not any(mask[1:]):
        raise UserError(f"{where} has no token to train on: loss_mask is 0 after the first")
    ledger = recorded_ledger(ids, [False, *map(bool, mask[1:])])
    if "teacher_topk_ids" in item:
        try:
            columns = (np.array(plain(item[name]), kind) for name, kind in STORED.items())
            tokens, logprobs = (column[np.flatnonzero(shown)] for column in columns)
            fits = 0 <= tokens.min() <= tokens.max() < vocabulary and (tokens.ndim, tokens.shape) == (2, logprobs.shape)
        except (KeyError, TypeError, ValueError, IndexError, OverflowError):  # the user's data
            fits = False
        if not fits:
            raise UserError(f"{where}: {' and '.join(STORED)} must have k numbers a token, ids below {vocabulary}")
        ledger.teacher, ledger.teacher_topk_ids, ledger.teacher_topk_logprobs = 0, tokens, logprobs
    return ledger


def recorded_ledger(ids: Sequence[int], trained: Sequence[bool]) -> Ledger:
    """A ledger of given tokens, of which the first is not trained on."""
    ledger, at = Ledger(), 0
    for turn, (own, run) in enumerate(groupby(trained)):
        part = list(ids[at : (at := at + sum(1 for _ in run))])
        if own:
            ledger.append_model(part, [0.0] * len(part), turn=turn, version=0)
        elif ledger.ids:
            ledger.append_observation(part, Source.USER, turn=turn)
        else:
            ledger.append_prompt(part)
    return ledger
