"""The CNN that a search starts from: how to build it, and how much attention fits into it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from retinoscope.core.errors import SurgeryRefused, first_line
from retinoscope.core.specification import Specification, short_name
from retinoscope.core.wording import assumed_words
from retinoscope.data.load import check_data
from retinoscope.models.build import BuiltModel, build_model
from retinoscope.models.load import load_model
from retinoscope.surgery.build_up import BuildUp, slots
from retinoscope.surgery.table import Table
from retinoscope.train.images import find_images
from retinoscope.train.recipe import Recipe
from retinoscope.train.student import Student, load_student, shape_of

Plan = tuple[int, ...]
"""Number of attention units in each stage."""


@dataclass(frozen=True)
class Base:
    """A model's name with all options, its earlier surgeries, and the images it takes."""

    name: str
    surgeries: tuple[str, ...]
    size: tuple[int, int]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def built(self, plan: Plan = (), grow: bool = False, seed: int = 0) -> BuiltModel:
        """The untrained model with attention units as in ``plan``."""
        added = [BuildUp(plan, grow=grow)] if any(plan) else []
        surgeries = [*self.surgeries, *added]
        return build_model(
            self.name, surgeries, size=self.size, pretrained=False, seed=seed,
            mean=self.mean, std=self.std,
        )  # fmt: skip


def find_base(
    model: str, recipe: Recipe, root: str | None, say: Callable[[str], None] = lambda _: None
) -> tuple[Base, Recipe]:
    """The base of that name, and the recipe for models that are built from it.

    The images are looked up too, so that a recipe that does not fit is refused immediately.
    """
    check_data(recipe.data, root)
    built = Specification.parse(model).name.endswith(".safetensors")
    way = load_model(model, pretrained=False).construction if built else None
    # A built file is rebuilt from its original model name, which accepts the recipe's rate of
    # stochastic depth.
    recipe = replace(recipe, model=way.model if way else model)
    loaded, made = load_student(recipe)
    if loaded.assumed:
        say(assumed_words(short_name(model), loaded.assumed))
    find_images(recipe, loaded.preprocessing, shape_of(Student(loaded)), root)
    if way is None:
        return Base(made.model, (), made.size, made.mean, made.std), recipe
    mean, std = way.mean or made.mean, way.std or made.std
    return Base(made.model, way.surgeries, way.size, mean, std), recipe


def find_room(base: Base, grow: bool, say: Callable[[str], None]) -> Plan:
    """The number of attention units that fit in each stage; raises an error if none fits.

    A number of units that cannot be placed in a stage is reported.
    """
    built = base.built()
    table = Table(built.model, built.after, "build_up")
    stages = table.whole.stages
    room, refused = [], None
    for place, stage in enumerate(stages):
        most = max(len(slots(table.whole, stage, more)) for more in {False, grow})
        for count in range(most, 0, -1):
            plan = [0] * len(stages)
            plan[place] = count
            try:
                BuildUp(tuple(plan), grow=grow).plan(table)
            except SurgeryRefused as error:
                refused = error
                say(f"Stage {stage} gets no {count} attention units: {first_line(error)}")
            else:
                room.append(count)
                break
        else:
            room.append(0)
    if not any(room):
        raise refused or SurgeryRefused(
            f"There is no room for attention in {base.name} ({table.whole.sketch}): it takes the "
            "place of convolutional units that keep their shape"
            f"{'' if grow else ', or one of its own with --grow (in Python grow=True)'}. See: "
            "retinoscope anatomy "
            f"{base.name}"
        )
    return tuple(room)
