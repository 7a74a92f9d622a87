"""Pictures of strangers: the formats that models are shown, and no more pixels than memory holds."""

import base64
import struct
import zlib
from io import BytesIO

import pytest
from PIL import Image

from agentrl.chat.media.sources import open_image
from agentrl.trajectory.picture import FORMATS

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"


def written(kind: str) -> bytes:
    buffer = BytesIO()
    Image.new("RGB", (8, 8), "red").save(buffer, format=kind)
    return buffer.getvalue()


def bomb(side: int) -> bytes:
    """A PNG of a few bytes and side times side pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", FORMATS)
def test_common_formats_are_read(kind: str) -> None:
    for value in (written(kind), "data:image/x;base64," + base64.b64encode(written(kind)).decode()):
        assert open_image(value, factor=None, bounds=(0, 0)).size == (8, 8)


@pytest.mark.parametrize("content", [EPS, written("PPM"), written("PCX"), written("TGA"), written("PDF"), b"x"])
def test_other_formats_are_refused_before_they_are_read(content: bytes) -> None:
    for value in (content, {"bytes": content}, "data:image/png;base64," + base64.b64encode(content).decode()):
        with pytest.raises(ValueError, match="no picture of a format"):
            open_image(value, factor=None, bounds=(0, 0))


def test_pixels_have_a_limit() -> None:
    with pytest.raises(ValueError, match="pixels are more"):
        open_image(bomb(12_000), factor=None, bounds=(0, 0))
    huge = {"bytes": written("PNG"), "resized_height": 10**6, "resized_width": 10**6}
    with pytest.raises(ValueError, match="pixels are more"):
        open_image(huge, factor=None, bounds=(0, 0))
    with pytest.raises(ValueError, match="pixels are more"):
        open_image({"bytes": written("PNG"), "min_pixels": 10**12}, factor=28, bounds=(1, 10**13))
