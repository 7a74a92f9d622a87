"""Opens pictures of strangers: of a few formats, and of bounded size."""

from pathlib import Path
from typing import IO, Any

FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF")
"""Formats that PIL reads by itself; it hands EPS to Ghostscript, and reads a hundred others that no model needs."""
MOST_PIXELS = 1 << 26


def open_picture(source: str | Path | IO[bytes]) -> Any:
    """The PIL image of a file. Raises ValueError, and what PIL or the place raises."""
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(source, formats=FORMATS)
    except UnidentifiedImageError:
        raise ValueError(f"it is no picture of a format that is read: {', '.join(FORMATS)}") from None
    require_pixels(*image.size)
    return image


def require_pixels(width: int, height: int) -> None:
    """Raises ValueError for a picture that would fill the memory."""
    if width * height > MOST_PIXELS:
        raise ValueError(f"{width}x{height} pixels are more than {MOST_PIXELS}")
