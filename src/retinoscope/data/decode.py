"""Decode stored bytes, and items of a user's Dataset, into RGB pixels."""

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

# Pillow reads more formats, but for some it runs other programs (Ghostscript) on the file.
_FORMATS = ("JPEG", "PNG", "BMP", "DIB", "GIF", "WEBP", "TIFF", "PPM", "JPEG2000")
_ORIENTATION, _BITS_PER_SAMPLE, _PHOTOMETRIC = 0x0112, 258, 262
# Resizing in floating point overshoots slightly; less than half a grey level is tolerated.
_OVERSHOOT = 0.5 / 255


def decode(content: bytes | Path, name: str) -> np.ndarray:
    """The decoded image of a file or of its bytes: RGB, uint8 (H, W, 3).

    The EXIF orientation is applied. Transparent pixels are composited over white. An animation
    gives its first frame. 16-bit greyscale is scaled by its full range, so 65535 becomes 255;
    32-bit integers are assumed to use the 16-bit range and floats the range from 0 to 1, and values
    beyond it are refused. Colour profiles are ignored, including those of CMYK images, and the CMYK
    of a JPEG is assumed to be stored inverted, as nearly all programs do.

    Args:
        content: The bytes of the file, or its path.
        name: Name of the image for messages.

    Raises:
        UnreadableImage: It is damaged, empty, not an image, or larger than Pillow's limit against
            decompression bombs (``PIL.Image.MAX_IMAGE_PIXELS``).
    """
    try:
        # Warnings of Pillow, such as those about damaged metadata, do not affect the pixels;
        # images large enough for a warning are refused below.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _decode(content)
    except UnidentifiedImageError:
        reason = "it is damaged at its beginning or of no format that is known."
    except Exception as error:
        # Damaged files make Pillow raise nearly anything: OSError, SyntaxError, struct.error, …
        reason = first_line(error)
    raise _unreadable(name, reason)


def decode_stored(value: Any, folder: Path, name: str) -> np.ndarray:
    """The image in a cell of a table, decoded by :func:`decode`.

    Args:
        value: Bytes, or a mapping with ``bytes`` or, without them, the ``path`` of a file.
        folder: The folder that paths are relative to.
        name: Name of the image for messages.
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
    """An image of a Dataset as RGB, uint8 (H, W, 3).

    Accepts PIL images, arrays and tensors, with channels first, channels last or no channels. If
    the layout is ambiguous, such as (3, 32, 3), tensors are read as channels first and arrays as
    channels last. uint16 values are scaled by their full range. The EXIF orientation of a PIL image
    is not applied: that is up to the Dataset.

    Args:
        image: The image, before normalisation.
        name: Name of the image for messages.

    Raises:
        UnreadableImage: It has another type or shape, or values out of range.
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
        return 1  # EXIF cannot be read, but the pixels can


def _turned(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """The pixels turned upright according to the EXIF orientation."""
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
        image = image.convert("LA")  # Pillow cannot convert premultiplied grey directly
    if image.has_transparency_data:
        return _composite(np.array(image.convert("RGBA")))
    # Pillow has no 16-bit colour: it keeps the upper byte of each channel.
    return np.array(image.convert("RGB"))


def _deep_grey(image: Image.Image) -> np.ndarray:
    """Greyscale of more than 8 bits as RGB; Pillow would clip it at 255 instead of scaling it."""
    values = np.asarray(image)
    tags = getattr(image, "tag_v2", {})
    if image.mode == "F":
        grey = _unit_to_bytes(values)
    else:
        # A 12-bit TIFF has the same mode as a 16-bit one.
        bits = tags.get(_BITS_PER_SAMPLE, (16,))[0]
        limit = 2**bits - 1 if bits < 16 else 65535
        if values.min() < 0 or values.max() > limit:
            raise ValueError(
                f"its values go from {values.min()} to {values.max()}, and 0 to {limit} can be "
                "shown. Store it with 8 or 16 bits."
            )
        grey = np.rint(values * (255 / limit)).astype(np.uint8)
    if tags.get(_PHOTOMETRIC) == 0:
        grey = 255 - grey  # zero is white, which Pillow handles for 8 bits only
    if isinstance(clear := image.info.get("transparency"), int):
        grey = np.where(values == clear, np.uint8(255), grey)
    return np.repeat(grey[:, :, None], 3, axis=2)


def _colours_last(values: np.ndarray, first: bool) -> np.ndarray:
    """The array as (H, W, C); it may be (C, H, W) or (H, W)."""
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
    """RGB (H, W, 3) from (H, W, 1), (H, W, 3), or (H, W, 4) composited over white."""
    if pixels.shape[2] == 4:
        opaque = pixels[:, :, 3:].astype(np.uint32)
        mixed = pixels[:, :, :3] * opaque + 255 * (255 - opaque)
        return ((mixed + 127) // 255).astype(np.uint8)
    # A copy, so that the image does not change when its owner writes to the array.
    return np.array(np.broadcast_to(pixels, (*pixels.shape[:2], 3)), order="C")
