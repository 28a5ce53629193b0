"""Any model in eval mode → its functional ATen graph, with a dynamic batch.

The graph is what ``torch.export`` gives (training IR: ``conv2d``, ``linear`` and ``softmax`` stay
whole), with in-place operations replaced by their functional twins, so that no state that was
kept can be overwritten later.
"""

from __future__ import annotations

import logging
import operator
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram

from retinoscope.anatomy.functional import functional
from retinoscope.core.errors import NotABackbone, NotExportable, WrongInput, WrongOutput, first_line

Example = Tensor | int | tuple[int, int]

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


@dataclass
class Graph:
    """A functional graph from ``image`` to ``logits``, and the live tensors it reads."""

    graph: fx.Graph
    image: fx.Node
    logits: fx.Node
    constants: dict[fx.Node, Any]
    """Parameters, buffers and other constants, by the node that stands for them."""
    parameters: set[fx.Node] = field(default_factory=set)
    """Those of the constants that are learned."""
    paths: dict[fx.Node, tuple[str, ...]] = field(default_factory=dict)
    """Module paths around each operation, outermost first, without the root."""

    @property
    def batch(self) -> int | None:
        """The number of images the graph is fixed to, or None where any number will do."""
        size = self.image.meta["val"].shape[0]
        return size if isinstance(size, int) else None


def export(model: nn.Module, example: Example, output: str | None = None) -> Graph:
    """The graph of ``model`` on images like ``example``; the model is left as it was.

    Args:
        model: Any module that takes a batch of images as its first argument.
        example: A batch (N, C, H, W), or an image size.
        output: Which entry of a dict or tuple output holds the logits; found if not given.
    """
    image = as_batch(model, example)
    chooser = _Chooser(model, output)
    with _at_rest(model), torch.no_grad(), _quiet():
        try:
            program = torch.export.export(
                chooser, (image,), dynamic_shapes=({0: Dim.AUTO},), strict=False
            )
        except (WrongOutput, NotABackbone):
            raise
        except Exception as error:
            raise _explain(model, image, error) from error
    return _graph(functional(program))


def as_batch(model: nn.Module, example: Example) -> Tensor:
    """Two images of the size, type and place that ``model`` works with."""
    floating = (p for p in [*model.parameters(), *model.buffers()] if p.is_floating_point())
    like = next(floating, torch.empty(0))
    if isinstance(example, Tensor):
        if example.ndim != 4:
            raise WrongInput(
                f"An example must be a batch of images (N, C, H, W) or an image size; "
                f"got a tensor of shape {tuple(example.shape)}."
            )
        return example[:1].expand(2, -1, -1, -1).clone()  # two: a batch of one would be baked in
    height, width = (example, example) if isinstance(example, int) else example
    if height < 1 or width < 1:
        raise WrongInput(f"An image of {height}×{width} pixels has no positions.")
    return torch.zeros(
        2, image_channels(model), height, width, dtype=like.dtype, device=like.device
    )


def image_channels(model: nn.Module) -> int:
    """How many channels the model's own configuration asks for; 3 if it says nothing."""
    configuration = getattr(model, "pretrained_cfg", None) or {}
    size = configuration.get("input_size") if isinstance(configuration, Mapping) else None
    if size:
        return int(size[0])
    return int(getattr(getattr(model, "config", None), "num_channels", 3))


class _Chooser(nn.Module):
    """The model, followed by the choice of its logits."""

    def __init__(self, model: nn.Module, output: str | None) -> None:
        super().__init__()
        self.model = model
        self.output = output
        self.training = False

    def forward(self, image: Tensor) -> Tensor:
        return choose_logits(self.model(image), self.output)


def choose_logits(answer: Any, output: str | None = None) -> Tensor:
    """The one tensor in ``answer`` that holds the logits.

    A tensor is itself the answer. In a dict, tuple or ModelOutput the entry called ``output`` is
    taken; without one, ``logits``, or the only entry of shape (N, K), or the only tensor.

    Example:
        >>> choose_logits({"loss": torch.zeros(()), "logits": torch.ones(1, 2)})
        tensor([[1., 1.]])
    """
    if isinstance(answer, Tensor):
        return answer
    entries = dict(_entries(answer))
    if not entries:
        raise NotABackbone(
            f"The model returns {type(answer).__name__}, in which there is no tensor. "
            "A backbone turns a batch of images into a tensor."
        )
    shapes = ", ".join(f"{name} ({_sizes(entry)})" for name, entry in entries.items())
    if output is not None:
        if output in entries:
            return entries[output]
        raise WrongOutput(f"The model's output has no entry {output!r}. It has: {shapes}.")
    tables = [entry for entry in entries.values() if entry.ndim == 2]
    for candidates in (
        [entries["logits"]] if "logits" in entries else [],
        tables,
        [*entries.values()],
    ):
        if len(candidates) == 1:
            return candidates[0]
    raise WrongOutput(
        f"The model returns several tensors, and which are the logits is not clear: {shapes}. "
        f"Say which: output={next(iter(entries))!r} in Python, --output {next(iter(entries))} "
        "on the command line."
    )


def _sizes(entry: Tensor) -> str:
    """A shape in which the number of images, which is not fixed, is called N."""
    return ", ".join(str(size) if type(size) is int else "N" for size in entry.shape)


def _entries(answer: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(answer, Tensor):
        yield prefix, answer
    elif isinstance(answer, Mapping):
        for name, entry in answer.items():
            yield from _entries(entry, f"{prefix}.{name}" if prefix else str(name))
    elif isinstance(answer, Sequence) and not isinstance(answer, str):
        for place, entry in enumerate(answer):
            yield from _entries(entry, f"{prefix}.{place}" if prefix else str(place))


@contextmanager
def _at_rest(model: nn.Module) -> Iterator[None]:
    """Eval mode and no observers for the duration; everything as before afterwards.

    A hook would see the stand-ins that export works with instead of images. Those of
    ``torch.nn.utils`` (weight norm and its like) compute weights, so they stay.
    """
    before = {module: dict(vars(module)) for module in model.modules()}
    contents = [(v, v.copy()) for held in before.values() for v in held.values() if _is_store(v)]
    try:
        for module, held in before.items():
            for name in _HOOKS:
                kept = {i: h for i, h in held[name].items() if _computes_weights(h)}
                module.__dict__[name] = type(held[name])(kept)
            module.__dict__["training"] = False
        yield
    finally:
        for module, held in before.items():  # some models also cache tensors while they run
            module.__dict__.clear()
            module.__dict__.update(held)
        for store, content in contents:
            store.clear()
            store.extend(content) if isinstance(store, list) else store.update(content)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the graph that torch prints where it fails: our own error says what matters."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()):
            # What the model assigns to itself while it runs is taken back: see _at_rest.
            warnings.filterwarnings("ignore", message=".*assigned during export")
            yield
    finally:
        logging.disable(before)


def _is_store(value: Any) -> bool:
    return isinstance(value, dict | list | set)


def _computes_weights(hook: Any) -> bool:
    return type(hook).__module__.startswith("torch.nn")


def _explain(model: nn.Module, image: Tensor, error: Exception) -> Exception:
    """Our own error: does the model itself refuse the image, or only ``torch.export``?"""
    name = type(model).__name__
    shape = "×".join(map(str, image.shape[1:]))
    try:
        model(image)
    except Exception as eager:
        text = f"{type(eager).__name__}: {first_line(eager)}"
        configuration = getattr(model, "pretrained_cfg", None) or {}
        own = configuration.get("input_size") if isinstance(configuration, Mapping) else None
        if own and tuple(own) != tuple(image.shape[1:]):
            return WrongInput(
                f"{name} does not accept images of {shape}: {text} Its own size is "
                f"{'×'.join(map(str, own))}: use --size {own[-1]}, or build it for another "
                f"size if it can be (MODEL:img_size={image.shape[-1]})."
            )
        if isinstance(eager, TypeError) and "argument" in str(eager):
            return NotABackbone(
                f"{name} cannot be called with a batch of images alone: {text} "
                "Wrap it in a module whose forward takes one tensor (N, C, H, W)."
            )
        return WrongInput(
            f"{name} does not accept images of {shape}: {text} Try another size (--size), "
            f"give a batch as it expects it, or check that it is a network for images."
        )
    frame = _own_frame(error)
    return NotExportable(
        f"{name} cannot be exported as a graph: torch.export stops at `{frame.line}` "
        f"({frame.filename}:{frame.lineno}): {first_line(error)} The way out: write that line "
        "without a choice that depends on the values of the image (torch.where instead of if, a "
        "fixed shape instead of a computed one), or take apart the part of the model that "
        "exports."
    )


def _own_frame(error: Exception) -> traceback.FrameSummary:
    """The deepest line of code outside torch and this file: the user's own."""
    library = str(Path(cast(str, torch.__file__)).parent)
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith((library, __file__))]
    return (own or frames)[-1]


def _graph(program: ExportedProgram) -> Graph:
    """The program's graph, its constants beside it."""
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
        raise NotABackbone("The model's answer does not depend on the image.")
    learned = {node for node, value in constants.items() if isinstance(value, nn.Parameter)}
    paths = {node: _module_paths(node) for node in program.graph.nodes}
    return Graph(program.graph, image, logits, constants, learned, paths)


def _module_paths(node: fx.Node) -> tuple[str, ...]:
    stack = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    # "model" is the chooser's own attribute; a module called twice is marked with @1.
    return tuple(path.removeprefix("model.").split("@")[0] for path in stack if "." in path)
