"""One image or video as the model gets it, and those of a conversation."""

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

KINDS = ("image", "video")
THUMBNAIL = 96
"""Pixels of a thumbnail's longer side."""


@dataclass(frozen=True, eq=False)
class Medium:
    """An image or video; it replaces the raw one in a message's content part."""

    kind: str
    """image or video."""
    source: Any
    """The PIL image, or a video's frames; None when only the tensors are needed."""
    text: str
    """Its text in a rendered conversation."""
    ids: tuple[int, ...]
    """The same as tokens."""
    short: tuple[int, ...]
    """Its placeholder before expansion to `ids`, for engines that expand it themselves."""
    types: Mapping[int, int]
    """The tokens whose embeddings are computed, and their kind in transformers (image 1, video 2)."""
    features: Mapping[str, "Tensor"]
    """The model's inputs for them, by argument of its forward: pixel_values, image_grid_thw, ..."""

    def __repr__(self) -> str:
        return f"<{self.kind} of {len(self.ids)} tokens>"

    @property
    def frames(self) -> list[Any]:
        """Its pictures: one, or a video's."""
        return list(self.source) if isinstance(self.source, list) else [self.source]

    def data_url(self) -> str:
        """The image as a PNG data URL, for an engine on another machine."""
        return _data_url(self.source, "PNG")

    def thumbnail(self) -> str:
        """A small picture of it (a video's first frame) as a data URL."""
        small = self.frames[0].copy()
        small.thumbnail((THUMBNAIL, THUMBNAIL))
        return _data_url(small, "JPEG")


def media_places(messages: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, int, Medium]]:
    """(message, content part, medium) for each image and video of a conversation, in order."""
    for i, content in enumerate(message.get("content") for message in messages):
        for j, part in enumerate(content if isinstance(content, list) else ()):
            if isinstance(medium := part.get(part.get("type")), Medium):
                yield i, j, medium


def media_of(messages: Iterable[Mapping[str, Any]]) -> list[Medium]:
    """The media of a conversation, in order."""
    return [medium for *_, medium in media_places(messages)]


def features(media: Sequence[Medium]) -> dict[str, "Tensor"]:
    """The tensors of several media as one model call takes them: each joined along its first dimension."""
    import torch

    names = dict.fromkeys(name for medium in media for name in medium.features)
    return {name: torch.cat([m.features[name] for m in media if name in m.features]) for name in names}


Media = Sequence[Medium]


def token_types(ids: Sequence[int], media: Iterable[Medium]) -> list[int]:
    """transformers' `mm_token_type_ids` of a sequence: 0 for text."""
    types = {token: kind for medium in media for token, kind in medium.types.items()}
    return [types.get(token, 0) for token in ids]


def collapsed(ids: Sequence[int], media: Iterable[Medium]) -> list[int]:
    """The tokens with each medium as its placeholder. Raises ValueError when they do not contain the media."""
    ids, short, start = list(ids), list[int](), 0
    for medium in media:
        own = list(medium.ids)
        at = ids.index(own[0], start)
        while ids[at : at + len(own)] != own:
            at = ids.index(own[0], at + 1)
        short += [*ids[start:at], *medium.short]
        start = at + len(own)
    return short + ids[start:]


def _data_url(image: Any, format: str) -> str:
    buffer = BytesIO()
    image.convert("RGB").save(buffer, format=format)
    return f"data:image/{format.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"
