"""A hash of what a network computes: the same weights in different code are another network."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg

from retinoscope.anatomy.graph.export import Graph

_ADDRESS = re.compile(r"0x[0-9a-f]+")


def graph_hash(graph: Graph) -> str:
    """A hash of all operations with their arguments, and of constants that are not parameters.

    Only the shapes of parameters and buffers are included; their values change in training.
    """
    digest = hashlib.sha256()
    places = {node: index for index, node in enumerate(graph.graph.nodes)}
    for node in graph.graph.nodes:
        arguments = map_arg((node.args, node.kwargs), lambda n: f"%{places[n]}")
        written = f"{node.op} {node.target if node.op == 'call_function' else ''} {arguments}"
        digest.update(_ADDRESS.sub("", written).encode())
        if node in graph.constants:
            digest.update(_described(graph.constants[node], node in graph.parameters))
    return digest.hexdigest()


def _described(constant: Any, learned: bool) -> bytes:
    if isinstance(constant, fx.GraphModule):
        return constant.code.encode()
    if not isinstance(constant, Tensor):
        return _ADDRESS.sub("", repr(constant)).encode()
    shape = f"{tuple(constant.shape)} {constant.dtype}".encode()
    if learned or not constant.numel():
        return shape
    held = constant.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return shape + held.tobytes()
