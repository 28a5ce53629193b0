"""Rules for pointwise operations, norms and reductions, which mix nothing or only average."""

from __future__ import annotations

from dataclasses import replace

from torch import fx

from retinoscope.anatomy.axes import POSITIONS, Axes, cut, is_soft, roles_of, size_of, soften
from retinoscope.anatomy.graph.flow import arguments, operation
from retinoscope.anatomy.reading.facts import WORK, Fact
from retinoscope.anatomy.reading.reader import Given, Meaning, Reader, Rule, as_list

_NONLINEAR = {
    "relu", "relu6", "gelu", "silu", "mish", "sigmoid", "hardsigmoid", "hardswish", "hardtanh",
    "tanh", "elu", "selu", "celu", "leaky_relu", "prelu", "softplus", "softsign", "log_sigmoid",
    "exp", "exp2", "log", "log1p", "erf", "sqrt", "rsqrt", "square", "pow", "reciprocal", "abs",
    "sin", "cos", "clamp", "clamp_min", "clamp_max", "threshold", "hardshrink", "softshrink",
    "maximum", "minimum", "where", "gelu_backward", "rrelu",
}  # fmt: skip
_NORMS = {
    "layer_norm", "batch_norm", "group_norm", "rms_norm", "instance_norm", "native_layer_norm",
    "native_group_norm", "_native_batch_norm_legit_no_training", "local_response_norm",
    "_native_batch_norm_legit", "native_batch_norm", "_fused_rms_norm", "linalg_vector_norm",
}  # fmt: skip
_POINTWISE = {
    "add", "sub", "rsub", "mul", "div", "neg", "addcmul", "addcdiv", "lerp", "floor_divide",
    "true_divide", "eq", "ne", "lt", "gt", "le", "ge", "logical_not", "logical_and", "sign",
    "masked_fill", "divide", "multiply", "subtract", "bitwise_not", "nan_to_num", "floor",
    "ceil", "round", "copy", "dropout", "feature_dropout", "alpha_dropout", "native_dropout",
    "bernoulli",
}  # fmt: skip
_REDUCTIONS = {
    "mean",
    "sum",
    "amax",
    "amin",
    "max",
    "min",
    "prod",
    "var",
    "std",
    "var_mean",
    "logsumexp",
}


def _pointwise(reader: Reader, node: fx.Node, given: Given) -> Meaning:
    operands = reader.flow.data_inputs(node)
    made = reader.flow.inputs(node)
    name = operation(node)
    product = name in {"mul", "div", "addcmul", "multiply"} and len(made) > 1
    reader.facts[node].add(Fact.POINTWISE)
    if name not in _POINTWISE or product:
        reader.facts[node].add(Fact.NONLINEAR)
    axes = reader.broadcast(node, operands)
    if name in {"div", "true_divide", "divide"} and len(made) > 1:
        axes = _normalised(reader, node, axes)
    return Meaning(axes)


def _normalised(reader: Reader, node: fx.Node, axes: Axes) -> Axes:
    """A tensor divided by its own sum or norm along a dimension counts as a softmax."""
    dividend, divisor = node.args[0], node.args[1]
    while isinstance(divisor, fx.Node) and operation(divisor) not in {
        "sum",
        "linalg_vector_norm",
    }:
        made = reader.flow.inputs(divisor)
        if len(made) != 1 or reader.facts[divisor] & WORK:
            return axes
        (divisor,) = made
    if not isinstance(divisor, fx.Node) or divisor.args[0] is not dividend:
        return axes
    summed = {d % len(axes) for d in as_list(arguments(divisor).get("dim"))}
    return tuple(soften(a) if d in summed else a for d, a in enumerate(axes))


def _norm(reader: Reader, node: fx.Node, given: Given) -> Meaning | list[Meaning]:
    reader.facts[node].add(Fact.NORM)
    source = reader.flow.inputs(node)[0]
    hard = tuple(tuple(replace(f, soft=False) for f in d) for d in reader.axes(source))
    if operation(node) == "linalg_vector_norm":
        return _reduce(reader, node, given)
    return Meaning(hard)


def _softmax(reader: Reader, node: fx.Node, given: Given) -> Meaning:
    reader.facts[node].add(Fact.NONLINEAR)
    axes = reader.axes(reader.flow.inputs(node)[0])
    dim = given["dim"] % len(axes)
    return Meaning(tuple(soften(a) if d == dim else a for d, a in enumerate(axes)))


def _glu(reader: Reader, node: fx.Node, given: Given) -> Meaning:
    reader.facts[node].add(Fact.NONLINEAR)
    axes = reader.axes(given["self"])
    dim = given["dim"] % len(axes)
    half = size_of(axes[dim]) // 2
    return Meaning((*axes[:dim], cut(axes[dim], 0, half), *axes[dim + 1 :]))


def _reduce(reader: Reader, node: fx.Node, given: Given) -> Meaning | list[Meaning]:
    axes = reader.axes(reader.flow.inputs(node)[0])
    dims = {d % len(axes) for d in as_list(given.get("dim"))} or set(range(len(axes)))
    reader.facts[node].add(Fact.REDUCE)
    if len(reader.flow.inputs(node)) > 1:  # maximum of two tensors
        return _pointwise(reader, node, given)
    weighed = [axes[d] for d in dims if is_soft(axes[d]) and roles_of(axes[d]) & POSITIONS]
    if operation(node) == "sum" and weighed:
        reader.facts[node].add(Fact.ATTENTION)  # weights times values, summed over positions
    keep = bool(given.get("keepdim"))
    left = tuple(() if d in dims else a for d, a in enumerate(axes) if keep or d not in dims)
    return Meaning(left)


RULES: dict[str, Rule] = {
    **dict.fromkeys(_NONLINEAR | _POINTWISE, _pointwise),
    **dict.fromkeys(_NORMS, _norm),
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **dict.fromkeys(("softmax", "_softmax", "log_softmax"), _softmax),
    "glu": _glu,
}
