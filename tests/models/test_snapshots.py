import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from retinoscope import load_model, load_subject
from retinoscope.core.errors import (
    NotApplicable,
    RetinoscopeError,
    UnreadableFile,
    WeightsMismatch,
)
from retinoscope.core.probe import Needs
from retinoscope.models import snapshots as module
from retinoscope.models.snapshots import (
    NoSnapshots,
    Snapshot,
    check_fit,
    find_snapshots,
    fingerprint,
    gram_matrix,
    read_snapshot,
    snapshots_of,
)
from retinoscope.zoo import folder_of
from run.elsewhere import TINY
from run.tiny import build
from train.by_hand import write_training


def write(folder, *names, model=None):
    """Files of that name, each with weights of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate(names):
        torch.manual_seed(i)
        state = (model or build()).state_dict()
        state = {
            k: v + torch.randn_like(v) if v.is_floating_point() else v for k, v in state.items()
        }
        save_file(state, folder / f"{name}.safetensors")
    return folder


def listed(folder):
    return [(one.name, one.epoch) for one in find_snapshots(folder)]


def test_a_training_folder_in_the_order_of_training(tmp_path):
    folder = write_training(tmp_path / "training", warmup=5, epochs=30)
    write(folder / "snapshots", "end", "epoch-0002", "epoch-0020", "init", "warmup", "other")
    write(folder / "checkpoints", "step-00001200")
    expected = [("init", 0), ("warmup", 5), ("epoch-0002", 7), ("epoch-0020", 25), ("end", 35)]
    assert listed(folder) == expected
    assert listed(folder / "snapshots") == expected
    first = find_snapshots(str(folder))[0]
    assert first.path == folder / "snapshots" / "init.safetensors"


def test_no_warm_up_is_no_second_beginning(tmp_path):
    folder = write_training(tmp_path / "training", warmup=0, epochs=3)
    write(folder / "snapshots", "end", "init", "warmup")
    assert listed(folder) == [("init", 0), ("end", 3)]
    (folder / "snapshots" / "init.safetensors").unlink()
    assert listed(folder) == [("warmup", 0), ("end", 3)]


def test_any_folder_by_the_numbers_in_its_names(tmp_path):
    folder = write(tmp_path / "a", "epoch-10", "epoch-2", "epoch-1")
    (folder / ".hidden.safetensors").write_bytes(b"")
    assert listed(folder) == [("epoch-1", 1), ("epoch-2", 2), ("epoch-10", 10)]
    words = write(tmp_path / "b", "beta", "alpha", "model2")
    assert listed(words) == [("alpha", 0), ("beta", 1), ("model2", 2)]
    falling = write(tmp_path / "c", "a9", "b3")
    assert listed(falling) == [("a9", 0), ("b3", 1)]
    copied = write(tmp_path / "d", "end", "epoch-0010", "init", "warmup")
    assert [name for name, _ in listed(copied)] == ["init", "warmup", "epoch-0010", "end"]


def test_packaged_weights_begin_with_those_of_their_seed():
    found = find_snapshots(folder_of("micro_resnet"))
    assert [one.name for one in found] == ["init", "warmup", "end"]
    assert (found[0].path, found[0].seed, found[0].model) == (None, 0, "micro_resnet")
    assert found[0].epoch < found[1].epoch < found[2].epoch
    states = [read_snapshot(one) for one in found]
    assert states[0].keys() == states[2].keys()


def test_a_seed_that_gives_other_weights_is_refused(tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(folder_of("micro_resnet"), folder)
    (folder / "init.json").write_text('{"seed": 1, "weights": "0123456789ab"}')
    first = find_snapshots(folder)[0]
    with pytest.raises(WeightsMismatch, match=r"'init' does not come again: seed 1 gives micro_"):
        read_snapshot(first)


def test_a_folder_does_not_choose_what_code_runs(tmp_path):
    folder = write_training(tmp_path / "training", model=TINY)
    write(folder, "warmup", "end")
    (folder / "init.json").write_text('{"seed": 0, "weights": "0123456789ab"}')
    with pytest.raises(WeightsMismatch, match=r"which is code of its maker's and is not run"):
        read_snapshot(find_snapshots(folder)[0])


def test_folders_without_a_path(tmp_path):
    with pytest.raises(NoSnapshots, match=r"There is no folder '.*nowhere'"):
        find_snapshots(tmp_path / "nowhere")
    with pytest.raises(NoSnapshots, match="needs two or more: none"):
        find_snapshots(tmp_path)
    with pytest.raises(NoSnapshots, match=r"two or more: end\. Train with snapshots=10"):
        find_snapshots(write(write_training(tmp_path / "one"), "end"))
    broken = write(write_training(tmp_path / "broken"), "warmup", "end")
    (broken / "training.json").write_text('{"retinoscope training": 1, "recipe": {"model": "x"}}')
    with pytest.raises(UnreadableFile, match="does not say what is needed to order"):
        find_snapshots(broken)


def test_the_fingerprint_follows_the_files_and_not_the_folder(tmp_path):
    here = find_snapshots(write(tmp_path / "here", "1", "2"))
    there = find_snapshots(write(tmp_path / "there", "1", "2"))
    assert fingerprint(here) == fingerprint(there)
    renamed = find_snapshots(write(tmp_path / "renamed", "1", "3"))
    swapped = find_snapshots(write(tmp_path / "swapped", "2", "1"))
    seeds = [[Snapshot("init", 0, None, seed, "m", "h"), here[1]] for seed in (0, 1)]
    others = [fingerprint(one) for one in (here, renamed, swapped, here[:1], *seeds)]
    assert len(set(others)) == 6


def test_those_of_a_subject(tmp_path):
    folder = write_training(tmp_path / "training")
    write(folder / "snapshots", "init", "end")
    subject = load_subject(
        TINY, "cues", images=20, weights=str(folder / "snapshots" / "end.safetensors")
    )
    own = snapshots_of(subject, Needs(snapshots=""), fitting=True)
    assert [one.name for one in own] == ["init", "end"]
    other = write(tmp_path / "other", "1", "2")
    named = snapshots_of(subject, Needs(snapshots=str(other)))
    assert [one.name for one in named] == ["1", "2"]

    (folder / "snapshots" / "init.safetensors").unlink()
    with pytest.raises(
        NotApplicable, match=r"^needs the snapshots of a training\. .*holds too few"
    ):
        snapshots_of(subject, Needs(snapshots=""))
    with pytest.raises(NoSnapshots):  # asked for by name
        snapshots_of(subject, Needs(snapshots=str(folder)))


def test_a_snapshot_of_another_architecture(tmp_path):
    folder = write(tmp_path / "a", "1", "2")
    state = build().state_dict()
    state["head.weight"] = torch.zeros(7, 8)
    state["extra"] = state.pop("stem.bias")
    save_file(state, folder / "2.safetensors")
    found = find_snapshots(folder)
    message = (
        r"The snapshot '2' \(.*2\.safetensors\) does not fit Tiny: 1 missing: stem\.bias; 1 not in "
        r"the model: extra; 1 of another shape: head\.weight \(7, 8\) instead of \(10, 8\)\. Name "
        r"the folder of a training of this very model with --probe trajectory:snapshots=FOLDER"
    )
    for refuse in (check_fit, gram_matrix):
        with pytest.raises(WeightsMismatch, match=message):
            refuse(found, build())
    (folder / "2.safetensors").write_bytes(b"no weights at all")
    with pytest.raises(UnreadableFile, match="cannot be read as weights"):
        check_fit(found, build())


@pytest.mark.parametrize("held", [2**24, 100])
def test_inner_products_are_those_of_all_parameters_at_once(tmp_path, monkeypatch, held):
    """Whole tensors or some rows at a time; buffers are left out."""
    monkeypatch.setattr(module, "_HELD", held)
    model = build()
    model.scale = torch.nn.Parameter(torch.tensor(2.0))  # a tensor without rows
    found = find_snapshots(write(tmp_path / "a", "1", "2", "3", model=model))
    names = [name for name, _ in model.named_parameters()]
    vectors = np.stack([
        np.concatenate([state[name].double().numpy().ravel() for name in names])
        for state in map(read_snapshot, found)
    ])  # fmt: skip
    apart = vectors - vectors[-1]
    gram = gram_matrix(found, model)
    np.testing.assert_allclose(gram, apart @ apart.T, rtol=1e-12)
    assert not gram[-1].any()


def test_a_seed_and_its_file_have_the_same_inner_products(tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(folder_of("micro_resnet"), folder)
    drawn = find_snapshots(folder)
    save_file(read_snapshot(drawn[0]), folder / "init.safetensors")
    read = find_snapshots(folder)
    assert (drawn[0].path, read[0].path) == (None, folder / "init.safetensors")
    model = load_model("micro_resnet").model
    np.testing.assert_array_equal(gram_matrix(drawn, model), gram_matrix(read, model))


def test_a_common_shift_of_all_snapshots_changes_nothing(tmp_path):
    folder = write(tmp_path / "a", "1", "2", "3", model=build().double())
    before = gram_matrix(find_snapshots(folder), build())
    for one in find_snapshots(folder):
        state = {k: v + 1.25 if v.is_floating_point() else v for k, v in read_snapshot(one).items()}
        save_file(state, folder / f"{one.name}.safetensors")
    np.testing.assert_allclose(gram_matrix(find_snapshots(folder), build()), before, rtol=1e-12)


def test_weights_that_have_diverged_are_named(tmp_path):
    folder = write(tmp_path / "a", "1", "2", "3")
    state = read_snapshot(find_snapshots(folder)[1])
    state["down.weight"][0] = float("nan")
    save_file(state, folder / "2.safetensors")
    with pytest.raises(RetinoscopeError, match=r"snapshot '2' holds weights .* in down\.weight"):
        gram_matrix(find_snapshots(folder), build())


def test_epochs_count_the_warm_up_of_a_real_recipe():
    plain = json.loads((folder_of("micro_vit") / "training.json").read_text())["recipe"]
    last = find_snapshots(folder_of("micro_vit"))[-1]
    assert last.epoch == plain["warmup"] + plain["epochs"]
