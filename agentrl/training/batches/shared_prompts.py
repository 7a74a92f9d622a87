"""Compute a prompt once for all sequences of a pass that begin with it.

The samples of a group have the same prompt. A pass computes its tokens in the first of them; the others have their own
tokens only, whose attention reads the keys and values of the prompt there. Everything else in a layer looks at one
token at a time. So values and gradients are those of whole sequences, but for float rounding.

A prompt is the tokens before the first one that is trained. Sequences share it where it is equal, token by token.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.core.grouping import grouped

COPIED = 1 / 8
"""Memory of the keys and values of a token, which every sequence has for itself, over that of all its activations."""


class Prompt(NamedTuple):
    """The prompt of a sequence."""

    number: int
    """Equal where prompts are equal."""
    tokens: int


@dataclass(frozen=True)
class SharedPrompts:
    """The tokens of a pass over B sequences of T tokens that computes S of them."""

    kept: Tensor
    """int64 [S]; the tokens that are computed, in the order of the sequences."""
    seen: Tensor
    """int64 [T]; where among them each token is."""
    cu_seqlens: Tensor
    """int32 [B+1]; bounds of each sequence's own tokens among them."""
    order: Tensor
    """int64 [T]; all tokens, ordered by where they are among those that are computed."""
    bounds: Tensor
    """int64 [S+1]; bounds in `order` of the tokens that one computed token stands for."""


def sequence_prompts(ids: NDArray[np.int64], mask: NDArray[np.bool_], lengths: Iterable[int]) -> list[Prompt]:
    """The prompt of each sequence of packed tokens; without a trained token, all but its last one."""
    numbers: dict[bytes, int] = {}
    found, start = [], 0
    for length in lengths:
        own = mask[start : start + length]
        tokens = int(own.argmax()) if own.any() else length - 1
        found.append(Prompt(numbers.setdefault(ids[start : start + tokens].tobytes(), len(numbers)), tokens))
        start += length
    return found


def shared_prompts(lengths: Sequence[int], prompts: Sequence[Prompt], device: torch.device) -> SharedPrompts:
    """The layout of a pass over these sequences."""
    home: dict[int, int] = {}
    kept, seen, bounds, start = [], [], [0], 0
    for length, (number, tokens) in zip(lengths, prompts, strict=True):
        skipped = tokens if number in home else 0
        first = home.setdefault(number, bounds[-1])
        kept.append(np.arange(start + skipped, start + length))
        seen += [np.arange(first, first + skipped), np.arange(bounds[-1], bounds[-1] + length - skipped)]
        bounds.append(bounds[-1] + length - skipped)
        start += length
    indices = _joined(seen).to(device)
    order = indices.argsort(stable=True)
    return SharedPrompts(
        kept=_joined(kept).to(device),
        seen=indices,
        cu_seqlens=torch.tensor(bounds, dtype=torch.int32, device=device),
        order=order,
        bounds=torch.searchsorted(indices[order], torch.arange(bounds[-1] + 1, device=device)),
    )


def _joined(parts: Sequence[NDArray[np.int64]]) -> Tensor:
    return torch.from_numpy(np.concatenate([np.empty(0, np.int64), *parts]))


def repeated(prompts: Iterable[Prompt]) -> list[int]:
    """Tokens of each prompt that an earlier sequence has already."""
    met: set[int] = set()
    return [tokens for number, tokens in prompts if number in met or met.add(number)]  # type: ignore[func-returns-value]


def pass_tokens(lengths: Sequence[int], prompts: Sequence[Prompt]) -> int:
    """Tokens of a pass over these sequences, by the memory that it takes."""
    return sum(lengths) - int((1 - COPIED) * sum(repeated(prompts)))


def families(lengths: Sequence[int], prompts: Sequence[Prompt], max_tokens: int | None) -> list[list[int]]:
    """Sequences with the same prompt, as far as a pass of `max_tokens` has room for them; indices in their order."""
    alike = grouped(range(len(prompts)), lambda sequence: prompts[sequence].number)
    if max_tokens is None:
        return list(alike.values())
    return [part for members in alike.values() for part in _parts(members, lengths, prompts, max_tokens)]


def _parts(members: list[int], lengths: Sequence[int], prompts: Sequence[Prompt], most: int) -> list[list[int]]:
    """Members of a family in as few parts of at most `most` tokens as they fit into in this order."""
    prompt = prompts[members[0]].tokens
    own = [lengths[i] - prompt + COPIED * prompt for i in members]
    room = most - (1 - COPIED) * prompt
    parts: list[list[int]] = []
    left = 0.0
    for member, tokens in zip(members, own, strict=True):
        if not parts or tokens > left:
            parts.append([])
            left = room
        parts[-1].append(member)
        left -= tokens
    return parts
