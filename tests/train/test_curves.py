import json
import math

import numpy as np
import pytest

from retinoscope.core.errors import UnreadableFile
from retinoscope.plots import plot
from retinoscope.train.curves import LearningCurves, read_curves
from train.by_hand import ROWS, log, write_training
from train.by_hand import training as as_asked


def test_the_numbers_of_the_log(tmp_path):
    found = read_curves(write_training(tmp_path))
    assert found.epoch.tolist() == [0, 1, 2, 3]
    assert found.step.tolist() == [0, 40, 80, 120]
    assert found.splits == ("train", "test")
    np.testing.assert_array_equal(
        found.nll, [[math.nan, 2.1372, 1.8391, 1.7126], [2.3141, 1.9773, 1.5517, 1.2239]]
    )
    assert found.accuracy.tolist() == [0.1015, 0.2718, 0.4653, 0.5867]
    assert found.ece.tolist() == [0.0427, 0.0631, 0.0519, 0.0388]
    assert found.lr.tolist() == [0.0, 0.0625, 0.125, 0.03125]
    assert found.phases == ((2.0, "end of warm-up"),)
    assert found.planned == 3


def test_agrees_with_a_plain_loop_over_the_lines(tmp_path):
    draw = np.random.default_rng(0)
    names = ("lr", "nll_train", "accuracy", "nll", "ece")
    rows = [
        {"epoch": e, "step": 7 * e, "images": 50}
        | {name: None if draw.random() < 0.2 else draw.random() for name in names}
        for e in range(40)
    ]
    found = read_curves(write_training(tmp_path, rows))
    arrays = {"nll_train": found.nll[0], "nll": found.nll[1]} | {
        name: getattr(found, name) for name in ("lr", "accuracy", "ece")
    }
    for place, line in enumerate((tmp_path / "log.jsonl").read_text().splitlines()):
        row = json.loads(line)
        for name, array in arrays.items():
            assert math.isnan(array[place]) if row[name] is None else array[place] == row[name]


def test_neither_later_epochs_nor_the_order_of_keys_change_a_value(tmp_path):
    whole = read_curves(write_training(tmp_path / "whole"))
    turned = [dict(reversed(row.items())) for row in ROWS]
    assert read_curves(write_training(tmp_path / "turned", turned)) == whole
    part = read_curves(write_training(tmp_path / "part", ROWS[:3]))
    for name, array in part.arrays().items():
        np.testing.assert_array_equal(array, getattr(whole, name)[..., :3])
    assert part.protocol["weights"] == "recipe micro, seed 7, 2 of 3 epochs"
    assert whole.protocol["weights"] == "recipe micro, seed 7, 3 of 3 epochs"


def test_the_protocol_says_how_it_was_trained(tmp_path):
    said = read_curves(write_training(tmp_path, sam=0.05)).protocol
    expected = {
        "model": "tiny", "data": "cues", "split": "train", "images": 3840, "batch": 96, "seed": 7,
        "weight decay": 0.05, "precision": "float32", "tested on": "1000 images of test",
        "epochs": "2 of warm-up, then 1", "question": "How did it learn?",
        "augmentation": {"crop": 0.125, "flip": True, "mixup": 0.8, "smoothing": 0.1},
        "versions": {"retinoscope": "0.1.0", "torch": "2.15.0"},
    }  # fmt: skip
    assert {key: said[key] for key in expected} == expected
    assert said["recipe"]["name"] == "micro"
    assert said["recipe"]["sam"] == 0.05
    assert "need not lie below the test NLL" in said["reading"]


def test_without_images_to_test_on(tmp_path):
    none = dict.fromkeys(("accuracy", "nll", "ece", "images"))
    write_training(tmp_path, [row | none for row in ROWS])
    asked = as_asked()
    asked["data"]["test"] = None
    (tmp_path / "training.json").write_text(json.dumps(asked))
    found = read_curves(tmp_path)
    assert np.isnan(found.nll[1]).all()
    assert np.isnan(found.accuracy).all()
    assert found.nll[0, 1] == 2.1372
    assert found.protocol["tested on"] == "nothing"


def test_without_a_warm_up_nothing_is_marked(tmp_path):
    assert read_curves(write_training(tmp_path, warmup=0)).phases == ()


def test_saved_and_read_back_equal(tmp_path):
    found = read_curves(write_training(tmp_path / "training"))
    found.save(tmp_path / "saved")
    assert LearningCurves.load(tmp_path / "saved") == found


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("log.jsonl", None, "log.jsonl' cannot be read as a log: .*No such file"),
        ("log.jsonl", b"", "holds no epoch yet"),
        ("log.jsonl", log().encode()[:-30], "Line 4 of .* is damaged: "),
        ("log.jsonl", b"\xff\xfe", "cannot be read as a log"),
        ("log.jsonl", b"[]\n", "Line 1 of .* is damaged: list indices"),
        ("log.jsonl", b'{"epoch": 0}\n', "Line 1 of .* is damaged: it has no step"),
        ("log.jsonl", log([ROWS[0], ROWS[0]]).encode(), "Line 2 .* epoch 0 comes after 0"),
        ("log.jsonl", log([ROWS[0] | {"nll": "low"}]).encode(), "nll is 'low', not a number"),
        ("log.jsonl", log([ROWS[0] | {"nll": True}]).encode(), "nll is True, not a number"),
        ("log.jsonl", log([ROWS[0] | {"step": 1.5}]).encode(), r"step is 1\.5, not a count"),
        ("log.jsonl", log([ROWS[0] | {"epoch": None}]).encode(), "epoch is None, not a count"),
        ("training.json", None, "cannot be read as that of a training: .*No such file"),
        ("training.json", b"{", "cannot be read as that of a training"),
        ("training.json", b"[]", "cannot be read as that of a training"),
        ("training.json", b'{"x": NaN}', "NaN is no value"),
        ("training.json", b"{}", "is of the form None, but this version reads .* form 1"),
        ("training.json", b'{"retinoscope training": 2}', "is of the form 2"),
        ("training.json", b'{"retinoscope training": 1}', "lacks what it should say.*'recipe'"),
    ],
)
def test_damage_is_said_by_name(tmp_path, name, content, says):
    write_training(tmp_path)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UnreadableFile, match=says) as raised:
        read_curves(tmp_path)
    assert "same command" in str(raised.value)


def test_a_training_that_went_wrong_can_still_be_read(tmp_path):
    """Python writes what is no number as NaN and Infinity; such a log is not damaged."""
    rows = [ROWS[0], ROWS[1] | {"nll": math.nan, "nll_train": math.inf}]
    found = read_curves(write_training(tmp_path, rows))
    assert math.isnan(found.nll[1, 1])
    assert found.nll[0, 1] == math.inf


def test_figures_for_papers_show_the_results_own_numbers(tmp_path):
    found = read_curves(write_training(tmp_path))
    ax = plot(found)
    lines = {line.get_label(): line for line in ax.lines}
    for split, values in zip(found.splits, found.nll, strict=True):
        np.testing.assert_array_equal(lines[split].get_xdata(), [0, 1, 2, 3])
        np.testing.assert_array_equal(lines[split].get_ydata(), values)
    assert list(ax.lines[0].get_xdata()) == [2.0, 2.0]  # the end of the warm-up
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["train", "test"]
    np.testing.assert_array_equal(
        plot(found, field="accuracy").lines[-1].get_ydata(), found.accuracy
    )
