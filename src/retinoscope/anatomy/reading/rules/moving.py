"""Rules for layout operations: where each axis goes when entries are moved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from torch import fx

from retinoscope.anatomy.axes import (
    Axes,
    Dimension,
    Factor,
    concatenate,
    cut,
    finest_step,
    position,
    reshape,
    roles_of,
    single,
    size_of,
    unknown,
)
from retinoscope.anatomy.graph.flow import operation
from retinoscope.anatomy.reading.facts import Fact
from retinoscope.anatomy.reading.reader import Given, Meaning, Reader, Rule, agree, as_list, resized

_SAME = {
    "contiguous", "clone", "to", "_to_copy", "detach", "alias", "roll", "flip", "lift_fresh_copy",
    "slice_scatter", "select_scatter", "index_put", "float", "type_as", "identity",
}  # fmt: skip
_VIEWS = {"view", "reshape", "_unsafe_view", "flatten", "unflatten", "reshape_as", "view_as"}


def _moved(reader: Reader, node: fx.Node, axes: Sequence[Dimension]) -> Meaning:
    reader.facts[node].add(Fact.LAYOUT)
    return Meaning(tuple(axes))


def _same(reader: Reader, node: fx.Node, given: Given) -> Meaning:
    return _moved(reader, node, reader.axes(reader.flow.inputs(node)[0]))


def _view(reader: Reader, node: fx.Node, given: Given) -> Meaning:
    return _moved(
        reader, node, reshape(reader.axes(reader.flow.inputs(node)[0]), reader.flow.shape(node))
    )


def _permute(reader: Reader, node: fx.Node, given: Given) -> Meaning:
    axes = reader.axes(given["self"])
    return _moved(reader, node, [axes[d] for d in given["dims"]])


def _transpose(reader: Reader, node: fx.Node, given: Given) -> Meaning:
    axes = list(reader.axes(given["self"]))
    # The names differ between its aliases; those without numbers transpose the last two.
    a, b = cast(tuple[int, int], node.args[1:3] or (-2, -1))
    axes[a], axes[b] = axes[b], axes[a]
    return _moved(reader, node, axes)


def _movedim(reader: Reader, node: fx.Node, given: Given) -> Meaning:
    axes = reader.axes(given["self"])
    source = [d % len(axes) for d in as_list(given["source"])]
    goal = [d % len(axes) for d in as_list(given["destination"])]
    rest = iter(d for d in range(len(axes)) if d not in source)
    placed = dict(zip(goal, source, strict=True))
    order = [placed[d] if d in placed else next(rest) for d in range(len(axes))]
    return _moved(reader, node, [axes[d] for d in order])


def _unsqueeze(reader: Reader, node: fx.Node, given: Given) -> Meaning:
    axes = list(reader.axes(given["self"]))
    axes.insert(given["dim"] % (len(axes) + 1), ())
    return _moved(reader, node, axes)


def _squeeze(reader: Reader, node: fx.Node, given: Given) -> Meaning:
    axes = reader.axes(given["self"])
    dims = {d % len(axes) for d in as_list(given.get("dim"))} or set(range(len(axes)))
    kept = [a for d, a in enumerate(axes) if d not in dims or size_of(a) != 1]
    return _moved(reader, node, kept)


def _expand(reader: Reader, node: fx.Node, given: Given) -> Meaning:
    axes, shape = reader.axes(reader.flow.inputs(node)[0]), reader.flow.shape(node)
    axes = ((),) * (len(shape) - len(axes)) + axes
    pairs = zip(axes, shape, strict=True)
    return _moved(reader, node, [a if size_of(a) == s else unknown(s) for a, s in pairs])


def _slice(reader: Reader, node: fx.Node, given: Given) -> Meaning:
    axes = list(reader.axes(given["self"]))
    dim, step = given["dim"] % len(axes), given["step"]
    total = size_of(axes[dim])
    size, start = reader.flow.shape(node)[dim], _bounded(given["start"], total)
    axes[dim] = cut(axes[dim], start, start + size * step, step)
    return _moved(reader, node, axes)


def _select(reader: Reader, node: fx.Node, given: Given) -> Meaning:
    axes = list(reader.axes(given["self"]))
    axes.pop(given["dim"])
    return _moved(reader, node, axes)


def _narrow(reader: Reader, node: fx.Node, given: Given) -> Meaning:
    return _slice(reader, node, {"step": 1, **given})


def _split(reader: Reader, node: fx.Node, given: Given) -> list[Meaning]:
    axes = reader.axes(reader.flow.inputs(node)[0])
    dim = (given.get("dim") or 0) % len(axes)
    reader.facts[node].add(Fact.LAYOUT)
    found, start = [], 0
    for entry in cast(Sequence[Any], node.meta["val"]):
        stop = start + int(entry.shape[dim])
        found.append(Meaning((*axes[:dim], cut(axes[dim], start, stop), *axes[dim + 1 :])))
        start = stop
    return found


def _unbind(reader: Reader, node: fx.Node, given: Given) -> list[Meaning]:
    axes = list(reader.axes(given["self"]))
    axes.pop(given["dim"])
    reader.facts[node].add(Fact.LAYOUT)
    return [Meaning(tuple(axes))] * len(node.meta["val"])


def _cat(reader: Reader, node: fx.Node, given: Given) -> Meaning:
    pieces = [reader.axes(n) for n in given["tensors"]]
    rank = len(reader.flow.shape(node))
    pieces = [p for p in pieces if len(p) == rank]
    dim = given["dim"] % rank
    axes = _broadcast_pieces(pieces, reader.flow.shape(node))
    axes[dim] = concatenate([p[dim] for p in pieces])
    block = [Factor(role, step) for role in "yx" if (step := finest_step(axes, role)) > 1]
    if roles_of(axes[dim]) == {"c"} and block and size_of(tuple(block)) == len(pieces):
        # Every second row and column, concatenated: the blocks are now part of the channels.
        axes[dim] = (*single("c", size_of(axes[dim]) // len(pieces)), *block)
    return _moved(reader, node, axes)


def _broadcast_pieces(pieces: Sequence[Axes], shape: Sequence[int]) -> list[Dimension]:
    return [agree([p[d] for p in pieces], size) for d, size in enumerate(shape)]


def _stack(reader: Reader, node: fx.Node, given: Given) -> Meaning:
    shape = reader.flow.shape(node)
    dim = given["dim"] % len(shape)
    pieces = [reader.axes(n) for n in given["tensors"]]
    axes = _broadcast_pieces(pieces, [s for d, s in enumerate(shape) if d != dim])
    axes.insert(dim, single("b", shape[dim]))
    return _moved(reader, node, axes)


def _pad(reader: Reader, node: fx.Node, given: Given) -> Meaning:
    axes, shape = reader.axes(reader.flow.inputs(node)[0]), reader.flow.shape(node)
    reader.facts[node].add(Fact.PAD)
    return _moved(reader, node, list(map(resized, axes, shape)))


def _shuffle(reader: Reader, node: fx.Node, given: Given) -> Meaning:
    *lead, c, _, _ = reader.axes(given["self"])
    shape = reader.flow.shape(node)
    if operation(node) == "pixel_unshuffle":
        r = given["downscale_factor"]
        block = (*c, Factor("y", r), Factor("x", r))
        return _moved(
            reader, node, [*lead, block, position("y", shape[-2]), position("x", shape[-1])]
        )
    channels = single("c", shape[-3])
    return _moved(
        reader, node, [*lead, channels, position("y", shape[-2]), position("x", shape[-1])]
    )


def _unfold(reader: Reader, node: fx.Node, given: Given) -> Meaning:
    """``Tensor.unfold``: windows along one dimension, which may overlap."""
    axes = list(reader.axes(given["self"]))
    dim = given["dimension"] % len(axes)
    window, step, size = given["size"], given["step"], reader.flow.shape(node)[dim]
    roles = roles_of(axes[dim])
    role = next(iter(roles)) if len(roles) == 1 else "?"
    apart = window == step and size * window == size_of(axes[dim])
    axes[dim] = (Factor(role, size, window if apart else 1),)
    return _moved(reader, node, [*axes, (Factor(role, window, 1 if apart else 0),)])


def _im2col(reader: Reader, node: fx.Node, given: Given) -> Meaning:
    n, c, y, x = reader.axes(given["self"])
    height, width = size_of(y), size_of(x)
    kernel, stride = _pair(given["kernel_size"]), _pair(given["stride"])
    padding, dilation = _pair(given["padding"]), _pair(given["dilation"])
    rows, columns = (
        (size + 2 * p - d * (k - 1) - 1) // s + 1
        for size, k, s, p, d in zip((height, width), kernel, stride, padding, dilation, strict=True)
    )
    apart = (
        kernel == stride
        and dilation == (1, 1)
        and (rows, columns)
        == (
            height / kernel[0],
            width / kernel[1],
        )
    )  # patches in one dimension: rows and columns are split, not repeated
    around = (Factor("y", kernel[0], int(apart)), Factor("x", kernel[1], int(apart)))
    steps = kernel if apart else (1, 1)
    places = (Factor("y", rows, steps[0]), Factor("x", columns, steps[1]))
    return _moved(reader, node, [n, (*c, *around), places])


def _fold(reader: Reader, node: fx.Node, given: Given) -> Meaning:
    shape = reader.flow.shape(node)
    n = reader.axes(reader.flow.inputs(node)[0])[0]
    return _moved(
        reader, node, [n, single("c", shape[1]), position("y", shape[2]), position("x", shape[3])]
    )


def _index(reader: Reader, node: fx.Node, given: Given) -> Meaning:
    """Entries selected by a list: the positions along that dimension are no longer known."""
    axes, shape = list(reader.axes(given["self"])), reader.flow.shape(node)
    if "indices" in given:
        picked = [d for d, index in enumerate(given["indices"]) if index is not None]
    else:
        picked = as_list(given.get("dim"))
    if len(axes) != len(shape) or len(picked) != 1 or given["self"] not in reader.meaning:
        return _moved(reader, node, [unknown(size) for size in shape])
    axes[picked[0]] = unknown(shape[picked[0]])
    return _moved(reader, node, axes)


def _pair(value: Any) -> tuple[int, int]:
    listed = as_list(value)
    return (listed[0], listed[-1])


def _bounded(start: Any, total: int) -> int:
    start = start if isinstance(start, int) else 0
    return min(total, max(0, start + total if start < 0 else start))


RULES: dict[str, Rule] = {
    **dict.fromkeys(_SAME, _same),
    **dict.fromkeys(_VIEWS, _view),
    **dict.fromkeys(("split", "split_with_sizes", "chunk", "tensor_split"), _split),
    **dict.fromkeys(("expand", "expand_as", "repeat", "broadcast_to"), _expand),
    **dict.fromkeys(("transpose", "t", "swapaxes", "swapdims", "mT", "mH", "adjoint"), _transpose),
    **dict.fromkeys(("cat", "concat", "concatenate"), _cat),
    **dict.fromkeys(("pad", "constant_pad_nd"), _pad),
    **dict.fromkeys(("pixel_shuffle", "pixel_unshuffle"), _shuffle),
    **dict.fromkeys(("index_select", "index", "gather", "repeat_interleave"), _index),
    "permute": _permute,
    "movedim": _movedim,
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
    "slice": _slice,
    "select": _select,
    "narrow": _narrow,
    "unbind": _unbind,
    "stack": _stack,
    "unfold": _unfold,
    "im2col": _im2col,
    "col2im": _fold,
}
