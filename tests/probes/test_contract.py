"""What holds for every probe there is, and for one that a user writes."""

import inspect
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

import retinoscope
from retinoscope import Needs, Piece, Probe, Result, Run, Subject, Watcher
from retinoscope.core.context import Context
from retinoscope.core.errors import NotApplicable, UnknownProbe
from retinoscope.core.result import answer, axes
from retinoscope.core.view import AUGMENTED, CLEAN
from retinoscope.probes import get_probe, list_probes
from retinoscope.run.subject import load_subject
from run.elsewhere import TINY, TINY_VIT


@pytest.mark.parametrize("name", list_probes())
def test_every_probe_keeps_the_contract(name, tmp_path):
    probe = get_probe(name)()
    assert isinstance(probe, Probe | Watcher)
    assert is_dataclass(probe)
    assert probe.result.probe == name
    assert probe.question.endswith("?")
    assert len(probe.reading) > 80
    assert pickle.loads(pickle.dumps(probe)) == probe
    assert all(f.metadata.get("help") for f in fields(probe))
    assert "arXiv:" in inspect.getmodule(type(probe)).__doc__
    described = probe.result.described()
    for field in described.values():
        about = field.metadata
        assert not about["x"] or about["x"] in described
        assert not about["error"] or about["error"] in described
        assert about["title"] or not about["figure"]
    subject = load_subject(TINY_VIT if probe.needs.taps else TINY, "cues", images=20)
    if probe.needs.snapshots is not None:  # a network that nobody has trained has none
        with pytest.raises(NotApplicable, match="needs the snapshots of a training"):
            Run(tmp_path).measure(probe, subject)
        return
    found = Run(tmp_path).measure(probe, subject)
    assert isinstance(found, probe.result)
    (note,) = tmp_path.rglob(f"{name}.*.note.json")
    assert probe.result.load(note.parent, note.name.removesuffix(".note.json")) == found


@pytest.mark.parametrize("name", list_probes())
def test_partials_combine_in_any_order_to_the_same_numbers(name):
    from retinoscope.run.job import Share, work_of
    from retinoscope.run.task import Task, perform

    probe = get_probe(name)()
    packaged = "micro_resnet" if probe.needs.snapshots is not None else TINY
    packaged = TINY_VIT if probe.needs.taps else packaged
    subject = load_subject(packaged, "cues", images=300 if isinstance(probe, Watcher) else 48)
    work, prepared, partials = work_of(probe), {}, []
    if work.prepares:
        prepared = perform(Task(work, None), subject).finished.partial
        partials.append(prepared)
    for piece in work.pieces(subject):
        share = Share(Task(work, piece, prepared), ())
        for kept in share.parts(perform(share.task, subject).finished.partial):
            partials += work.partials(kept)
    forth = probe.combine(subject.anatomy, partials)
    back = probe.combine(subject.anatomy, partials[::-1])
    for key, array in forth.arrays().items():
        np.testing.assert_allclose(back.arrays()[key], array, rtol=1e-12, atol=1e-12)


def test_a_probe_that_does_not_exist():
    with pytest.raises(UnknownProbe, match=r"no probe 'furier'\. Did you mean 'fourier'"):
        get_probe("furier")


@answer
class AgreementResult(Result):
    """How often two models answer the same."""

    probe: ClassVar[str] = "agreement"
    share: np.ndarray = axes("split", unit="share", title="Equal answers")


@dataclass(frozen=True)
class Agreement:
    """A probe as a user might write it: another subject, training images, labels, pieces."""

    result: ClassVar[type[Result]] = AgreementResult
    schema: ClassVar[int] = 1
    question: ClassVar[str] = "Do two models agree?"
    reading: ClassVar[str] = ""

    other: str
    augmented: bool = True

    @property
    def needs(self) -> Needs:
        view = AUGMENTED if self.augmented else CLEAN
        return Needs("train", view, labels=True, others=(self.other,))

    def pieces(self, subject: Subject) -> Sequence[Piece]:
        return [Piece(f"{i}", {"start": i}) for i in range(0, len(subject.split(self.needs)), 8)]

    def measure(self, subject: Subject, piece: Piece, context: Context):
        split, second = subject.split(self.needs), context.another(self.other)
        places = range(piece.what["start"], min(piece.what["start"] + 8, len(split)))
        same = []
        for batch in split.batches(places, subject.batch, subject.workers):
            assert batch.targets is not None
            with torch.no_grad():
                answers = [s.model(batch.images).argmax(1) for s in (subject, second)]
            same.append((answers[0] == answers[1]).double().numpy())
        return {"same": np.concatenate(same)}

    def combine(self, anatomy, partials) -> AgreementResult:
        return AgreementResult(
            share=np.array([np.concatenate([p["same"] for p in partials]).mean()])
        )


def test_a_users_probe_with_another_subject_and_augmented_training_images(tmp_path):
    from retinoscope.data.augment import Augmentation
    from retinoscope.models.order_one import draw_at_order_one
    from run.tiny import build

    models = {n: draw_at_order_one(build(), seed=s).eval() for n, s in (("a", 0), ("b", 1))}
    subject = load_subject(
        models["a"], "cues", name="a", size=(16, 16), images=20, others=models,
        augmentation=Augmentation(mixup=0.5),
    )  # fmt: skip
    run = Run(tmp_path)
    assert run.measure(Agreement("a"), subject).share == [1.0]
    other = run.measure(Agreement("b"), subject)
    assert other.share[0] < 1
    assert other.protocol["split"] == "train"
    assert other.protocol["augmentation"]["mixup"] == 0.5
    assert other.protocol["settings"] == {"other": "b", "augmented": True}
    assert len(list(tmp_path.rglob("agreement.*/*.piece"))) == 6


def test_one_call_from_names_to_an_answer():
    found = retinoscope.measure(get_probe("variance")(), load_subject(TINY, "cues", images=9))
    assert found.images == 9
