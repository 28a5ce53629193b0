"""One training recipe per file; its docstring gives the command, the cost and the outcome.

A file defines ``RECIPE``, and ``VARIANTS`` if there are variants by name, such as those of a
paper's code where it differs from the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module

from retinoscope.core.catalogue import entries
from retinoscope.core.errors import RetinoscopeError, did_you_mean
from retinoscope.core.specification import Specification
from retinoscope.train.recipe import Recipe, changed


class UnknownRecipe(RetinoscopeError, LookupError):
    """No recipe or variant of that name exists."""


def list_recipes() -> list[str]:
    """The names of all recipes, including variants as ``recipe.variant``.

    Example:
        >>> list_recipes()[:2]
        ['cifar_plain', 'cifar_plain.original']
    """
    return [
        name
        for entry in entries(__path__)
        for name in (entry, *(f"{entry}.{variant}" for variant in _variants(entry)))
    ]


def get_recipe(name: str) -> Recipe:
    """The recipe of that name; ``name.variant`` for a variant.

    Example:
        >>> get_recipe("cifar_strong.original").augmentation.mixup
        1.0
    """
    entry, dot, variant = name.partition(".")
    known = list_recipes()
    if name not in known:
        raise UnknownRecipe(
            f"There is no recipe {name!r}. {did_you_mean(name, known)}There are: "
            f"{', '.join(known)}. Their settings: retinoscope list recipes"
        )
    return _variants(entry)[variant] if dot else import_module(f"{__name__}.{entry}").RECIPE


def parse_recipe(text: str) -> Recipe:
    """A recipe from ``name`` or ``name:key=value,key=value``.

    Example:
        >>> parse_recipe("cifar_strong:epochs=10,mixup=0.2").epochs
        10
    """
    asked = Specification.parse(text, colons=False)
    return changed(get_recipe(asked.name), asked.options, asked.name)


def write_recipe(recipe: Recipe, name: str) -> str:
    """The string form of a recipe: ``name`` with the settings that differ from it.

    Example:
        >>> write_recipe(parse_recipe("cifar_strong:epochs=10,mixup=0.8"), "cifar_strong")
        'cifar_strong:epochs=10'
    """
    before = get_recipe(name)
    changed = {
        field.name: getattr(new, field.name)
        for new, old in ((recipe, before), (recipe.augmentation, before.augmentation))
        for field in fields(new)
        if field.name != "augmentation" and getattr(new, field.name) != getattr(old, field.name)
    }
    return str(Specification(name, changed))


def _variants(entry: str) -> Mapping[str, Recipe]:
    return getattr(import_module(f"{__name__}.{entry}"), "VARIANTS", {})
