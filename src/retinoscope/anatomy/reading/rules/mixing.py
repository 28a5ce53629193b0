"""Rules for maps and products: what they mix (channels or positions), and with which weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from torch import fx

from retinoscope.anatomy.axes import (
    POSITIONS,
    Axes,
    Dimension,
    is_soft,
    position,
    rebase,
    roles_of,
    single,
    size_of,
    unknown,
)
from retinoscope.anatomy.graph.flow import operation
from retinoscope.anatomy.reading.einsum import parse_einsum
from retinoscope.anatomy.reading.facts import Fact
from retinoscope.anatomy.reading.reader import Given, Meaning, Reader, Rule, agree, as_list, resized


def _learned_map(mixed: Dimension, learned: bool) -> Fact:
    """The kind of map that a contraction with a constant is, by the axis it mixes."""
    roles = roles_of(mixed)
    if roles & POSITIONS:
        return (Fact.CONV if "c" in roles else Fact.TOKEN_MIXING) if learned else Fact.POOL
    return Fact.LINEAR


def _linear(reader: Reader, node: fx.Node, given: Given) -> Meaning:
    source = given.get("input")
    if source not in reader.meaning:  # weights computed from the image, as in dynamic convolution
        reader.facts[node].add(Fact.LINEAR)
        return Meaning(tuple(unknown(size) for size in reader.flow.shape(node)))
    axes = reader.axes(source)
    fact = _learned_map(axes[-1], learned=True)
    reader.facts[node].add(fact)
    size = reader.flow.shape(node)[-1]
    # Positions mixed by a matrix count as positions again only once they are added to positions.
    mapped = unknown(size) if fact is Fact.TOKEN_MIXING else single("c", size)
    return Meaning(rebase((*axes[:-1], mapped)))


def _convolution(reader: Reader, node: fx.Node, given: Given) -> Meaning:
    source, weight = given["input"], given["weight"]
    axes = reader.axes(source)
    kernel = reader.flow.shape(weight)[2:]
    sizes = reader.flow.shape(node)[2:]
    spatial = axes[2:]
    if len(axes) != len(kernel) + 2:  # a single image without a batch dimension
        reader.facts[node].add(Fact.CONV)
        return Meaning(tuple(unknown(size) for size in reader.flow.shape(node)))
    learned = weight in reader.flow.learned or weight in reader.flow.dependent
    if all(k == 1 for k in kernel):
        fact = _learned_map(axes[1], learned)
    elif roles_of(f for d in spatial for f in d) == {"c"}:
        fact = Fact.LINEAR  # a kernel that slides along channels (ECA)
    else:
        fact = Fact.CONV if learned else Fact.POOL
    reader.facts[node].add(fact)
    mapped = unknown if fact is Fact.TOKEN_MIXING else lambda size: single("c", size)
    places = _slid(spatial, sizes, kernel, _all_zero(given.get("padding")))
    return Meaning(rebase((axes[0], mapped(reader.flow.shape(node)[1]), *places)))


def _slid(
    spatial: Axes, sizes: Sequence[int], kernel: Sequence[int], bare: bool
) -> tuple[Dimension, ...]:
    """The positions that remain after a sliding kernel; none if it covers the whole map."""
    before = [size_of(d) for d in spatial]
    if bare and list(kernel) == before and max(before, default=1) > 1:
        return ((),) * len(sizes)
    if len(spatial) == 2 and max(kernel) > 1 and all(roles_of(d) <= {"?"} for d in spatial):
        # Rows and columns by definition of a convolution.
        spatial = (position("y", before[0]), position("x", before[1]))
    return tuple(map(resized, spatial, sizes))


def _pool(reader: Reader, node: fx.Node, given: Given) -> Meaning | list[Meaning]:
    axes = reader.axes(reader.flow.inputs(node)[0])
    shape = reader.flow.shape(node) or reader.flow.shape(next(iter(node.users)))
    rank = len(as_list(given.get("output_size") or given.get("kernel_size"))) or 2
    rank = 1 if operation(node).endswith("1d") else max(rank, 2)
    sizes, spatial = shape[-rank:], axes[-rank:]
    if max(sizes) == 1 and "adaptive" in operation(node):
        reader.facts[node].add(Fact.REDUCE)
        return Meaning((*axes[:-rank], *((),) * rank))
    reader.facts[node].add(Fact.POOL)
    return Meaning((*axes[:-rank], *map(resized, spatial, sizes)))


def _resample(reader: Reader, node: fx.Node, given: Given) -> Meaning:
    axes, shape = reader.axes(reader.flow.inputs(node)[0]), reader.flow.shape(node)
    reader.facts[node].add(Fact.RESAMPLE)
    return Meaning((*axes[:2], *map(resized, axes[2:], shape[2:])))


def _matmul(reader: Reader, node: fx.Node, given: Given) -> Meaning:
    left, right = [n for n in node.args if isinstance(n, fx.Node)][-2:]
    a, b = reader.axes(left), reader.axes(right)
    mixed_a, mixed_b = a[-1], b[max(len(b) - 2, 0)]
    _multiplied(reader, node, left, right, mixed_a, mixed_b)
    shape = reader.flow.shape(node)
    tail = ([a[-2]] if len(a) > 1 else []) + ([b[-1]] if len(b) > 1 else [])
    lead = len(shape) - len(tail)
    batch = [
        agree([x[d - lead - 2] for x in (a, b) if len(x) - 2 >= lead - d], shape[d])
        for d in range(lead)
    ]
    product = _product_roles(reader, left, right, mixed_a, mixed_b)
    return Meaning((*batch, *tail), product)


def _einsum(reader: Reader, node: fx.Node, given: Given) -> Meaning:
    operands = cast(Sequence[fx.Node], given["tensors"])
    shape = reader.flow.shape(node)
    terms, out = parse_einsum(given["equation"], [len(reader.axes(n)) for n in operands])
    if len(operands) != 2:
        return reader.unknown(node)
    letters: dict[str, list[Dimension]] = {}
    for term, operand in zip(terms, operands, strict=True):
        for letter, dimension in zip(term, reader.axes(operand), strict=True):
            letters.setdefault(letter, []).append(dimension)
    summed = [x for x in letters if x not in out and len(letters[x]) == 2]
    mixed_a = tuple(f for x in summed for f in letters[x][0])
    mixed_b = tuple(f for x in summed for f in letters[x][1])
    _multiplied(reader, node, operands[0], operands[1], mixed_a, mixed_b)
    axes = tuple(agree(letters[x], s) for x, s in zip(out, shape, strict=True))
    product = _product_roles(reader, operands[0], operands[1], mixed_a, mixed_b)
    return Meaning(axes, product)


def _multiplied(
    reader: Reader, node: fx.Node, left: fx.Node, right: fx.Node, a: Dimension, b: Dimension
) -> None:
    """Record the facts of a contraction of ``left`` along ``a`` with ``right`` along ``b``."""
    made = [n in reader.meaning for n in (left, right)]
    roles = roles_of(a) | roles_of(b)
    soft = [is_soft(a), is_soft(b)]
    if any(soft) and not all(soft):  # if both are normalised, it is their similarity
        value = roles_of(a if soft[1] and not soft[0] else b) - {"?"} or roles
        weights = reader.meaning.get(left if soft[0] else right)
        from_positions = bool(weights and weights.product and weights.product & POSITIONS)
        similarity = weights is not None and weights.product is not None
        if value & POSITIONS or (similarity and value <= {"?"}):
            reader.facts[node].add(Fact.ATTENTION)
        elif from_positions and "c" in value:
            reader.facts[node].add(Fact.CHANNEL_ATTENTION)
        else:
            reader.facts[node].add(Fact.POINTWISE)  # a gate that weights branches
    elif all(made):
        earlier = [reader.meaning[n].product for n in (left, right)]
        chain = set().union(*(p for p in earlier if p)) if any(earlier) else None
        if chain is not None and (chain | roles) & POSITIONS:
            reader.facts[node].add(
                Fact.ATTENTION
            )  # kernelised: q (kᵀ v), or an unnormalised q kᵀ v
        else:
            reader.facts[node].add(Fact.NONLINEAR)
    else:
        data, constant = (a, right) if made[0] else (b, left)
        learned = constant in reader.flow.learned
        reader.facts[node].add(_learned_map(data, learned))


def _product_roles(
    reader: Reader, left: fx.Node, right: fx.Node, a: Dimension, b: Dimension
) -> frozenset[str] | None:
    both = left in reader.meaning and right in reader.meaning
    return frozenset(roles_of(a) | roles_of(b)) if both else None


def _scaled_dot_product_attention(reader: Reader, node: fx.Node, given: Given) -> Meaning:
    query, key, value = (reader.axes(given[name]) for name in ("query", "key", "value"))
    roles = roles_of(key[-2])
    channels = "c" in roles and not roles & POSITIONS
    reader.facts[node].add(Fact.CHANNEL_ATTENTION if channels else Fact.ATTENTION)
    return Meaning((*query[:-1], value[-1]))


def _all_zero(padding: Any) -> bool:
    return padding == "valid" or (not isinstance(padding, str) and not any(as_list(padding)))


_POOLS = (
    f"{kind}_pool{r}d" for kind in ("avg", "max", "adaptive_avg", "adaptive_max") for r in (1, 2)
)
_UPSAMPLINGS = ("nearest1d", "nearest2d", "linear1d", "bilinear2d", "bicubic2d")
RULES: dict[str, Rule] = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution"), _convolution),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d"), _convolution),
    **dict.fromkeys(("matmul", "bmm", "mm", "baddbmm", "mv"), _matmul),
    **dict.fromkeys((*_POOLS, "_adaptive_avg_pool2d", "max_pool2d_with_indices"), _pool),
    **dict.fromkeys((f"upsample_{how}" for how in _UPSAMPLINGS), _resample),
    **dict.fromkeys(("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"), _resample),
    **dict.fromkeys(("_upsample_nearest_exact1d", "_upsample_nearest_exact2d"), _resample),
    "linear": _linear,
    "einsum": _einsum,
    "scaled_dot_product_attention": _scaled_dot_product_attention,
}
