"""Reading weights from a file without running anything that is in it."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.serialization import get_unsafe_globals_in_checkpoint

from retinoscope.core.errors import UnreadableFile, UnsafeCheckpoint, WeightsMismatch, first_line

# Where training scripts put the weights inside a checkpoint, best first.
_ENTRIES = ("state_dict_ema", "model_ema", "state_dict", "model_state_dict", "model", "weights")
_LISTED = 8


def read_checkpoint(path: Path, allow_pickle: bool = False) -> dict[str, Tensor]:
    """The tensors in a ``.safetensors`` or ``.pth`` file by their names."""
    if not path.is_file():
        raise UnreadableFile(f"There is no checkpoint {str(path)!r}.")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=not allow_pickle)
    except pickle.UnpicklingError as error:
        raise _refusal(path, error) from None
    except (SafetensorError, RuntimeError, EOFError, OSError, ValueError) as error:
        raise UnreadableFile(
            f"{str(path)!r} cannot be read as weights: {first_line(error)} "
            "Expected a .safetensors file, or a .pth file that torch.save wrote."
        ) from None
    return _tensors(found, path)


def load_weights(model: nn.Module, path: Path, allow_pickle: bool = False) -> str:
    """Put the weights of a file into ``model``; every key must fit. Returns what to call them."""
    state = read_checkpoint(path, allow_pickle)
    own = model.state_dict()
    missing = sorted(own.keys() - state.keys())
    extra = sorted(state.keys() - own.keys())
    shapes = [
        f"{key} {tuple(state[key].shape)} in the file, {tuple(own[key].shape)} in the model"
        for key in own.keys() & state.keys()
        if own[key].shape != state[key].shape
    ]
    if missing or extra or shapes:
        listed = [
            f"{len(keys)} {what}: {', '.join(keys[:_LISTED])}{', …' * (len(keys) > _LISTED)}"
            for what, keys in (
                ("missing in the file", missing),
                ("not in the model", extra),
                ("of another shape", sorted(shapes)),
            )
            if keys
        ]
        raise WeightsMismatch(
            f"{str(path)!r} does not fit {type(model).__name__}: {'; '.join(listed)}. Build the "
            "model as it was trained (options such as MODEL:num_classes=10 stand behind its name)."
        )
    model.load_state_dict(state)
    return f"{path.name}, sha256 {file_hash(path)}"


def file_hash(path: Path) -> str:
    """The first twelve digits of a file's SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]


def state_hash(model: nn.Module) -> str:
    """The first twelve digits of a SHA-256 over all weights and buffers, by name."""
    return tensors_hash(model.state_dict())[:12]


def tensors_hash(tensors: Mapping[str, Tensor]) -> str:
    """A SHA-256 over tensors and their names, shapes and types, in the order of the names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _refusal(path: Path, error: pickle.UnpicklingError) -> Exception:
    try:
        wanted = get_unsafe_globals_in_checkpoint(path)
    except Exception:
        wanted = []
    if not wanted:
        return UnreadableFile(f"{str(path)!r} cannot be read as weights: {first_line(error)}")
    return UnsafeCheckpoint(
        f"{str(path)!r} wants to run code while it is read: {', '.join(wanted)}. It was not read. "
        "If you trust whoever made it, allow that with --allow-pickle (in Python "
        "allow_pickle=True); better, ask for a .safetensors file."
    )


def _tensors(found: Any, path: Path) -> dict[str, Tensor]:
    """The mapping from names to tensors inside whatever a training script saved."""
    if isinstance(found, nn.Module):
        found = found.state_dict()
    while isinstance(found, Mapping) and not all(isinstance(v, Tensor) for v in found.values()):
        inside = next((found[key] for key in _ENTRIES if isinstance(found.get(key), Mapping)), None)
        if inside is None:
            break
        found = inside
    if (
        not isinstance(found, Mapping)
        or not found
        or not all(isinstance(v, Tensor) for v in found.values())
    ):
        held = ", ".join(map(str, found)) if isinstance(found, Mapping) else type(found).__name__
        raise UnreadableFile(
            f"{str(path)!r} holds no weights that could be found. It holds: {held or 'nothing'}. "
            f"They are looked for at the top or under {', '.join(_ENTRIES)}."
        )
    # DistributedDataParallel and torch.compile put their own names in front.
    return {key.removeprefix("module.").removeprefix("_orig_mod."): found[key] for key in found}
