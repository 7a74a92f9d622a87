"""Pictures and videos out of what people put into rows and tool results.

An image is a PIL image, bytes, a path, a URL (http, file, data), or verl's mapping of one of these (`bytes`, `image`,
`image_url`, `path`), with `min_pixels`, `max_pixels`, `resized_height` and `resized_width` as qwen_vl_utils has them.
A video is a list of images, or a file; in a mapping it may say `nframes` or `fps`.
"""

import base64
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from urllib.request import urlopen

from agentrl.trajectory.picture import open_picture, require_pixels

SOURCE_KEYS = ("image", "image_url", "bytes", "path", "url")
MAX_DOWNLOAD_BYTES = 1 << 26
"""Most bytes of a picture from the web."""
DOWNLOAD_SECONDS = 30.0
"""Seconds that a picture from the web may take."""
MAX_FRAMES = 768
DEFAULT_FPS = 2.0
"""Frames a second that a video is sampled at, as qwen_vl_utils does."""


def open_image(value: Any, *, factor: int | None, bounds: tuple[int, int]) -> Any:
    """A PIL image in RGB. With a `factor` it gets sides that are multiples of it and pixels within `bounds`, or those
    that the value itself states: what the model's processor would make of it. Raises what PIL or the source raises."""
    wishes = value if isinstance(value, Mapping) else {}
    image = _as_rgb(_picture(value))
    if "resized_height" in wishes and "resized_width" in wishes:
        size = int(wishes["resized_width"]), int(wishes["resized_height"])
        require_pixels(*size)
        image = image.resize(size)
    if factor is None:
        return image
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    low, high = int(wishes.get("min_pixels", bounds[0])), int(wishes.get("max_pixels", bounds[1]))
    height, width = smart_resize(image.height, image.width, factor, low, high)
    require_pixels(width, height)
    if (width, height) == image.size:
        return image
    return image.resize((width, height), resample=3)  # bicubic, as the processors do


def open_video(value: Any, *, factor: int | None, bounds: tuple[int, int]) -> tuple[list[Any], float]:
    """Frames as PIL images, and how many of them make a second. Raises what PIL, the decoder or the source raises."""
    wishes = dict(value) if isinstance(value, Mapping) else {}
    content = wishes.get("video", wishes.get("path", value))
    own = {name: wishes[name] for name in ("min_pixels", "max_pixels") if name in wishes}
    frames, fps = (
        (content, float(wishes.get("fps", DEFAULT_FPS))) if isinstance(content, list) else _decoded(content, wishes)
    )
    return [open_image({**own, "image": frame}, factor=factor, bounds=bounds) for frame in frames], fps


def _picture(value: Any) -> Any:
    from PIL import Image

    if isinstance(value, Image.Image):
        return value
    if isinstance(value, bytes | bytearray):
        return open_picture(BytesIO(value))
    if isinstance(value, str | Path):
        return open_picture(_stream(str(value)))
    if isinstance(value, Mapping):
        for name in SOURCE_KEYS:
            if value.get(name) is not None:
                return _picture(value[name])
    raise ValueError(f"{str(value)[:80]!r} is no image: give a PIL image, bytes, a path, a URL, or {{'bytes': ...}}")


def _stream(location: str) -> Any:
    if location.startswith("data:"):
        return BytesIO(base64.b64decode(location.partition(",")[2]))
    if location.startswith(("http://", "https://")):
        with urlopen(location, timeout=DOWNLOAD_SECONDS) as answer:
            content = answer.read(MAX_DOWNLOAD_BYTES + 1)
        if len(content) > MAX_DOWNLOAD_BYTES:
            raise ValueError(f"a picture of more than {MAX_DOWNLOAD_BYTES} bytes")
        return BytesIO(content)
    return unquote(location.removeprefix("file://")) if location.startswith("file://") else location


def _as_rgb(image: Any) -> Any:
    """Transparent pixels become white, not the colour beneath."""
    if image.mode != "RGBA":
        return image.convert("RGB")
    from PIL import Image

    white = Image.new("RGB", image.size, "white")
    white.paste(image, mask=image.getchannel("A"))
    return white


def _decoded(location: Any, wishes: Mapping[str, Any]) -> tuple[list[Any], float]:
    """Frames of a file, evenly spread."""
    import av
    from PIL import Image

    source = BytesIO(location) if isinstance(location, bytes) else str(location).removeprefix("file://")
    with av.open(source) as container:
        stream = container.streams.video[0]
        rate = float(stream.average_rate or DEFAULT_FPS)
        frames = [Image.fromarray(frame.to_ndarray(format="rgb24")) for frame in container.decode(stream)]
    count = int(wishes.get("nframes") or len(frames) / rate * float(wishes.get("fps", DEFAULT_FPS)))
    count = min(max(2, count - count % 2), len(frames), MAX_FRAMES)  # models join them in pairs
    picked = [frames[round(i * (len(frames) - 1) / max(count - 1, 1))] for i in range(count)]
    return picked, rate * count / len(frames)
