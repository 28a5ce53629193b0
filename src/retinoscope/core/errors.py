"""Every error a user can cause. Each says what was asked, what exists and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches


class RetinoscopeError(Exception):
    """The base of all our errors: catch this to catch them all."""


class NotExportable(RetinoscopeError):
    """``torch.export`` cannot turn the model into a graph."""


class WrongInput(RetinoscopeError, ValueError):
    """What was given cannot be used: an image, an option, a value of a setting."""


class WrongOutput(RetinoscopeError, ValueError):
    """The model's output holds no logits, or several candidates for them."""


class NotABackbone(RetinoscopeError, ValueError):
    """The module does not turn an image into an answer."""


class NotResidual(RetinoscopeError, ValueError):
    """A unit was to be removed that has no skip operand to take its place."""


class UnknownModel(RetinoscopeError, LookupError):
    """No model of that name exists."""


class WeightsUnavailable(RetinoscopeError):
    """The weights asked for do not exist or cannot be fetched."""


class UnsafeCheckpoint(RetinoscopeError):
    """A checkpoint wants to run code while it is read."""


class WeightsMismatch(RetinoscopeError, ValueError):
    """A checkpoint does not fit the model."""


class NotFinite(RetinoscopeError, ValueError):
    """Weights are NaN or infinite."""


class UnreadableFile(RetinoscopeError, ValueError):
    """A file is damaged, of another version, or not what it should be."""


class NotApplicable(RetinoscopeError):
    """A probe needs what a subject does not have; the report says so in its place."""


class SurgeryRefused(RetinoscopeError, ValueError):
    """An operation cannot be done on this model; says on which unit, and why."""


class UnknownSurgery(RetinoscopeError, LookupError):
    """No surgery or setting of that name exists."""


class NotDeterministic(RetinoscopeError):
    """Two passes over the same images differ, so nothing measured would repeat."""


class EmptyResult(RetinoscopeError):
    """A probe measured nothing, or nothing that is a finite number."""


class RunFolderError(RetinoscopeError):
    """A run folder cannot be used: read-only, full, in use, or not a run folder."""


class UnknownProbe(RetinoscopeError, LookupError):
    """No probe or setting of that name exists."""


class UnknownUnit(RetinoscopeError, LookupError):
    """A name was asked for that the anatomy does not hold."""

    def __init__(self, name: str, model: str, names: Sequence[str]) -> None:
        super().__init__(
            f"{model} has no unit {name!r}. {did_you_mean(name, names)}"
            f"List all {len(names)} with: retinoscope anatomy {model}"
        )


def first_line(error: BaseException) -> str:
    r"""What an error of another library says, in one line that ends in a full stop.

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
    """A hint at the nearest three names, ending in a blank; empty if none is near.

    Example:
        >>> did_you_mean("resnet5", ["resnet50", "vit", "resnet18"])
        "Did you mean 'resnet50' or 'resnet18'? "
    """
    nearest = get_close_matches(asked, existing, n=3)
    return f"Did you mean {' or '.join(map(repr, nearest))}? " if nearest else ""
