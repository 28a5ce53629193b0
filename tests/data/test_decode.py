from __future__ import annotations

import io
import struct
import warnings
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from retinoscope.data.decode import decode, from_array
from retinoscope.data.source import UnreadableImage

RAMP = (np.arange(32, dtype=np.uint16) * 2114).reshape(4, 8)


def stored(image, form="PNG", **options):
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def colours(height=6, width=9, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, depth, colour, rows, extra=b""):
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + extra
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def grey_tiff(order, bits, values, sample_format=1, photometric=1):
    """A TIFF written by hand: Pillow writes neither 12 bits nor white as zero."""
    end = {"II": "<", "MM": ">"}[order]
    tags = [
        (256, 8), (257, 4), (258, bits), (259, 1), (262, photometric), (273, None),
        (277, 1), (278, 4), (279, len(values)), (339, sample_format),
    ]  # fmt: skip
    start = 8 + 2 + 12 * len(tags) + 4
    entries = [
        struct.pack(f"{end}HHII", tag, 4, 1, start if value is None else value)
        for tag, value in tags
    ]
    head = order.encode() + struct.pack(f"{end}HIH", 42, 8, len(tags))
    return head + b"".join(entries) + struct.pack(f"{end}I", 0) + values


def one_grey(pixels):
    assert pixels.dtype == np.uint8
    assert pixels.shape[2] == 3
    assert (pixels == pixels[:, :, :1]).all()
    return pixels[:, :, 0]


def test_colours_come_out_as_they_were_stored(tmp_path):
    content = stored(Image.fromarray(colours()))
    (tmp_path / "a.png").write_bytes(content)
    for given_as in (content, tmp_path / "a.png"):
        pixels = decode(given_as, "a")
        assert pixels.dtype == np.uint8
        assert pixels.flags["C_CONTIGUOUS"]
        assert np.array_equal(pixels, colours())


@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(form, orientation):
    """The corner that should be seen at the top left is red; each form stores EXIF elsewhere."""
    upright = np.full((16, 32, 3), 255, np.uint8)
    upright[:8, :8] = (200, 0, 0)
    undo = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.transpose(1, 0, 2),
        6: lambda a: np.rot90(a, 1),
        7: lambda a: np.rot90(a, 2).transpose(1, 0, 2),
        8: lambda a: np.rot90(a, -1),
    }
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = Image.fromarray(np.ascontiguousarray(undo[orientation](upright)))
    lossless = {"JPEG": {"quality": 100, "subsampling": 0}, "WEBP": {"lossless": True}}
    pixels = decode(stored(image, form, exif=exif, **lossless.get(form, {})), "a")
    assert pixels.shape == upright.shape
    assert np.abs(pixels.astype(int) - upright).max() < 8


def test_exif_that_cannot_be_read_leaves_the_image_as_it_is():
    content = stored(Image.fromarray(colours()), exif=b"Exif\0\0MM\0\x2a\xff\xff\xff\xff\x01\x12")
    assert np.array_equal(decode(content, "a"), colours())


def test_8_bit_grey_and_bilevel():
    grey = colours()[:, :, 0]
    assert np.array_equal(one_grey(decode(stored(Image.fromarray(grey)), "a")), grey)
    bilevel = Image.fromarray(grey > 127)
    assert bilevel.mode == "1"
    assert np.array_equal(one_grey(decode(stored(bilevel), "a")), (grey > 127) * 255)


def test_16_bit_grey_is_scaled_not_clipped():
    expected = np.rint(RAMP / 257)
    assert len(np.unique(expected)) == 32
    big_endian = Image.frombytes("I;16B", (8, 4), RAMP.astype(">u2").tobytes())
    for content in (
        stored(Image.fromarray(RAMP)),
        stored(Image.fromarray(RAMP), "TIFF"),
        stored(Image.fromarray(RAMP), "PPM"),
        stored(big_endian, "TIFF"),
        stored(Image.fromarray(RAMP.astype(np.int32)), "TIFF"),
        grey_tiff("MM", 16, RAMP.astype(">u2").tobytes()),
        grey_tiff("II", 16, (65535 - RAMP).tobytes(), photometric=0),
    ):
        assert np.array_equal(one_grey(decode(content, "a")), expected)


def test_12_bit_grey_uses_its_own_range():
    pair = bytes([0xFF, 0xF0, 0x00])  # 4095, then 0
    grey = one_grey(decode(grey_tiff("II", 12, pair * 16), "a"))
    assert grey[0].tolist() == [255, 0] * 4


def test_16_bit_grey_with_a_transparent_value_is_white_there():
    clear = chunk(b"tRNS", struct.pack(">H", int(RAMP[0, 3])))
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in RAMP)
    grey = one_grey(decode(png(8, 4, 16, 0, rows, clear), "a"))
    assert grey[0, 3] == 255
    assert grey[0, 4] == np.rint(RAMP[0, 4] / 257)


def test_16_bit_colours_keep_the_upper_byte():
    rows = b"\0" + struct.pack(">6H", 0x1280, 0x3480, 0x5680, 0xFFFF, 0, 0x100)
    assert decode(png(2, 1, 16, 2, rows), "a").tolist() == [[[0x12, 0x34, 0x56], [255, 0, 1]]]


def test_float_grey():
    unit = np.linspace(0, 1, 32, dtype=np.float32).reshape(4, 8)
    grey = one_grey(decode(stored(Image.fromarray(unit), "TIFF"), "a"))
    assert np.array_equal(grey, np.rint(unit * 255))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (RAMP.astype(np.int32) + 70000, "go from 70000 to 135534, and 0 to 65535 can be shown"),
        (RAMP.astype(np.int32) - 1, "go from -1 to"),
        (RAMP.astype(np.float32), r"expected before normalisation: floats in \[0, 1\]"),
        (np.full((4, 8), np.nan, np.float32), "not a number"),
    ],
)
def test_deep_grey_of_unknown_range_is_refused(values, reason):
    with pytest.raises(UnreadableImage, match=rf"scan\.tif cannot be read as an image: .*{reason}"):
        decode(stored(Image.fromarray(values), "TIFF"), "scan.tif")


def test_palettes():
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putdata([0, 1])
    assert decode(stored(image), "a").tolist() == [[[10, 20, 30], [40, 50, 60]]]
    clear = decode(stored(image, transparency=1), "a")
    assert clear.tolist() == [[[10, 20, 30], [255, 255, 255]]]
    partly = decode(stored(image, transparency=b"\xff\x00"), "a")
    assert partly.tolist() == clear.tolist()


def test_transparency_is_laid_over_white():
    half = decode(stored(Image.new("RGBA", (1, 1), (0, 100, 200, 128))), "a")
    assert half.tolist() == [[[127, 177, 227]]]
    gone = decode(stored(Image.new("LA", (1, 1), (0, 0))), "a")
    assert gone.tolist() == [[[255, 255, 255]]]
    key = stored(Image.new("RGB", (1, 1), (1, 2, 3)), transparency=(1, 2, 3))
    assert decode(key, "a").tolist() == [[[255, 255, 255]]]
    assert from_array(Image.new("La", (1, 1), (0, 0)), "a").tolist() == [[[255, 255, 255]]]


def test_cmyk():
    """Red is no cyan, all magenta and yellow; Pillow stores it inverted in JPEG, as Adobe does."""
    red = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    for content in (stored(red, "JPEG", quality=100), stored(red, "TIFF")):
        assert np.abs(decode(content, "a").astype(int) - (255, 0, 0)).max() < 4


def test_ycck():
    """A CMYK file whose first three channels are declared to be luma and chroma.

    Inks are stored inverted, so the bytes are luma, blue and red; read back, the inks are the
    colour that these stand for, and what is seen is the negative of it.
    """
    luma, blue, red = 120, 90, 200
    plain = Image.new("CMYK", (16, 16), (255 - luma, 255 - blue, 255 - red, 0))
    content = stored(plain, "JPEG", quality=100, subsampling=0)
    marker = content.index(b"Adobe")
    assert content[marker + 11] == 0
    declared = content[: marker + 11] + b"\x02" + content[marker + 12 :]
    seen = Image.new("YCbCr", (1, 1), (luma, blue, red)).convert("RGB").getpixel((0, 0))
    assert np.abs(decode(declared, "a")[5, 5].astype(int) + seen - 255).max() < 4


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG", "TIFF"])
def test_the_first_frame_of_an_animation(form):
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "lime", "blue")]
    extra = {"lossless": True} if form == "WEBP" else {}
    content = stored(frames[0], form, save_all=True, append_images=frames[1:], **extra)
    assert decode(content, "a")[3, 3].tolist() == [255, 0, 0]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty, 0 bytes long"),
        (b"no image, only text", "of no format that is known"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "of no format that is known"),
        (png(0, 3, 8, 2, b""), "damaged at its beginning"),
        (png(20000, 20000, 8, 2, b""), "limit"),
        (png(10000, 10000, 8, 2, b""), "10000 × 10000 pixels exceed the limit of 89478485"),
        (stored(Image.fromarray(colours(99, 99)), "JPEG")[:-900], "truncated"),
    ],
)
@pytest.mark.parametrize("strictness", ["default", "error"])
def test_what_is_no_image_is_named_with_the_reason(content, reason, strictness):
    with warnings.catch_warnings():
        warnings.simplefilter(strictness)
        with pytest.raises(UnreadableImage) as caught:
            decode(content, "cat/7.jpg")
    message = str(caught.value)
    assert message.startswith("cat/7.jpg cannot be read as an image: ")
    assert reason in message
    assert "\n" not in message
    assert "0x" not in message


def test_a_file_that_is_gone(tmp_path):
    with pytest.raises(UnreadableImage, match="No such file"):
        decode(tmp_path / "gone.png", "gone.png")


def image_or_refusal(content):
    try:
        pixels = decode(content, "a")
    except UnreadableImage:
        return
    assert pixels.dtype == np.uint8
    assert pixels.ndim == 3
    assert pixels.shape[2] == 3


HEADS = [
    b"",
    b"\x89PNG\r\n\x1a\n",
    b"\xff\xd8\xff\xe0",
    b"GIF89a",
    b"BM",
    b"II*\0",
    b"MM\0*",
    b"P6 ",
]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(HEADS), st.binary(max_size=300))
def test_random_bytes_are_an_image_or_refused(head, tail):
    image_or_refusal(head + tail)


FORMS = ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"]


@pytest.mark.parametrize("form", FORMS)
def test_truncated_files_are_an_image_or_refused(form):
    content = stored(Image.fromarray(colours(24, 24)), form)
    for length in range(0, len(content), 47):
        image_or_refusal(content[:length])


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(FORMS), st.data())
def test_damaged_files_are_an_image_or_refused(form, data):
    content = bytearray(stored(Image.fromarray(colours(9, 9)), form))
    for _ in range(4):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    image_or_refusal(bytes(content))


@pytest.mark.parametrize(
    "form",
    [
        lambda a: a,
        lambda a: a.transpose(2, 0, 1),
        lambda a: Image.fromarray(a),
        lambda a: a.astype(np.int64),
        lambda a: a.astype(np.uint16) * 257,
        lambda a: a / 255,
        lambda a: (a / 255).astype(np.float16).transpose(2, 0, 1),
        lambda a: torch.from_numpy(a),
        lambda a: torch.from_numpy(a).permute(2, 0, 1),
        lambda a: torch.from_numpy(a).permute(2, 0, 1) / 255,
        lambda a: (torch.from_numpy(a) / 255).requires_grad_(),
        lambda a: np.concatenate([a, np.full_like(a[:, :, :1], 255)], axis=2),
    ],
)
def test_forms_in_which_a_dataset_yields_colours(form):
    pixels = from_array(form(colours()), "item 3")
    assert pixels.dtype == np.uint8
    assert pixels.flags["C_CONTIGUOUS"]
    assert np.array_equal(pixels, colours())


@pytest.mark.parametrize(
    "form",
    [
        lambda a: a,
        lambda a: a[None],
        lambda a: a[:, :, None],
        lambda a: torch.from_numpy(a)[None] / 255,
        lambda a: Image.fromarray(a),
    ],
)
def test_forms_in_which_a_dataset_yields_grey(form):
    grey = colours()[:, :, 0]
    assert np.array_equal(one_grey(from_array(form(grey), "item 3")), grey)


def test_bilevel_arrays_and_bfloat16():
    assert one_grey(from_array(np.eye(5, dtype=bool), "a")).max() == 255
    half = torch.full((3, 4, 5), 0.5, dtype=torch.bfloat16)
    assert from_array(half, "a")[0, 0, 0] == 128


def test_where_colours_could_be_first_or_last():
    values = np.zeros((3, 8, 3), np.uint8)
    assert from_array(values, "a").shape == (3, 8, 3)
    assert from_array(torch.from_numpy(values), "a").shape == (8, 3, 3)


def test_the_image_does_not_change_with_the_array_it_came_from():
    values = colours()
    pixels = from_array(values, "a")
    values[:] = 0
    assert np.array_equal(pixels, colours())


def test_a_little_overshoot_is_clipped():
    values = np.linspace(-0.001, 1.001, 20).reshape(4, 5)
    assert from_array(values, "a")[0, 0, 0] == 0
    assert from_array(values, "a")[-1, -1, 0] == 255


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (torch.randn(3, 8, 8), r"before normalisation: floats in \[0, 1\] or integers in 0–255"),
        (np.full((8, 8, 3), 200.0), "go from 200 to 200"),
        (np.full((8, 8, 3), 300), "go from 300 to 300"),
        (np.full((8, 8, 3), np.nan), "not a number"),
        (np.full((8, 8, 3), np.inf), "go from inf to inf"),
        (np.zeros((8, 8, 2), np.uint8), r"its shape is \(8, 8, 2\)"),
        (np.zeros((1, 3, 8, 8), np.uint8), r"its shape is \(1, 3, 8, 8\)"),
        (np.zeros((0, 8, 3), np.uint8), "has no pixels"),
        (np.zeros((8, 8, 3), complex), "type complex128"),
        ("cat.png", "of type str"),
        (None, "of type NoneType"),
    ],
)
def test_what_a_dataset_may_not_yield(image, reason):
    with pytest.raises(UnreadableImage, match=f"item 3 cannot be read as an image: .*{reason}"):
        from_array(image, "item 3")
