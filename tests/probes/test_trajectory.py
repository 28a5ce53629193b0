from dataclasses import fields

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy

from retinoscope import Run, load_subject
from retinoscope.core.errors import NotApplicable, WeightsMismatch
from retinoscope.data.augment import Augmentation
from retinoscope.geometry.exchanged import exchanged
from retinoscope.geometry.sample import shuffled
from retinoscope.models.checkpoint import state_hash
from retinoscope.models.order_one import draw_at_order_one
from retinoscope.probes.trajectory import Trajectory, TrajectoryResult
from retinoscope.probes.variance import Variance
from retinoscope.run.key import key_of
from retinoscope.run.task import Task, perform
from retinoscope.run.work import Alone
from run.elsewhere import TINY
from run.tiny import build
from train.by_hand import write_training

NAMES = ("init", "warmup", "epoch-0010", "end")


def drawn(seed):
    model = draw_at_order_one(build(), seed=seed).eval()
    model.block[1].running_mean += seed  # buffers must come along
    return model.state_dict()


def write(folder, states):
    folder.mkdir(parents=True, exist_ok=True)
    for name, state in states.items():
        save_file(state, folder / f"{name}.safetensors")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A training with four snapshots that have nothing in common."""
    made = write_training(tmp_path_factory.mktemp("made") / "training", warmup=5, epochs=20)
    write(made / "snapshots", {name: drawn(i) for i, name in enumerate(NAMES)})
    return made


@pytest.fixture(scope="module")
def subject(folder):
    """A subject whose weights are the last of them; mixed images, so that targets are soft."""
    return load_subject(
        TINY, "cues", weights=str(folder / "snapshots" / "end.safetensors"), images=40, batch=7,
        weight_decay=0.25, augmentation=Augmentation(mixup=0.8),
    )  # fmt: skip


def parts(probe, subject):
    return [perform(Task(Alone(probe), p), subject).finished.partial for p in probe.pieces(subject)]


def answer(probe, subject):
    return probe.combine(subject.anatomy, parts(probe, subject))


def moved(path, tmp_path, subject):
    """The answer on a path of hand-made shifts of one state: names to rows of shifts."""
    base = drawn(0)
    states = {}
    for i, (x, y) in enumerate(path):
        state = {k: v.clone() for k, v in base.items()}
        state["stem.weight"][0, 0, 0, 0] += x
        state["head.bias"][3] += y
        state["block.1.running_mean"] += 100 * i  # no parameter: it moves nothing
        states[f"{i}"] = state
    made = write(tmp_path / "path", states)
    return answer(Trajectory(str(made), "test", max_images=2), subject)


def test_a_straight_line(tmp_path, subject):
    found = moved([(0, 0), (0.5, 0), (2, 0), (4, 0)], tmp_path, subject)
    # Weights are single precision: 1e-7 of them; angles near 0 are its square root.
    assert found.path_length == pytest.approx(4, rel=1e-6)
    assert found.distance == pytest.approx(4, rel=1e-6)
    assert found.straightness == pytest.approx(1, rel=1e-6)
    assert found.turning == pytest.approx(0, abs=1e-3)
    assert found.explained == pytest.approx((1, 0), abs=1e-6)
    np.testing.assert_allclose(found.first, [4, 3.5, 2, 0], atol=1e-5)
    np.testing.assert_allclose(found.radius, [1, 0.875, 0.5, 0], atol=1e-5)
    np.testing.assert_allclose(found.epoch, [0, 1, 2, 3])


def test_a_right_angle(tmp_path, subject):
    found = moved([(0, 3), (0, 0), (4, 0)], tmp_path, subject)
    np.testing.assert_allclose(found.step_length, [3, 4], rtol=1e-6)
    assert found.turning == pytest.approx(np.pi / 2, abs=1e-6)
    assert found.straightness == pytest.approx(5 / 7, rel=1e-6)
    np.testing.assert_allclose(found.angle[:2], [0, np.arccos(4 / 5)], atol=1e-6)
    assert np.isnan(found.angle[2])


def test_two_snapshots_have_no_turning_and_one_twice_no_direction(tmp_path, subject):
    found = moved([(0, 0), (1, 0)], tmp_path, subject)
    assert found.turning is None
    assert found.straightness == pytest.approx(1)
    still = moved([(0, 0), (0, 0)], tmp_path, subject)
    assert (still.path_length, still.distance) == (0, 0)
    assert (still.straightness, still.explained, still.turning) == (None, None, None)
    still.save(tmp_path)
    assert TrajectoryResult.load(tmp_path) == still


@pytest.mark.parametrize("images", ["augmented", "clean", "test"])
def test_losses_are_those_of_a_fresh_model_with_the_file(folder, subject, images):
    probe = Trajectory(images=images, max_images=17)
    found, split = answer(probe, subject), subject.split(probe.needs)
    assert found.snapshots == NAMES
    assert found.images == 17
    np.testing.assert_array_equal(found.epoch, [0, 5, 15, 25])
    assert split.protocol["split"] == ("test" if images == "test" else "train")
    (batch,) = split.batches(shuffled(len(split), 0, 17), 17)
    assert (batch.targets is not None) == (images == "augmented")
    preprocessing = split.preprocessing
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (preprocessing.mean, preprocessing.std))
    for i, name in enumerate(NAMES):
        model = build().eval()
        model.load_state_dict(load_file(folder / "snapshots" / f"{name}.safetensors"))
        with torch.no_grad():
            logits = model((batch.images - mean) / std)
        target = batch.labels if batch.targets is None else batch.targets
        # Single precision, in batches of another size.
        assert found.nll[i] == pytest.approx(cross_entropy(logits, target).item(), rel=1e-4)
        hits = (logits.argmax(1) == batch.labels).float().mean().item()
        assert found.accuracy[i] == pytest.approx(hits)
        l2 = sum(p.square().sum().item() for p in model.parameters()) / 2
        assert found.l2[i] == pytest.approx(l2, rel=1e-5)
    np.testing.assert_allclose(found.loss, found.nll + 0.25 * found.l2)
    assert len(set(found.nll)) == len(NAMES)


def test_the_path_is_that_of_the_parameters_as_vectors(folder, subject):
    found = answer(Trajectory(max_images=1), subject)
    names = [name for name, _ in subject.backbone.named_parameters()]
    states = [load_file(folder / "snapshots" / f"{name}.safetensors") for name in NAMES]
    points = np.stack([np.concatenate([s[n].double().numpy().ravel() for n in names])
                       for s in states])  # fmt: skip
    centred = points - points.mean(0)
    _, values, directions = np.linalg.svd(centred, full_matrices=False)
    np.testing.assert_allclose(found.explained, (values**2 / (values**2).sum())[:2], rtol=1e-9)
    expected = (points - points[-1]) @ directions[:2].T
    np.testing.assert_allclose(np.abs(found.first), np.abs(expected[:, 0]), atol=1e-9)
    np.testing.assert_allclose(np.abs(found.second), np.abs(expected[:, 1]), atol=1e-9)
    steps = np.linalg.norm(np.diff(points, axis=0), axis=1)
    assert found.path_length == pytest.approx(steps.sum(), rel=1e-9)
    assert found.straightness == pytest.approx(
        np.linalg.norm(points[-1] - points[0]) / steps.sum(), rel=1e-9
    )
    assert found.turning == pytest.approx(found.turn[1:].sum())


def test_partials_in_any_order(subject):
    probe = Trajectory(max_images=5)
    partials = parts(probe, subject)
    forth = probe.combine(subject.anatomy, partials)
    assert forth == probe.combine(subject.anatomy, partials[::-1])
    assert forth == probe.combine(subject.anatomy, [partials[i] for i in (2, 4, 0, 3, 1)])


def test_a_run_keeps_the_subject_as_it_was_and_finds_its_answer_again(tmp_path, subject):
    """A weight decay of its own; all images; the run itself refuses weights that have changed."""
    probe = Trajectory(images="test", max_images=0, weight_decay=0.5)
    run = Run(tmp_path / "run")
    found = run.measure(probe, subject)
    assert found.images == 40
    assert found.weight_decay == 0.5
    np.testing.assert_allclose(found.loss, found.nll + 0.5 * found.l2)
    assert state_hash(subject.backbone) == subject.state
    assert len(list(tmp_path.rglob("trajectory.*/*.piece"))) == 5
    assert run.measure(probe, subject) == found
    run.files.close()


def test_weights_come_back_bit_for_bit_also_after_an_error():
    model = build().eval()
    with torch.no_grad():
        model.stem.weight[0, 0, 0] = torch.tensor([float("nan"), -0.0, 1e-45])
    before, tensors = state_hash(model), dict(model.named_parameters())
    other = drawn(7)
    with exchanged(model, other):
        assert all(torch.equal(v, other[k]) for k, v in model.state_dict().items())
        assert state_hash(model) != before
    assert state_hash(model) == before
    with pytest.raises(KeyError, match="stop"), exchanged(model, other):
        raise KeyError("stop")
    assert state_hash(model) == before
    assert all(model.get_parameter(name) is tensor for name, tensor in tensors.items())
    assert all(tensor.requires_grad for tensor in tensors.values())


def test_weights_that_do_not_fit_are_not_exchanged():
    model = build()
    before, state = state_hash(model), drawn(7)
    del state["stem.bias"]
    message = r"do not fit Tiny: 1 missing: stem\.bias\. Pass the complete"
    with pytest.raises(WeightsMismatch, match=message), exchanged(model, state):
        pass
    assert state_hash(model) == before


def test_a_subject_in_another_precision(folder):
    file = str(folder / "snapshots" / "end.safetensors")
    one, two = (
        load_subject(TINY, "cues", weights=file, images=20, precision=precision)
        for precision in ("float32", "float64")
    )
    found, double = (answer(Trajectory(images="test", max_images=9), s) for s in (one, two))
    np.testing.assert_allclose(double.nll, found.nll, rtol=1e-4)  # single precision
    np.testing.assert_array_equal(double.first, found.first)


def test_without_a_training_it_is_not_applicable(tmp_path, folder):
    alone = load_subject(TINY, "cues", images=20)
    message = (
        r"^needs the snapshots of a training; the weights of .*tiny.* do not come from a training "
        r"folder\. Name one with --probe trajectory:snapshots=FOLDER"
    )
    run = Run(tmp_path / "run")
    with pytest.raises(NotApplicable, match=message):
        run.measure(Trajectory(), alone)
    with pytest.raises(NotApplicable, match=message):
        key_of(Trajectory(), alone)
    assert run.measure(Trajectory(str(folder), max_images=1), alone).snapshots == NAMES
    run.files.close()


def test_snapshots_of_another_model_are_refused_before_anything_is_measured(tmp_path, subject):
    other = write(tmp_path / "other", {"1": drawn(0), "2": {"weight": torch.zeros(2)}})
    with pytest.raises(WeightsMismatch, match=r"'2' \(.*\) does not fit Tiny: \d+ missing: stem"):
        Trajectory(str(other)).pieces(subject)


def test_the_key_follows_the_snapshots_where_they_are_needed(tmp_path, subject):
    made = write(tmp_path / "made", {"1": drawn(0), "2": drawn(1)})
    probe = Trajectory(str(made))
    others, before = key_of(Variance(), subject), key_of(probe, subject)
    assert key_of(probe, subject) == before
    write(made, {"1": drawn(2)})
    assert key_of(probe, subject) != before
    assert key_of(Variance(), subject) == others


def test_a_training_that_has_not_ended_is_told(tmp_path):
    made = write_training(tmp_path / "training", warmup=0, epochs=20)
    write(made / "snapshots", {name: drawn(i) for i, name in enumerate(("init", "epoch-0010"))})
    weights = str(made / "snapshots" / "epoch-0010.safetensors")
    subject = load_subject(TINY, "cues", weights=weights, images=4)
    probe = Trajectory()
    outcome = perform(Task(Alone(probe), probe.pieces(subject)[0]), subject)
    assert outcome.notices == ("the final snapshot is missing: epoch-0010 is used instead",)


def test_settings_that_make_no_sense():
    for given, message in (
        ({"images": "train"}, "images is one of augmented, clean, test"),
        ({"weight_decay": -1.0}, "weight_decay is 0 or more"),
        ({"weight_decay": float("nan")}, "weight_decay is a finite number"),
        ({"max_images": -1}, "max_images is 0 or more"),
    ):
        with pytest.raises(ValueError, match=message):
            Trajectory(**given)


def test_the_withdrawn_figure_says_so():
    (polar,) = [f for f in fields(TrajectoryResult) if f.name == "angle"]
    assert "withdrawn" in polar.metadata["title"]
    assert "withdrawn" in Trajectory.reading
