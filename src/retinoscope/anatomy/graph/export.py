"""Exports any model in eval mode as a functional ATen graph with a dynamic batch size.

The graph is what ``torch.export`` gives (training IR: ``conv2d``, ``linear`` and ``softmax`` stay
whole), with in-place operations replaced by their functional versions, so that stored states cannot
be overwritten later.
"""

from __future__ import annotations

import operator
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram

from retinoscope.anatomy.example import Example, as_batch
from retinoscope.anatomy.graph.answer import choose_logits
from retinoscope.anatomy.graph.functional import functional
from retinoscope.anatomy.graph.rest import at_rest, quiet, unlocated
from retinoscope.core.errors import (
    NotABackbone,
    NotExportable,
    RetinoscopeError,
    WrongInput,
    first_line,
)

_MANY = 2**31
"""Upper limit of the batch size; torch uses special numbers for infinity."""


@dataclass
class Graph:
    """A functional graph from ``image`` to ``logits``, and the live tensors that it reads."""

    graph: fx.Graph
    image: fx.Node
    logits: fx.Node
    constants: dict[fx.Node, Any]
    """Parameters, buffers and other constants, by their nodes."""
    most: int | None = None
    """The largest number of images for which the graph is valid; None if unlimited."""
    parameters: set[fx.Node] = field(default_factory=set)
    """The constants that are learned parameters."""
    paths: dict[fx.Node, tuple[str, ...]] = field(default_factory=dict)
    """Module paths around each operation, outermost first, without the root."""

    @property
    def batch(self) -> int | None:
        """The number of images that the graph is fixed to; None if any number is valid."""
        size = self.image.meta["val"].shape[0]
        if isinstance(size, int):
            return size
        return int(size.node.expr) if size.node.expr.is_number else None


def export(
    model: nn.Module,
    example: Example,
    output: str | None = None,
    images: int = 2,
    before: nn.Module | None = None,
) -> Graph:
    """The graph of ``model`` for images like ``example``; the model is not modified.

    Args:
        model: Any module that takes a batch of images as its first argument.
        example: A batch (N, C, H, W), or an image size.
        output: The entry of a dict or tuple output with the logits. Default: detected.
        images: Number of images for the export. With one, the graph would be valid for one only.
        before: Applied to the images first, such as normalisation; part of the graph.
    """
    image = as_batch(model, example, images)
    chooser = _Chooser(model, output, before)
    _try(model, chooser, image)
    with at_rest(model), quiet(), unlocated():
        try:
            program = torch.export.export(
                chooser, (image,), dynamic_shapes=({0: Dim.AUTO},), strict=False
            )
        except Exception as error:
            raise _not_exportable(model, error) from error
    return _graph(functional(program))


class _Chooser(nn.Module):
    """The model with its preprocessing before it and the choice of its logits after it."""

    def __init__(self, model: nn.Module, output: str | None, before: nn.Module | None) -> None:
        super().__init__()
        self.model = model
        self.output = output
        self.before = before
        self.training = False

    def forward(self, image: Tensor) -> Tensor:
        if self.before is not None:
            image = self.before(image)
        return choose_logits(self.model(image), self.output)


def _try(model: nn.Module, chooser: nn.Module, image: Tensor) -> None:
    """Run the model once, so that its own errors are found before torch.export.

    This also fills caches outside the model with real tensors, where export would otherwise leave
    its fake tensors.
    """
    with at_rest(model):
        try:
            chooser(image)
        except RetinoscopeError:
            raise
        except Exception as error:
            raise _refused(model, image, error) from error


def _refused(model: nn.Module, image: Tensor, error: Exception) -> RetinoscopeError:
    """Our own error for an image that the model itself does not accept."""
    name = type(model).__name__
    shape = "×".join(map(str, image.shape[1:]))
    text = f"{type(error).__name__}: {first_line(error)}"
    configuration = getattr(model, "pretrained_cfg", None)
    own = configuration.get("input_size") if isinstance(configuration, Mapping) else None
    if own and tuple(own[1:]) != tuple(image.shape[2:]):
        return WrongInput(
            f"{name} does not accept images of {shape}: {text} Its own size is "
            f"{'×'.join(map(str, own))}: use --size {own[-1]}, or build it for another size if "
            f"possible (MODEL:img_size={image.shape[-1]})."
        )
    if isinstance(error, TypeError) and "argument" in str(error):
        return NotABackbone(
            f"{name} cannot be called with only a batch of images: {text} Wrap it in a module "
            "whose forward takes one tensor (N, C, H, W)."
        )
    return WrongInput(
        f"{name} does not accept images of {shape}: {text} Try another size (--size), pass a "
        "batch of the expected shape, or check that it is an image network."
    )


def _not_exportable(model: nn.Module, error: Exception) -> NotExportable:
    frame = _own_frame(error)
    return NotExportable(
        f"{type(model).__name__} cannot be exported as a graph: torch.export stops at "
        f"`{frame.line}` ({frame.filename}:{frame.lineno}): {first_line(error)} Rewrite that line "
        "without control flow that depends on the values of the image (torch.where instead of if, "
        "a fixed shape instead of a computed one), or analyse only the part of the model that can "
        "be exported."
    )


def _own_frame(error: Exception) -> traceback.FrameSummary:
    """The deepest line of code outside torch and this file: the user's own."""
    library = str(Path(cast(str, torch.__file__)).parent)
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith((library, __file__))]
    return (own or frames)[-1]


def _graph(program: ExportedProgram) -> Graph:
    """The program's graph, with its constants."""
    signature = program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    constants: dict[fx.Node, Any] = {}
    image = None
    for node in program.graph.nodes:
        if node.op == "get_attr":
            constants[node] = operator.attrgetter(node.target)(program.graph_module)
        elif node.op == "placeholder" and node.name in signature.user_inputs:
            image = node
        elif node.op == "placeholder":
            name = names.get(node.name) or signature.inputs_to_lifted_tensor_constants[node.name]
            live = program.state_dict.get(name)
            constants[node] = program.constants[name] if live is None else live
    (returned,) = next(iter(reversed(program.graph.nodes))).args
    logits = cast(Sequence[Any], returned)[-1]
    if image is None or not isinstance(logits, fx.Node):
        raise NotABackbone(
            "The model's output does not depend on the image. Check that its forward uses its "
            "input."
        )
    learned = {node for node, value in constants.items() if isinstance(value, nn.Parameter)}
    paths = {node: _module_paths(node) for node in program.graph.nodes}
    most = [int(r.upper) for r in program.range_constraints.values() if r.upper < _MANY]
    return Graph(program.graph, image, logits, constants, min(most, default=None), learned, paths)


def _module_paths(node: fx.Node) -> tuple[str, ...]:
    stack = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    # "model" is the chooser's own attribute; a module called twice is marked with @1.
    return tuple(path.removeprefix("model.").split("@")[0] for path in stack if "." in path)
