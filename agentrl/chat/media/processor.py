"""The model's own processor: turns an image or video into tokens and tensors."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from agentrl.chat.media.sources import open_image, open_video
from agentrl.core.errors import InfraError, UserError, one_line
from agentrl.trajectory.medium import KINDS, Medium

CACHED_MEDIA = 16
"""Size of the cache of media: the trajectories of a group begin with the same ones."""

TEXT_ALONE = "it reads text alone; name a vision-language model"
NAMES = {"image": "an image", "video": "a video"}
Message = dict[str, Any]


class Processor:
    """Reads messages with images and videos. Without a transformers processor it takes text only, and raises else."""

    def __init__(
        self, processor: Any = None, kwargs: Mapping[str, Any] | None = None, *, missing: str = TEXT_ALONE
    ) -> None:
        """`kwargs`: for every call of the processor, such as size. `missing`: why there is none, and the fix."""
        self.processor = processor
        self.missing = missing
        self.kwargs = dict(kwargs or {})
        names = ("image_token_id", "video_token_id") if processor is not None else ()
        ids = (getattr(processor, name, None) for name in names)
        self.reserved = frozenset(token for token in ids if token is not None)
        """Tokens that stand for media and for nothing else."""
        self._cached = lru_cache(maxsize=CACHED_MEDIA)(self._made)

    def see(self, messages: Sequence[Message]) -> list[Message]:
        """The messages with a `Medium` for each image and video; messages of text are unchanged.

        A text model gets the names of a tool's images instead. Raises UserError for images in a text model's prompt,
        and for an image that cannot be read.
        """
        return [self._seen(m) if isinstance(m.get("content"), list) else m for m in messages]

    def placeholder(self, kind: str) -> str:
        """The text that a chat template writes for an image or a video."""
        return str(getattr(self.processor, f"{kind}_token"))

    def expand(self, text: str, media: Sequence[Medium]) -> str:
        """A rendered conversation, each placeholder drawn out to its medium's text. Raises ValueError on a miscount."""
        if media and self.processor is None:
            raise ValueError(self.missing)
        waiting = {kind: [m.text for m in media if m.kind == kind] for kind in KINDS}
        for kind, texts in waiting.items():
            if not texts:
                continue
            pieces = text.split(self.placeholder(kind))
            if len(pieces) != len(texts) + 1:
                raise ValueError(f"it shows {len(pieces) - 1} {kind}s of {len(texts)}")
            text = "".join(piece + own for piece, own in zip(pieces, [*texts, ""], strict=True))
        return text

    def check(self, ids: Sequence[int], media: Sequence[Medium]) -> None:
        """Raises InfraError where tokens claim to be of media that are not there: a text spells them."""
        if not self.reserved:
            return
        claimed = sum(token in self.reserved for token in ids)
        if claimed != sum(token in self.reserved for medium in media for token in medium.ids):
            raise InfraError("a text holds the model's own token for an image, and no image belongs to it")

    def legible(self, ids: Sequence[int]) -> int:
        """How many of sampled tokens come before the first that stands for media: a model cannot show itself any."""
        if self.reserved.isdisjoint(ids):
            return len(ids)
        return next(i for i, token in enumerate(ids) if token in self.reserved)

    def _seen(self, message: Message) -> Message:
        if self.processor is None and message.get("role") == "tool":
            return {**message, "content": "\n".join(map(_as_text, message["content"]))}
        return {**message, "content": [self._part(part) for part in message["content"]]}

    def _part(self, part: Any) -> Any:
        kind = str(part.get("type", "")).removesuffix("_url") if isinstance(part, Mapping) else ""
        if kind not in KINDS:
            return part
        found = part.get(kind, part.get(f"{kind}_url"))
        if isinstance(found, Medium):
            return part
        # The other keys of a part are about its picture: min_pixels, say. OpenAI's image_url is a mapping itself.
        options = {name: value for name, value in part.items() if name not in ("type", kind, f"{kind}_url", "text")}
        wrapped = found if isinstance(found, Mapping) else {kind: found}
        return {"type": kind, kind: self.medium(kind, {**options, **wrapped})}

    def medium(self, kind: str, value: Mapping[str, Any]) -> Medium:
        """The `Medium` of an image or a video. Raises UserError."""
        if self.processor is None:
            raise UserError(f"model.path cannot be shown {NAMES[kind]}: {self.missing}")
        if not hasattr(self.processor, f"{kind}_token") or getattr(self.processor, f"{kind}_processor", None) is None:
            raise UserError(f"model.path cannot be shown {NAMES[kind]} here: install torchvision, if it knows {kind}s")
        key = tuple(sorted(value.items(), key=lambda item: item[0]))
        hashable = all(getattr(item, "__hash__", None) for item in value.values())  # lists and PIL images are not
        return (self._cached if hashable else self._made)(kind, key)

    def _made(self, kind: str, key: tuple[tuple[str, Any], ...]) -> Medium:
        value = dict(key)
        # A border where others' files and code are read: anything may come out of them.
        try:
            return self._image(value) if kind == "image" else self._video(value)
        except Exception as error:
            raise UserError(f"{NAMES[kind]} cannot be read: {type(error).__name__}: {one_line(error)}") from error

    def _image(self, value: Mapping[str, Any]) -> Medium:
        image = open_image(value, **_size_rule(self.processor.image_processor))
        return self._processed("image", image, images=[image])

    def _video(self, value: Mapping[str, Any]) -> Medium:
        frames, fps = open_video(value, **_size_rule(self.processor.video_processor))
        about = [{"fps": fps, "total_num_frames": len(frames), "frames_indices": list(range(len(frames)))}]
        return self._processed("video", frames, videos=[frames], video_metadata=about, do_sample_frames=False)

    def _processed(self, kind: str, source: Any, **content: Any) -> Medium:
        tokenizer, mark = self.processor.tokenizer, self.placeholder(kind)
        encode: Callable[..., Any] = tokenizer.encode
        made = dict(
            self.processor(text=[mark], add_special_tokens=False, return_tensors="pt", **content, **self.kwargs)
        )
        ids = made.pop("input_ids")[0].tolist()
        made.pop("attention_mask", None)
        types = [made.pop(name, None) for name in ("mm_token_type_ids", "token_type_ids")]
        kinds = next((column[0].tolist() for column in types if column is not None), None)
        kinds = kinds or [int(token in self.reserved) for token in ids]
        return Medium(
            kind=kind,
            source=source,
            text=tokenizer.decode(ids, skip_special_tokens=False),
            ids=tuple(ids),
            short=tuple(encode(mark, add_special_tokens=False)),
            types={token: number for token, number in zip(ids, kinds, strict=True) if number},
            features=made,
        )


def _as_text(part: Mapping[str, Any]) -> str:
    return str(part["text"]) if part["type"] == "text" else f"[{part['type']}]"


def _size_rule(part: Any) -> dict[str, Any]:
    """How this processor sizes pictures, where that is Qwen's way: the arguments of `open_image`."""
    size = getattr(part, "size", None) or {}
    low, high = size.get("shortest_edge"), size.get("longest_edge")
    if low is None or high is None or not hasattr(part, "merge_size"):
        return {"factor": None, "bounds": (0, 0)}
    return {"factor": int(part.patch_size) * int(part.merge_size), "bounds": (int(low), int(high))}
