"""``retinoscope build``: a model, changed by surgeries, as one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from typer import Argument, Option

from retinoscope.cli.next import examine_command
from retinoscope.cli.options import MODEL, with_fields
from retinoscope.run.specification import SubjectSpecification, check_asked

if TYPE_CHECKING:
    from retinoscope.models.build import BuiltModel

_LISTED = 6


@with_fields(
    "model_settings", SubjectSpecification, "size", "mean", "std", "pretrained", "weights", "seed",
    "allow_pickle",
    panel="Options",
)  # fmt: skip
def build(
    model: Annotated[str, Argument(help=MODEL, metavar="MODEL")],
    apply: Annotated[
        list[str] | None,
        Option(
            help="A surgery; may be repeated, applied in order: [cyan]name:key=value,key=value[/]. "
            "See: retinoscope list surgeries",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None, Option(help="The file to write: F.safetensors.", show_default=False)
    ] = None,
    *,
    model_settings: dict[str, Any],
) -> None:
    """Change a model: apply surgeries to any backbone and write the result to one file.

    Weights that still fit are kept. The file records how its model is built, so other commands take
    it as a model: retinoscope examine F.safetensors.

    [dim]retinoscope build resnet50 --apply 'build_up:msa_per_stage=(0,1,1,2),grow=True' --out
    alter.safetensors[/]
    """
    from retinoscope.core.errors import WrongInput
    from retinoscope.surgery import list_surgeries, parse_surgery

    if not apply:
        raise WrongInput(
            "Name at least one surgery with --apply. There are: "
            f"{', '.join(list_surgeries())}. Their settings: retinoscope list surgeries"
        )
    if out is not None and out.suffix != ".safetensors":
        raise WrongInput(f"--out is a .safetensors file; got {str(out)!r}.")
    for text in apply:
        parse_surgery(text)
    check_asked([model], **model_settings)
    from retinoscope.models.build import build_model
    from retinoscope.run.progress import Reporter

    console, reporter = Console(), Reporter(Console(stderr=True))
    reporter.begin(f"operating on {model}", 1)
    try:
        made = build_model(model, apply, say=reporter.say, **model_settings)
    finally:
        reporter.end()
    _describe(console, made)
    if out is None:
        console.print("Nothing was written: name a file with --out F.safetensors", style="dim")
        return
    made.save(out)
    for line in (f"Written to {out}", f"Next: {examine_command(out)}"):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _describe(console: Console, made: BuiltModel) -> None:
    from retinoscope.cli.anatomy_table import brief
    from retinoscope.core.wording import count
    from retinoscope.surgery import parse_surgery

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    before, after = made.before, made.after
    say(f"{made.construction.model} ({made.construction.weights})")
    for surgery in made.construction.surgeries:
        say(f"  {surgery}")
        if (touched := getattr(parse_surgery(surgery), "touched", None)) is not None:
            units = touched(made.model)
            say(f"    touches {count(len(units), 'unit')}: {', '.join(units)}")
    say(f"before  {before.sketch}  {brief(before.parameters)} parameters")
    say(f"after   {after.sketch}  {brief(after.parameters)} parameters")
    say(f"kept    {len(made.kept)} tensors as they were")
    for what, keys in (("new", made.new), ("lost", made.lost)):
        shown = ", ".join(keys[:_LISTED]) + ", …" * (len(keys) > _LISTED)
        say(f"{what:7} {len(keys)} tensors{': ' * bool(keys)}{shown}")
