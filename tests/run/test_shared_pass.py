"""What watchers see: fixed groups, taps, views, further subjects; however the work is divided."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from retinoscope import Needs, Result
from retinoscope.anatomy.replay import Replay
from retinoscope.core.catalogue import load_file
from retinoscope.core.errors import NotApplicable, WrongInput
from retinoscope.core.result import answer
from retinoscope.data.views import Noised
from retinoscope.probes.fourier import Fourier
from retinoscope.probes.variance import Variance
from retinoscope.run.engines.processes import InProcesses
from retinoscope.run.run import Run, measure
from retinoscope.run.subject import load_subject

HERE = Path(__file__).parent
VIT = f"{HERE / 'tiny_vit.py'}:build:img_size=16"
OTHER = f"{HERE / 'tiny.py'}:build:img_size=16"
Kinship = load_file(HERE / "kinship.py").Kinship
IMAGES = 40


def subject_of(**settings):
    return load_subject(VIT, "cues", **{"images": IMAGES} | settings)


@pytest.fixture(scope="module")
def alone():
    return measure(Kinship(OTHER), subject_of())


def same(found, expected):
    for name, array in expected.arrays().items():
        np.testing.assert_allclose(found.arrays()[name], array, rtol=1e-6, err_msg=name)
    assert found.images == expected.images


@torch.no_grad()
def test_equals_a_naive_twin_written_with_the_eager_models(alone):
    """Noise drawn image by image, hooks on the eager model, one group after the other."""
    subject = subject_of()
    second = subject.another(OTHER)
    (clean,) = subject.splits["test"].batches(range(IMAGES), IMAGES)
    (seen,) = subject.split(Kinship(OTHER).needs).batches(range(IMAGES), IMAGES)
    noise = seen.images - clean.images
    inside = (seen.images > 0) & (seen.images < 1)  # elsewhere it is clipped
    assert noise[inside].std() == pytest.approx(0.2, rel=0.1)
    both, mine, theirs, entropy = 0, 0, 0, []
    for start in range(0, IMAGES, 16):
        images = seen.images[start : start + 16]
        grams = []
        for one in (subject, second):
            states = [state.raw.flatten(1).double() for state in one.replay.walk(images)]
            grams.append(np.stack([(rows @ rows.T).flatten().numpy() for rows in states]))
        both = both + grams[0] @ grams[1].T
        mine, theirs = mine + (grams[0] ** 2).sum(1), theirs + (grams[1] ** 2).sum(1)
        x = subject.model.normalise(images)
        vit = subject.backbone
        x = vit.norm_pre(vit._pos_embed(vit.patch_embed(x)))
        each = []
        for block in vit.blocks:
            q, k, _ = (
                block.attn.qkv(block.norm1(x)).reshape(len(x), -1, 3, 3, 4).permute(2, 0, 3, 1, 4)
            )
            weights = (q @ k.transpose(-2, -1) * 4**-0.5).softmax(-1).double()
            each.append(-torch.xlogy(weights, weights).sum(-1).mean(-1))
            x = block(x)
        entropy.append(torch.stack(each))  # unit, image, head
    expected = torch.cat(entropy, 1).mean(1).numpy()
    np.testing.assert_allclose(alone.entropy, expected, rtol=1e-4)
    np.testing.assert_allclose(alone.kinship, both / np.sqrt(np.outer(mine, theirs)), rtol=1e-5)
    assert alone.images == IMAGES
    assert np.ptp(alone.kinship) > 0.01


@pytest.mark.parametrize("batch", [1, 7, 16, 100])
def test_groups_do_not_depend_on_the_batch_size(alone, batch):
    same(measure(Kinship(OTHER), subject_of(batch=batch)), alone)


def test_another_group_size_is_another_result(alone):
    found = measure(Kinship(OTHER, group=10), subject_of())
    np.testing.assert_allclose(found.entropy, alone.entropy, rtol=1e-6)
    assert np.abs(found.kinship - alone.kinship).max() > 1e-6


def test_groups_do_not_depend_on_memory(alone, monkeypatch, tmp_path):
    walk = Replay.walk

    def small(self, batch, taps=()):
        if len(batch) > 4:
            raise torch.OutOfMemoryError("no room")
        return walk(self, batch, taps)

    monkeypatch.setattr(Replay, "walk", small)
    same(Run(tmp_path).measure(Kinship(OTHER), subject_of()), alone)
    (note,) = tmp_path.rglob("kinship.*.note.json")
    assert "a mini-batch of 16 goes through in 2 parts" in note.read_text()
    assert "a mini-batch of 16 goes through in 4 parts" in note.read_text()


@pytest.mark.proof
def test_a_probe_of_the_users_own_file_runs_in_other_processes(alone, tmp_path):
    run = Run(tmp_path, engine=InProcesses(2))
    same(run.measure(Kinship(OTHER), subject_of(images=IMAGES)), alone)


def test_an_image_that_cannot_be_read_regroups_nobody(tmp_path):
    """Image 5 of 20 is broken: the groups of 8 are the others of 0–7, then 8–15, then 16–19."""
    from PIL import Image

    for place in range(20):
        pixels = np.random.default_rng(place).integers(0, 255, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{place:02d}.png")
    (tmp_path / "05.png").write_bytes(b"no image")
    seen = []

    @dataclass(frozen=True)
    class Recording(Variance):
        @property
        def needs(self):
            return Needs(group=8, view=Noised())

        def gather(self, group):
            seen.append(group.indices)
            return super().gather(group)

    subject = load_subject(OTHER, str(tmp_path), images=None)
    found = measure(Recording(), subject)
    assert seen == [(0, 1, 2, 3, 4, 6, 7), tuple(range(8, 16)), (16, 17, 18, 19)]
    ((image, _),) = found.protocol["set aside"]
    assert image.endswith("05.png")
    assert found.protocol["view"] == {"view": "noised", "std": 0.1, "clip": True, "seed": 0}


@pytest.mark.parametrize("broken", [range(4), range(4, 8), range(16, 20)])
def test_a_group_that_cannot_be_read_at_all_costs_nobody_else(tmp_path, broken):
    from PIL import Image

    for place in range(20):
        pixels = np.random.default_rng(place).integers(0, 255, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{place:02d}.png")
    for place in broken:
        (tmp_path / f"{place:02d}.png").write_bytes(b"no image")

    @dataclass(frozen=True)
    class Grouped(Variance):
        @property
        def needs(self):
            return Needs(group=4)

        def gather(self, group):
            assert group.indices
            return super().gather(group)

    subject = load_subject(OTHER, str(tmp_path), images=None)
    alone = measure(Variance(), subject)
    found = Run(tmp_path / "run").measure_all([Grouped(), Variance()], subject)
    both = list(found.values())
    assert [result.images for result in both] == [16, 16]
    for result in both:
        np.testing.assert_allclose(result.variance, alone.variance, rtol=1e-6)


def test_another_model_must_take_images_of_the_same_size():
    other = f"{HERE / 'tiny.py'}:build:img_size=8"
    with pytest.raises(
        NotApplicable, match=r"which are 3×16×16, but .* expects 3×8×8.*img_size=16"
    ):
        measure(Kinship(other), load_subject(VIT, "cues", images=8))


def test_watchers_with_and_without_groups_share_one_pass(monkeypatch, tmp_path):
    passes, walk = [], Replay.walk

    def counted(self, batch, taps=()):
        passes.append((len(batch), frozenset(taps)))
        return walk(self, batch, taps)

    @dataclass(frozen=True)
    class Grouped(Variance):
        @property
        def needs(self):
            return Needs(group=16, taps=frozenset({"branch"}))

    subject = subject_of()
    apart = [measure(probe, subject) for probe in (Fourier(), Grouped())]
    monkeypatch.setattr(Replay, "walk", counted)
    both = Run(tmp_path).measure_all([Fourier(), Grouped()], subject)
    shared = [images for images, taps in passes if taps]
    assert shared == [16, 16, 8]  # once for both; what else was run were four images, twice
    assert all(images == 4 for images, taps in passes if not taps)
    for alone, together in zip(apart, both.values(), strict=True):
        for name, array in alone.arrays().items():
            np.testing.assert_allclose(together.arrays()[name], array, rtol=1e-5, atol=1e-6)


@answer
class NothingResult(Result):
    probe: ClassVar[str] = "nothing"


@dataclass(frozen=True)
class Nothing:
    result: ClassVar[type[Result]] = NothingResult
    schema: ClassVar[int] = 1
    question: ClassVar[str] = "?"
    reading: ClassVar[str] = ""
    group: int | None = None

    @property
    def needs(self):
        return Needs(group=self.group)

    def watch(self, sight):
        return None

    def gather(self, group):
        assert not group.rows
        raise NotApplicable("looks for attention; there is none")

    def combine(self, anatomy, partials):
        raise AssertionError("nothing to combine")


def test_a_watcher_that_does_not_apply_leaves_the_others_alone(tmp_path):
    subject = subject_of(images=9)
    found = Run(tmp_path).measure_all([Nothing(), Variance()], subject)
    assert str(found["nothing"]) == "looks for attention; there is none"
    assert found["variance"] == measure(Variance(), subject)


def test_a_group_of_none_is_refused(tmp_path):
    with pytest.raises(WrongInput, match="A group must contain at least 1 image; got 0"):
        measure(Nothing(group=0), subject_of(images=3))


PROGRAM = """
import sys, time
from pathlib import Path
from retinoscope.core.catalogue import load_file
from retinoscope.run.engines.local import Here
from retinoscope.run.run import Run
from retinoscope.run.subject import load_subject

class Slow(Here):
    def run(self, subject, tasks):
        for done in super().run(subject, tasks):
            yield done
            time.sleep(60)

kind = load_file(Path(sys.argv[1])).Kinship
subject = load_subject(sys.argv[2], "cues", images=300)
Run(sys.argv[4], engine=Slow()).measure(kind(sys.argv[3]), subject)
"""


def test_a_lost_piece_is_done_again_to_the_same_bytes(tmp_path):
    """A process is killed by ``make prove``."""
    run, subject, probe = Run(tmp_path), subject_of(images=150), Kinship(OTHER)
    run.measure(probe, subject)
    (result,) = tmp_path.rglob("kinship.*.npz")
    before = result.read_bytes()
    first, second = sorted(tmp_path.rglob("*.piece"))
    kept = first.stat().st_mtime_ns
    second.unlink()
    run.measure(probe, subject)
    assert result.read_bytes() == before
    assert first.stat().st_mtime_ns == kept


@pytest.mark.proof
def test_a_killed_process_is_resumed_to_the_same_bytes(tmp_path):
    subject, probe = subject_of(images=300), Kinship(OTHER)
    Run(tmp_path / "alone").measure(probe, subject)
    file = str(HERE / "kinship.py")
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, file, VIT, OTHER, str(tmp_path / "killed")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    deadline = time.monotonic() + 300
    while not list((tmp_path / "killed").rglob("*.piece")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    Run(tmp_path / "killed").measure(probe, subject)
    (one,), (other,) = ((tmp_path / f).rglob("kinship.*.npz") for f in ("alone", "killed"))
    assert one.read_bytes() == other.read_bytes()


def test_settings_are_part_of_the_key():
    from retinoscope.run.key import key_of

    subject = subject_of(images=3)
    keys = {key_of(Kinship(OTHER, group=g), subject) for g in (8, 16)}
    keys |= {key_of(replace(Kinship(OTHER), other=VIT), subject)}
    assert len(keys) == 3
