import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import cross_entropy

from retinoscope import dissect
from retinoscope.core.errors import RunFolderError, UnknownModel
from retinoscope.core.preprocessing import Preprocessing
from retinoscope.core.settings import WrongSetting
from retinoscope.models.load import load_model
from retinoscope.models.normalise import Normalise
from retinoscope.report.build import build_report
from retinoscope.train.feed import Feed
from retinoscope.train.images import find_images
from retinoscope.train.train import train_model
from retinoscope.train.training import Diverged

EVERYTHING = {
    "randaugment": "rand-m9-n2-mstd1.0", "erasing": 0.3, "mixup": 0.8, "cutmix": 1.0,
    "smoothing": 0.1, "drop_path": 0.3, "ema": 0.9, "sam": 0.05, "ensemble": 2, "clip": 1.0,
    "accumulate": 2, "snapshots": 1,
}  # fmt: skip


def contents(folder: Path) -> dict[str, bytes]:
    """What must be the same however often a training was stopped."""
    files = [folder / "log.jsonl", *sorted((folder / "snapshots").iterdir())]
    return {file.name: file.read_bytes() for file in files}


def test_a_training_leaves_a_log_and_models(quick, tmp_path, heard):
    recipe = quick(epochs=4, snapshots=2, fraction=400 / 50_000, lr=0.02)
    done = train_model(recipe, tmp_path, name="quick", listeners=[heard])
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert list(done.rows) == rows == heard.rows
    assert [row["epoch"] for row in rows] == [0, 1, 2, 3, 4, 5]
    assert [row["step"] for row in rows] == [0, 20, 40, 60, 80, 100]
    assert rows[0]["nll_train"] is None
    assert rows[1]["lr"] == pytest.approx(0.02)
    assert rows[-1]["nll_train"] < rows[1]["nll_train"]
    assert rows[-1]["images"] == 40
    assert heard.steps == list(range(1, 101))
    names = {file.stem for file in (tmp_path / "snapshots").iterdir()}
    assert names == {"init", "warmup", "epoch-0002", "end"}
    assert not (tmp_path / "checkpoints").exists()
    assert done.finished
    described = json.loads((tmp_path / "training.json").read_text())
    assert described["name"] == "quick"
    assert described["steps"] == {"total": 100, "per_epoch": 20, "warmup": 20}
    assert described["data"]["train"]["images"] == 400
    assert described["data"]["test"]["split"] == "test"


def test_the_anatomy_is_written_at_the_end(quick, tmp_path, exports):
    """An export takes as long as many steps, so none comes before the first of them."""
    recipe = quick()
    train_model(recipe, tmp_path, until=2)
    assert exports == []
    assert not (tmp_path / "anatomy.json").exists()
    build_report(tmp_path)
    train_model(recipe, tmp_path)
    assert len(exports) == 1
    loaded = load_model(recipe.model, pretrained=False, seed=recipe.seed)
    found = dissect(loaded.model, (32, 32), name=recipe.model)
    expected = replace(found, weights=loaded.weights).to_json()
    assert (tmp_path / "anatomy.json").read_text() == expected
    train_model(recipe, tmp_path)  # nothing is left to do
    assert len(exports) == 2  # with the one of this test


def test_snapshots_are_models(tmp_path, quick):
    recipe = quick(model="micro_vit", epochs=1, warmup=0, fraction=40 / 50_000)
    done = train_model(recipe, tmp_path)
    init = load_model(str(tmp_path / "snapshots" / "init.safetensors"))
    fresh = load_model("micro_vit", pretrained=False, seed=0).model.state_dict()
    assert all(torch.equal(v, fresh[k]) for k, v in init.model.state_dict().items())
    assert init.trained is False
    end = load_model(str(done.end))
    assert end.trained is True
    assert not torch.equal(end.model.head.weight, init.model.head.weight)
    assert end.preprocessing.size == (32, 32)
    assert end.history == tmp_path


def test_it_is_the_loop_that_anyone_would_write(quick, tmp_path):
    """Batches of the feed, but model, loss, clipping, rate and AdamW by hand, in float64."""
    recipe = quick(precision="float64", clip=0.5, smoothing=0.1)
    done = train_model(recipe, tmp_path)
    loaded = load_model(recipe.model, pretrained=False)
    net = loaded.model.double().train()
    normalise = Normalise(loaded.preprocessing.mean, loaded.preprocessing.std).double()
    images, _ = find_images(recipe, Preprocessing(size=(32, 32)), (3, 10))
    feed = Feed(images, recipe.augmentation, 4, 20, 0)
    optimiser = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.05)
    rates = [0.01 * (n + 1) / 4 for n in range(4)] + [0.01] * 4 + [0.005] * 4
    losses = []
    for step, rate in enumerate(rates):
        portion = feed[step]
        logits = net(normalise(portion.images.double()))
        # The target is smoothed in float32 in training.
        hot = torch.nn.functional.one_hot(portion.labels, 10).float() * 0.9 + 0.1 / 10
        loss = cross_entropy(logits, hot.double())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimiser.param_groups[0]["lr"] = rate
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())
    for row, start in zip(done.rows[1:], (0, 4, 8), strict=True):
        # Targets are rounded to float32 on either side, in another order.
        assert row["nll_train"] == pytest.approx(np.mean(losses[start : start + 4]), rel=1e-6)
    state = load_model(recipe.model, weights=done.end).model.state_dict()
    for key, value in net.state_dict().items():
        torch.testing.assert_close(state[key].double(), value.double(), rtol=1e-4, atol=1e-5)


class Stop(Exception):
    """Stands for a kill."""


def stopped_at(step: int):
    class Listener:
        def begin(self, started): ...
        def epoch(self, row): ...
        def say(self, text): ...
        def end(self): ...
        def step(self, done):
            if done == step:
                raise Stop

    return Listener()


@pytest.mark.parametrize(
    ("every", "more"),
    [(0.0, {}), (1e9, {}), (0.0, {"channels_last": True}), (0.0, {"optimiser": "lamb"})],
    ids=["each step", "never", "channels last", "lamb"],
)
def test_stopped_anywhere_it_ends_with_the_same_bytes(quick, tmp_path, every, more):
    recipe = quick("build:img_size=32,dropout=0.2", **EVERYTHING, **more)
    train_model(recipe, tmp_path / "alone")
    expected = contents(tmp_path / "alone")
    for step in (2, 4, 7, 12):
        with pytest.raises(Stop):
            train_model(
                recipe, tmp_path / "killed", listeners=[stopped_at(step)], checkpoint_every=every,
                workers=step % 2,
            )  # fmt: skip
    done = train_model(recipe, tmp_path / "killed", checkpoint_every=every)
    assert contents(done.folder) == expected
    if not more:
        other = quick("build:img_size=32,dropout=0.2", **EVERYTHING, seed=1)
        train_model(other, tmp_path / "other")
        assert contents(tmp_path / "other") != expected


def test_it_goes_on_from_where_it_was_asked_to_stop(quick, tmp_path, heard):
    recipe = quick()
    train_model(recipe, tmp_path / "alone")
    first = train_model(recipe, tmp_path / "parts", until=6)
    assert not first.finished
    assert first.end is None
    done = train_model(recipe, tmp_path / "parts", listeners=[heard])
    assert done.finished
    assert heard.started[0].done == 6
    assert heard.steps == list(range(7, 13))
    assert [row["epoch"] for row in heard.rows] == [0, 1, 2, 3]
    assert contents(tmp_path / "parts") == contents(tmp_path / "alone")


def test_what_is_done_is_not_done_again(quick, tmp_path, heard):
    recipe = quick()
    first = train_model(recipe, tmp_path)
    again = train_model(recipe, tmp_path, listeners=[heard])
    assert heard.steps == []
    assert (again.rows, again.end) == (first.rows, first.end)


def test_a_torn_checkpoint_is_said_and_the_one_before_is_used(quick, tmp_path, heard):
    recipe = quick()
    train_model(recipe, tmp_path / "alone")
    with pytest.raises(Stop):
        train_model(recipe, tmp_path / "torn", listeners=[stopped_at(8)], checkpoint_every=0)
    _, newest = sorted((tmp_path / "torn" / "checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:-100])
    train_model(recipe, tmp_path / "torn", listeners=[heard])
    assert any("is damaged" in said for said in heard.said)
    assert heard.started[0].done == 6
    assert contents(tmp_path / "torn") == contents(tmp_path / "alone")


def test_parts_of_a_batch_give_the_gradient_of_the_whole(quick, tmp_path):
    """Without batch norm, in float64; Mixup is of the whole batch."""
    ends = []
    for parts in (1, 4):
        recipe = quick("smooth:img_size=32", precision="float64", accumulate=parts, mixup=0.8)
        done = train_model(recipe, tmp_path / str(parts))
        ends.append(load_model(recipe.model, weights=done.end).model.double().state_dict())
    for key in ends[0]:
        # Saved in float64, loaded into float32: a rounding apart at most.
        torch.testing.assert_close(ends[0][key], ends[1][key], rtol=1e-6, atol=1e-7)


def test_a_changed_recipe_is_refused_with_the_difference(quick, tmp_path):
    train_model(quick(), tmp_path, until=1)
    with pytest.raises(RunFolderError, match=r"another recipe: lr: 0.01 → 0.5; augmentation.mixup"):
        train_model(quick(lr=0.5, mixup=0.8), tmp_path)


def test_folders_of_others_are_refused(quick, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunFolderError, match="is a file, but a"):
        train_model(quick(), tmp_path / "file")
    with pytest.raises(RunFolderError, match="contains other files"):
        train_model(quick(), tmp_path)
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text("{}")
    with pytest.raises(RunFolderError, match="not a training folder"):
        train_model(quick(), run)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_belongs_to_one_process_at_a_time(quick, tmp_path):
    from retinoscope.train.folder import TrainingFolder

    held = TrainingFolder(tmp_path, quick().to_plain())
    with pytest.raises(RunFolderError, match="another process has a training there"):
        train_model(quick(), tmp_path)
    held.close()
    train_model(quick(), tmp_path, until=1)


def test_other_data_under_the_same_name_are_refused(quick, tmp_path):
    photos = tmp_path / "photos"
    for split in ("train", "test"):
        for label in ("a", "b"):
            (photos / split / label).mkdir(parents=True)
            for n in range(4):
                pixels = np.full((32, 32, 3), 20 * n + len(label), np.uint8)
                Image.fromarray(pixels).save(photos / split / label / f"{n}.png")
    recipe = quick(
        "build:img_size=32,num_classes=2", data=str(photos), batch=4, fraction=1.0, scored=0
    )
    train_model(recipe, tmp_path / "out", until=1)
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(photos / "train" / "a" / "1.png")
    with pytest.raises(RunFolderError, match="The data is no longer that which"):
        train_model(recipe, tmp_path / "out")


def test_a_folder_of_an_older_version_goes_on(quick, tmp_path):
    recipe = quick(scored=12)
    train_model(recipe, tmp_path, until=2)
    described = json.loads((tmp_path / "training.json").read_text())
    test = described["data"]["test"]
    assert (test["balanced"], test.pop("choice")) == (False, "1 or 2 of every class")
    test["balanced"] = True  # as it was once said of every choice
    (tmp_path / "training.json").write_text(json.dumps(described))
    assert train_model(recipe, tmp_path, until=3).rows


def test_a_full_disk_is_said_and_what_was_there_is_kept(quick, tmp_path, monkeypatch):
    recipe = quick()
    train_model(recipe, tmp_path / "alone")
    train_model(recipe, tmp_path / "full", until=6)
    sync, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFolderError, match=r"is full\. Results finished before are kept"):
        train_model(recipe, tmp_path / "full")
    assert calls
    assert not list((tmp_path / "full").rglob("*.unfinished"))
    monkeypatch.setattr(os, "fsync", sync)
    train_model(recipe, tmp_path / "full")
    assert contents(tmp_path / "full") == contents(tmp_path / "alone")


def test_a_loss_that_is_no_number_stops_with_step_checkpoint_and_hint(quick, tmp_path):
    recipe = quick(lr=1e30, warmup=0, optimiser="momentum")
    with pytest.raises(
        Diverged, match=r"at step \d of 8.*checkpoint is .*step-0000000\d.*lower lr"
    ):
        train_model(recipe, tmp_path, checkpoint_every=0)
    kept = list((tmp_path / "checkpoints").iterdir())
    assert kept
    with pytest.raises(Diverged, match="No checkpoint was written"):
        train_model(recipe, tmp_path / "without")


def test_without_a_test_split_there_are_no_scores(quick, tmp_path):
    photos = tmp_path / "photos" / "train"
    for label in ("a", "b"):
        (photos / label).mkdir(parents=True)
        for n in range(4):
            Image.fromarray(np.full((32, 32, 3), 20 * n, np.uint8)).save(
                photos / label / f"{n}.png"
            )
    recipe = quick(
        "build:img_size=32,num_classes=2", data=str(photos.parent), batch=4, fraction=1.0
    )
    done = train_model(recipe, tmp_path / "out")
    assert [row["accuracy"] for row in done.rows] == [None] * 4
    assert done.rows[-1]["nll_train"] > 0


@pytest.mark.parametrize(
    "settings",
    [
        {"precision": "bfloat16"}, {"channels_last": True}, {"optimiser": "lamb"},
        {"decayed": "matrices", "schedule": "steps", "milestones": (1,)}, {"ema": 0.5},
        {"compile": True},
    ],
    ids=str,
)  # fmt: skip
def test_options_train(quick, tmp_path, settings, monkeypatch):
    compiled = torch.compile
    # The default backend needs a compiler; that the option is used is what is asked here.
    used = []
    monkeypatch.setattr(
        torch, "compile", lambda net: used.append(1) or compiled(net, backend="eager")
    )
    done = train_model(quick(**settings), tmp_path)
    assert done.rows[-1]["nll_train"] < 3
    assert bool(used) == settings.get("compile", False)
    init, end = (
        load_model(quick().model, weights=tmp_path / "snapshots" / f"{name}.safetensors").model
        for name in ("init", "end")
    )
    assert not torch.equal(init.head.weight, end.head.weight)


def test_what_cannot_be_random_is_not_averaged(quick, tmp_path):
    with pytest.raises(WrongSetting, match="nothing in it is random"):
        train_model(quick(ensemble=2), tmp_path)


def test_branches_that_do_not_drop_are_said(quick, tmp_path):
    with pytest.raises(WrongSetting, match=r"stochastic depth of 0, not 0\.1 as the recipe says"):
        train_model(quick("smooth:img_size=32", drop_path=0.1), tmp_path)
    with pytest.raises(WrongSetting, match=r"micro_vgg would be trained.*Say drop_path=0"):
        train_model(quick(model="micro_vgg", drop_path=0.1), tmp_path / "vgg")


def test_a_model_that_does_not_exist_is_said_before_anything_is_written(quick, tmp_path):
    with pytest.raises(UnknownModel, match="Did you mean"):
        train_model(quick(model="micro_resnets"), tmp_path / "out")


def test_global_generators_are_left_as_they_were(quick, tmp_path):
    import random

    torch.manual_seed(5)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    train_model(quick(**EVERYTHING), tmp_path, until=3)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.random.get_state()[1].tolist() == before[2]  # noqa: NPY002


def test_a_recipe_that_cannot_be_followed_does_not_mark_the_folder(quick, tmp_path):
    with pytest.raises(WrongSetting, match="no optimiser 'adamx'"):
        train_model(quick(optimiser="adamx"), tmp_path)
    assert not (tmp_path / "training.json").exists()
    train_model(quick(), tmp_path, until=1)


def test_snapshots_are_counted_behind_the_warm_up(quick, tmp_path):
    train_model(quick(warmup=2, epochs=3, snapshots=1), tmp_path)
    names = {file.stem for file in (tmp_path / "snapshots").iterdir()}
    assert names == {"init", "warmup", "epoch-0001", "epoch-0002", "end"}


def test_to_stop_before_where_it_is_changes_nothing(quick, tmp_path):
    train_model(quick(), tmp_path, until=5)
    train_model(quick(), tmp_path, until=3)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [
        "step-00000005.safetensors"
    ]


def test_an_image_that_cannot_be_read_does_not_move_the_epochs(quick, tmp_path, heard):
    photos = tmp_path / "photos" / "train"
    for label in ("a", "b"):
        (photos / label).mkdir(parents=True)
        for n in range(4):
            Image.fromarray(np.full((32, 32, 3), 9 * n, np.uint8)).save(photos / label / f"{n}.png")
    (photos / "a" / "2.png").write_bytes(b"no image")
    recipe = quick(
        "build:img_size=32,num_classes=2", data=str(photos.parent), batch=8, fraction=1.0
    )
    done = train_model(recipe, tmp_path / "out", listeners=[heard])
    assert [row["step"] for row in done.rows] == [0, 1, 2, 3]
    assert any("2.png" in text for text in heard.said)


def test_one_image_is_too_few_for_a_batch_norm(tmp_path, quick):
    recipe = quick("narrow:img_size=32", accumulate=20)
    with pytest.raises(WrongSetting, match="needs more than one image at a time; it gets 20 in 20"):
        train_model(recipe, tmp_path)


def test_a_tag_without_its_weights_is_said(quick, tmp_path):
    with pytest.raises(WrongSetting, match="names weights, but the training would begin with"):
        train_model(quick(model="micro_vit.cues"), tmp_path)
