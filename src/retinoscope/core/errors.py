"""All errors that a user can cause. Each says what was requested, what exists and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches


class RetinoscopeError(Exception):
    """The base class of all our errors."""


class NotExportable(RetinoscopeError):
    """``torch.export`` cannot turn the model into a graph."""


class WrongInput(RetinoscopeError, ValueError):
    """An input cannot be used: an image, an option, or the value of a setting."""


class WrongOutput(RetinoscopeError, ValueError):
    """The model's output contains no logits, or several candidates for them."""


class NotABackbone(RetinoscopeError, ValueError):
    """The module does not map an image to an output."""


class NotResidual(RetinoscopeError, ValueError):
    """A unit cannot be removed because it has no skip connection to replace its output."""


class UnknownModel(RetinoscopeError, LookupError):
    """No model of that name exists."""


class WeightsUnavailable(RetinoscopeError):
    """The requested weights do not exist or cannot be downloaded."""


class UnsafeCheckpoint(RetinoscopeError):
    """A checkpoint would execute code while it is read."""


class WeightsMismatch(RetinoscopeError, ValueError):
    """A checkpoint does not fit the model."""


class NotFinite(RetinoscopeError, ValueError):
    """Weights are NaN or infinite."""


class UnreadableFile(RetinoscopeError, ValueError):
    """A file is damaged, was written by another version, or has the wrong content."""


class NotApplicable(RetinoscopeError):
    """A subject lacks something that a probe needs; the report shows the reason."""


class SurgeryRefused(RetinoscopeError, ValueError):
    """A surgery cannot be applied to this model; the message names the unit and the reason."""


class UnknownSurgery(RetinoscopeError, LookupError):
    """No surgery or setting of that name exists."""


class NotDeterministic(RetinoscopeError):
    """Two passes over the same images differ, so results would not be reproducible."""


class EmptyResult(RetinoscopeError):
    """A probe measured nothing, or no finite number."""


class RunFolderError(RetinoscopeError):
    """A run folder cannot be used: it is read-only, full, in use, or not a run folder."""


class UnknownProbe(RetinoscopeError, LookupError):
    """No probe or setting of that name exists."""


class UnknownUnit(RetinoscopeError, LookupError):
    """The anatomy has no unit of the requested name."""

    def __init__(self, name: str, model: str, names: Sequence[str]) -> None:
        super().__init__(
            f"{model} has no unit {name!r}. {did_you_mean(name, names)}"
            f"List all {len(names)} with: retinoscope anatomy {model}"
        )


def first_line(error: BaseException) -> str:
    r"""The first line of another library's error message, ending in a full stop.

    Example:
        >>> first_line(ValueError("bad size\nlong story"))
        'bad size.'
        >>> first_line(EOFError())
        'EOFError.'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text if text.endswith((".", "!", "?")) else f"{text}."


def did_you_mean(asked: str, existing: Sequence[str]) -> str:
    """A suggestion of up to three similar names, ending in a space; empty if none is similar.

    Example:
        >>> did_you_mean("resnet5", ["resnet50", "vit", "resnet18"])
        "Did you mean 'resnet50' or 'resnet18'? "
    """
    nearest = get_close_matches(asked, existing, n=3)
    return f"Did you mean {' or '.join(map(repr, nearest))}? " if nearest else ""
