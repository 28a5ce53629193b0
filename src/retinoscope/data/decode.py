"""Stored bytes, and what a user's Dataset yields, to the pixels that should be seen."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from retinoscope.core.errors import first_line
from retinoscope.data.source import UnreadableImage

# Pillow knows more, but some of those run other programs (Ghostscript) on what they read.
_FORMATS = ("JPEG", "PNG", "BMP", "DIB", "GIF", "WEBP", "TIFF", "PPM", "JPEG2000")
_ORIENTATION, _BITS_PER_SAMPLE, _PHOTOMETRIC = 0x0112, 258, 262
# A resize in floating point overshoots by a little; less than half a step of grey is not seen.
_OVERSHOOT = 0.5 / 255


def decode(content: bytes | Path, name: str) -> np.ndarray:
    """The image in a file or its bytes as it should be seen: RGB, uint8 (H, W, 3).

    It is turned as its EXIF orientation says. Transparent pixels are laid over white. Of an
    animation it is the first frame. Greyscale of 16 bits is scaled by its whole range, so 65535
    becomes 255; integers of 32 bits are taken to use the range of 16, floats that from 0 to 1, and
    refused beyond it. Colour profiles are left aside, also that of CMYK, and a JPEG's CMYK is taken
    to be stored inverted, as nearly all programs do.

    Args:
        content: The bytes of the file, or where it lies.
        name: What to call the image in messages.

    Raises:
        UnreadableImage: It is damaged, empty, no image, or larger than Pillow's limit against
            decompression bombs (``PIL.Image.MAX_IMAGE_PIXELS``).
    """
    try:
        # What Pillow only warns of, such as damaged metadata, leaves the pixels as they are;
        # the size it warns of is refused below.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _decode(content)
    except UnidentifiedImageError:
        reason = "it is damaged at its beginning or of no format that is known."
    except Exception as error:
        # Damaged content makes Pillow raise nearly anything: OSError, SyntaxError, struct.error, …
        reason = first_line(error)
    raise _unreadable(name, reason)


def decode_stored(value: Any, folder: Path, name: str) -> np.ndarray:
    """The image in a cell of a table as :func:`decode` gives it.

    Args:
        value: Bytes, or a mapping with ``bytes``, or without them the ``path`` of a file.
        folder: Where paths begin.
        name: What to call the image in messages.
    """
    content = value
    if isinstance(value, Mapping):
        content, path = value.get("bytes"), value.get("path")
        if content is None and path is not None:
            content = folder / path
    if content is None:
        raise _unreadable(name, "there is neither content nor a path in its place.")
    return decode(content, name)


def from_array(image: Any, name: str) -> np.ndarray:
    """What a Dataset yields as RGB, uint8 (H, W, 3).

    Understood are PIL images, arrays and tensors, with the colours first or last or none. Where
    both could be meant, such as (3, 32, 3), a tensor has them first and an array last. Integers of
    16 bits are scaled by their whole range. A PIL image is not turned by EXIF: whoever made the
    Dataset has decided how it lies.

    Args:
        image: The image, before normalisation.
        name: What to call the image in messages.

    Raises:
        UnreadableImage: It is of another kind or shape, or has values out of range.
    """
    try:
        if isinstance(image, Image.Image):
            return _pixels(image)
        if isinstance(image, torch.Tensor):
            image = image.detach().cpu()
            values = (image.float() if image.is_floating_point() else image).numpy()
            return _composite(_bytes(_colours_last(values, first=True)))
        if isinstance(image, np.ndarray):
            return _composite(_bytes(_colours_last(image, first=False)))
        raise ValueError(
            f"it is of type {type(image).__name__}, not a PIL image, an array or a tensor."
        )
    except Exception as error:
        raise _unreadable(name, first_line(error)) from None


def _unreadable(name: str, reason: str) -> UnreadableImage:
    return UnreadableImage(f"{name} cannot be read as an image: {reason}")


def _decode(content: bytes | Path) -> np.ndarray:
    data = content.read_bytes() if isinstance(content, Path) else content
    if not data:
        raise ValueError("it is empty, 0 bytes long.")
    with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
        width, height = image.size
        limit = Image.MAX_IMAGE_PIXELS
        if limit is not None and width * height > limit:
            raise ValueError(f"{width} × {height} pixels exceed the limit of {limit}.")
        image.load()
        return _turned(_pixels(image), _orientation(image))


def _orientation(image: Image.Image) -> int:
    try:
        return image.getexif().get(_ORIENTATION, 1)
    except Exception:
        return 1  # EXIF that cannot be read says nothing, and the pixels are sound


def _turned(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """The image upright, given EXIF's number for how it was stored."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)


def _pixels(image: Image.Image) -> np.ndarray:
    if 0 in image.size:
        raise ValueError(f"it has no pixels, its size is {image.width} × {image.height}.")
    if image.mode in ("F", "I") or image.mode.startswith("I;16"):
        return _deep_grey(image)
    if image.mode == "La":
        image = image.convert("LA")  # there is no direct way from premultiplied grey
    if image.has_transparency_data:
        return _composite(np.array(image.convert("RGBA")))
    # Pillow has no 16-bit colours: it keeps the upper byte of each.
    return np.array(image.convert("RGB"))


def _deep_grey(image: Image.Image) -> np.ndarray:
    """Grey of more than 8 bits, which Pillow itself would clip at 255 instead of scaling it."""
    values = np.asarray(image)
    tags = getattr(image, "tag_v2", {})
    if image.mode == "F":
        grey = _unit_to_bytes(values)
    else:
        # A TIFF of 12 bits has the mode of 16.
        bits = tags.get(_BITS_PER_SAMPLE, (16,))[0]
        limit = 2**bits - 1 if bits < 16 else 65535
        if values.min() < 0 or values.max() > limit:
            raise ValueError(
                f"its values go from {values.min()} to {values.max()}, and 0 to {limit} can be "
                "shown. Store it with 8 or 16 bits."
            )
        grey = np.rint(values * (255 / limit)).astype(np.uint8)
    if tags.get(_PHOTOMETRIC) == 0:
        grey = 255 - grey  # white is zero, which Pillow heeds for 8 bits only
    if isinstance(clear := image.info.get("transparency"), int):
        grey = np.where(values == clear, np.uint8(255), grey)
    return np.repeat(grey[:, :, None], 3, axis=2)


def _colours_last(values: np.ndarray, first: bool) -> np.ndarray:
    """An array (H, W, C) of one that may be (C, H, W) or (H, W)."""
    if 0 in values.shape:
        raise ValueError(f"it has no pixels, its shape is {values.shape}.")
    if values.ndim == 2:
        return values[:, :, None]
    if values.ndim == 3:
        could_be_first, could_be_last = (values.shape[axis] in (1, 3, 4) for axis in (0, 2))
        if could_be_first and (first or not could_be_last):
            return values.transpose(1, 2, 0)
        if could_be_last:
            return values
    raise ValueError(
        f"its shape is {values.shape}. Expected one image: (H, W), (C, H, W) or (H, W, C) with 1, "
        "3 or 4 colours C."
    )


def _bytes(values: np.ndarray) -> np.ndarray:
    """The values as uint8."""
    if values.dtype == np.uint8:
        return values
    if values.dtype == np.bool_:
        return values * np.uint8(255)
    if values.dtype == np.uint16:
        return np.rint(values / 257).astype(np.uint8)
    if np.issubdtype(values.dtype, np.floating):
        return _unit_to_bytes(values)
    if not np.issubdtype(values.dtype, np.integer):
        raise ValueError(f"its values are of type {values.dtype}, not integers or floats.")
    if values.min() < 0 or values.max() > 255:
        raise ValueError(_out_of_range(values))
    return values.astype(np.uint8)


def _unit_to_bytes(values: np.ndarray) -> np.ndarray:
    """Floats from 0 to 1 as uint8."""
    if np.isnan(values).any():
        raise ValueError("some of its values are not a number (NaN).")
    if values.min() < -_OVERSHOOT or values.max() > 1 + _OVERSHOOT:
        raise ValueError(_out_of_range(values))
    return np.rint(values.clip(0, 1) * 255).astype(np.uint8)


def _out_of_range(values: np.ndarray) -> str:
    return (
        f"its values go from {values.min():.4g} to {values.max():.4g}. Images are expected before "
        "normalisation: floats in [0, 1] or integers in 0–255."
    )


def _composite(pixels: np.ndarray) -> np.ndarray:
    """Colours over white: of (H, W, 1), (H, W, 3) or (H, W, 4) the (H, W, 3)."""
    if pixels.shape[2] == 4:
        opaque = pixels[:, :, 3:].astype(np.uint32)
        mixed = pixels[:, :, :3] * opaque + 255 * (255 - opaque)
        return ((mixed + 127) // 255).astype(np.uint8)
    # A copy, so that the image does not change when its owner writes to the array.
    return np.array(np.broadcast_to(pixels, (*pixels.shape[:2], 3)), order="C")
