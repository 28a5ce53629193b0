"""Read weights from a file without running code that is in it."""

from __future__ import annotations

import hashlib
import pickle
import pickletools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.serialization import get_unsafe_globals_in_checkpoint

from retinoscope.core.errors import UnreadableFile, UnsafeCheckpoint, WeightsMismatch, first_line
from retinoscope.core.missing import check_weights_file
from retinoscope.models.damage import unreadable

CHECKPOINTS = (".safetensors", ".pth", ".pt")
# Keys under which training scripts store the weights in a checkpoint, best first.
_ENTRIES = ("state_dict_ema", "model_ema", "state_dict", "model_state_dict", "model", "weights")
_LISTED = 8
_PICKLES = 4
"""Number of pickles at the start of an old torch.save file; the last one holds the weights."""
_PREFIXES = re.compile(r"^(module\.|_orig_mod\.)*")
_HARMLESS = re.compile(r"collections\.OrderedDict|torch\._utils\._rebuild_\w+|torch\.\w+Storage")


def read_checkpoint(path: Path, allow_pickle: bool = False) -> dict[str, Tensor]:
    """Return the tensors in a ``.safetensors`` or ``.pth`` file by name."""
    check_weights_file(path)
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=not allow_pickle)
    except (ImportError, AttributeError) as error:
        raise UnreadableFile(
            f"{str(path)!r} holds objects of a class that cannot be imported here: "
            f"{first_line(error)} Save model.state_dict() where the class is at hand."
        ) from None
    except pickle.UnpicklingError:
        raise _refusal(path) from None
    except Exception:  # torch can fail anywhere on a damaged file
        raise unreadable(path) from None
    return _tensors(found, path)


def load_weights(model: nn.Module, path: Path, allow_pickle: bool = False) -> str:
    """Load the weights of a file into ``model`` and return their name; every key must match."""
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
    """The SHA-256 of tensors with their names, shapes and types, sorted by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _refusal(path: Path) -> Exception:
    try:
        wanted = get_unsafe_globals_in_checkpoint(path)
    except Exception:  # it only reads the newer torch.save format
        wanted = _imported(path)
    if not wanted:
        return unreadable(path)
    return UnsafeCheckpoint(
        f"{str(path)!r} wants to run code while it is read: {', '.join(wanted)}. It was not read. "
        "If you trust whoever made it, allow that with --allow-pickle (in Python "
        "allow_pickle=True); better, ask for a .safetensors file."
    )


def _imported(path: Path) -> list[str]:
    """Return the names that a bare pickle would import, from its opcodes, without running it."""
    names: list[str] = []
    texts: list[str] = []
    try:
        with path.open("rb") as file:
            for _ in range(_PICKLES):
                for instruction, given, _ in pickletools.genops(file):
                    if instruction.name == "GLOBAL":
                        names.append(str(given).replace(" ", "."))
                    elif instruction.name == "STACK_GLOBAL":
                        names.append(".".join(texts[-2:]))
                    elif isinstance(given, str):
                        texts.append(given)
    except Exception:  # the end of the file, or damage
        pass
    return [name for name in dict.fromkeys(names) if not _HARMLESS.fullmatch(name)]


def _tensors(found: Any, path: Path) -> dict[str, Tensor]:
    """Find the mapping from names to tensors in whatever a training script saved."""
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
    # DistributedDataParallel and torch.compile add these prefixes, in either order.
    return {_PREFIXES.sub("", key): found[key] for key in found}
