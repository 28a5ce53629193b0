import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from retinoscope.core.errors import RunFolderError, SurgeryRefused, WrongInput
from retinoscope.core.settings import WrongSetting
from retinoscope.models.built_file import Construction, write_built
from retinoscope.models.load import load_model
from retinoscope.train.images import find_images
from retinoscope.train.recipe import Recipe
from retinoscope.train.search import candidate
from retinoscope.train.search import folder as search_folder
from retinoscope.train.search.base import find_base
from retinoscope.train.search.search import Search, search, walk
from retinoscope.train.student import Student, load_student
from train.search.tiny_cnn import RECIPE, TINY_CNN, write_images

ANSWER = ("result.json", "result.npz", "winner.safetensors")

PAPER = {
    (0, 0, 0, 0): 82.48, (0, 0, 0, 1): 83.45, (0, 0, 0, 2): 83.66, (0, 0, 1, 2): 83.77,
    (0, 0, 2, 2): 83.52, (0, 1, 1, 2): 84.02, (0, 2, 1, 2): 83.39, (1, 1, 1, 2): 83.80,
}  # fmt: skip
"""Fig. 12a: accuracy on CIFAR-100 by the attention units in each stage of ResNet-50."""


def plans(room, score, most=None):
    return [tried.plan for tried in walk(room, score, most)]


def winner(room, score, most=None):
    return [tried.plan for tried in walk(room, score, most) if tried.kept][-1]


def test_the_papers_search():
    """The rule, given the paper's accuracies, tries its networks in its order and ends with its."""
    tried = list(walk((1, 2, 3, 2), PAPER.__getitem__))
    assert [one.plan for one in tried] == list(PAPER)
    assert [one.kept for one in tried] == [True, True, True, True, False, True, False, False]
    assert [one.score for one in tried] == list(PAPER.values())


def test_known_walks():
    assert plans((1, 0, 2), sum) == [(0, 0, 0), (0, 0, 1), (0, 0, 2), (1, 0, 2)]
    assert plans((2, 2, 2), lambda plan: 0) == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]
    assert plans((2, 2, 2), lambda plan: plan[1]) == [
        (0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 2, 0), (1, 2, 0)
    ]  # fmt: skip
    assert winner((2, 2, 2), lambda plan: plan[1]) == (0, 2, 0)
    assert plans((0, 0), sum) == [(0, 0)]


def test_no_more_are_placed_than_asked_for():
    assert plans((2, 2), sum, most=3) == [(0, 0), (0, 1), (0, 2), (1, 2)]
    assert plans((2, 2), lambda plan: -sum(plan), most=1) == [(0, 0), (0, 1), (1, 0)]


def test_agrees_with_a_naive_twin():
    """The rule once more, as a list of places from the end that are crossed out stage by stage."""
    draw = np.random.default_rng(0)
    for _ in range(50):
        room = tuple(draw.integers(0, 4, 3).tolist())
        scores = {plan: draw.integers(0, 4) for plan in np.ndindex(*(n + 1 for n in room))}
        best, refused = (0, 0, 0), set()
        expected = [best]
        for stage in [2] * room[2] + [1] * room[1] + [0] * room[0]:
            if stage in refused:
                continue
            plan = tuple(n + (place == stage) for place, n in enumerate(best))
            expected.append(plan)
            if scores[plan] > scores[best]:
                best = plan
            else:
                refused.add(stage)
        assert plans(room, scores.__getitem__) == expected
        assert winner(room, scores.__getitem__) == best


def test_only_the_order_of_scores_matters():
    for score in (PAPER.__getitem__, lambda plan: 3 * PAPER[plan] - 7):
        assert winner((1, 2, 3, 2), score) == (0, 1, 1, 2)


class Killed(BaseException):
    pass


class Heard:
    """Notes what it is told, and may end the process at some epoch."""

    def __init__(self, kill=None):
        self.said, self.kill = [], kill

    def __getattr__(self, what):
        def told(*about):
            self.said.append((what, *about))
            if what == "epoch" and not about[2] and about[1]["epoch"] == 1:
                candidates = [one for one in self.said if one[0] == "candidate"]
                if self.kill == len(candidates):
                    raise Killed

        return told


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("images") / "two")


@pytest.fixture(scope="module")
def done(data, tmp_path_factory):
    """A search that was never stopped: its folder, what came out, and what was told."""
    out, heard = tmp_path_factory.mktemp("search") / "out", Heard()
    return out, search(TINY_CNN, Recipe(data=data, **RECIPE), out, seeds=2, listener=heard), heard


def test_what_comes_out_is_what_the_trainings_say(done):
    out, found, _ = done
    room = (1,)
    means = {}
    for place, plan in enumerate(found.plans):
        rows = []
        for column, seed in enumerate((3, 4)):
            folder = out / "candidates" / "-".join(map(str, plan)) / f"seed-{seed}"
            last = json.loads((folder / "log.jsonl").read_text().splitlines()[-1])
            training = json.loads((folder / "training.json").read_text())
            assert training["data"]["test"]["split"] == "train, held out"
            assert last["images"] == 4  # a tenth of 24 of each class
            assert found.held_out[place, column] == last["accuracy"]
            assert found.parameters[place] == training["model"]["parameters"]
            rows.append(last["accuracy"])
        means[plan] = np.mean(rows)
        assert found.held_out_mean[place] == means[plan]
        assert found.held_out_deviation[place] == pytest.approx(np.std(rows, ddof=1))
    assert found.plans == tuple(plans(room, means.__getitem__))
    assert found.winner == winner(room, means.__getitem__)
    assert found.msas.tolist() == [sum(plan) for plan in found.plans]
    assert found.seeds == (3, 4)
    assert Search.load(out, "result") == found


def test_the_test_split_is_scored_by_the_last_weights(done, data):
    out, found, _ = done
    place = len(found.plans) - 1
    end = out / search_folder.place(found.plans[place], 4) / "snapshots/end.safetensors"
    loaded = load_model(TINY_CNN, weights=end)
    _, images = find_images(Recipe(data=data, **RECIPE), loaded.preprocessing, (3, 2))
    student = Student(loaded)
    with torch.inference_mode():
        right = [
            student(images.prepared(i)[None] / 255).argmax().item() == images.labels[i]
            for i in range(len(images))
        ]
    assert found.protocol["tested on"] == len(right) == 14
    assert found.test[place, 1] == np.mean(right)


def test_the_winner_is_its_best_seed(done):
    out, found, _ = done
    row = found.held_out[found.plans.index(found.winner)]
    assert found.winner_seed == 3 + int(row[1] > row[0])
    assert found.winner == max(
        (plan for plan, kept in zip(found.plans, found.kept, strict=True) if kept), key=sum
    )
    way = load_model(TINY_CNN, weights=out / "winner.safetensors").construction
    assert way.trained
    assert way.surgeries == (
        (f"build_up:msa_per_stage={found.winner}",) if any(found.winner) else ()
    )


def test_listeners_hear_of_everything_once(done):
    _, found, heard = done
    kinds = [what for what, *_ in heard.said]
    (assumed,) = [text for what, text, *_ in heard.said if "does not specify" in str(text)]
    assert "mean and std of ImageNet" in assumed
    first, second = heard.said[:2]
    assert first == ("say", assumed)
    assert second == ("begin", 2, 4)  # one room and the base; two seeds of two epochs
    assert [one[2] for one in heard.said if one[0] == "candidate"] == list(found.plans)
    assert kinds.count("epoch") == len(found.plans) * 2 * 3  # epoch 0 as well
    assert kinds.count("scored") == len(found.plans)


def test_killed_again_and_again_it_ends_with_the_same_bytes(done, data, tmp_path, monkeypatch):
    whole, found, _ = done
    out, recipe = tmp_path / "here", Recipe(data=data, **RECIPE)
    shutil.copytree(whole, out, ignore=shutil.ignore_patterns("1", *ANSWER))

    def killed(*_):
        raise Killed

    def go_on(**more):
        return search(TINY_CNN, recipe, out, seeds=2, **more)

    with monkeypatch.context() as patch:
        patch.setattr(candidate, "_tested", killed)
        with pytest.raises(Killed):
            go_on()
    with pytest.raises(Killed):
        go_on(listener=Heard(kill=2))
    assert (out / "candidates/1/seed-3/scores.json").is_file()
    assert not (out / "result.json").exists()
    # Moved meanwhile: the trainings name their first weights by where they lie.
    out = Path(shutil.move(out, tmp_path / "there"))
    heard = Heard()
    assert go_on(listener=heard) == found
    assert {one[1] for one in heard.said if one[0] == "epoch"} == {4}  # nothing is done twice
    for name in ANSWER:
        assert (out / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.proof
def test_another_process_gives_the_same(done, data, tmp_path):
    whole, found, _ = done
    # One training is enough to see it; the others are there.
    shutil.copytree(
        whole, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("seed-4", *ANSWER)
    )
    shutil.copytree(whole / "candidates/1/seed-4", tmp_path / "candidates/1/seed-4")
    heard = Heard()
    recipe = Recipe(data=data, **RECIPE)
    assert search(TINY_CNN, recipe, tmp_path, seeds=2, jobs=2, listener=heard) == found
    for name in ANSWER:
        assert (tmp_path / name).read_bytes() == (whole / name).read_bytes()
    rows = [(one[1], one[2]["epoch"]) for one in heard.said if one[0] == "epoch"]
    assert rows == [(4, epoch) for epoch in (0, 1, 2)]


def test_attention_drops_as_the_recipe_says(data, tmp_path):
    """Candidates of timm's models are built with stochastic depth, and trained with it."""
    recipe = Recipe(data=data, drop_path=0.25, **RECIPE)
    base, recipe = find_base("micro_resnet:num_classes=2", recipe, None)
    base.built((0, 0, 0, 1), seed=3).save(tmp_path / "built.safetensors")
    loaded, way = load_student(replace(recipe, weights=str(tmp_path / "built.safetensors")))
    assert way.model == "micro_resnet:num_classes=2,drop_path_rate=0.25"
    assert way.surgeries == ("build_up:msa_per_stage=(0, 0, 0, 1)",)
    rates = [getattr(m, "drop_prob", 0) or 0 for m in loaded.model.layer4[-1].modules()]
    assert type(loaded.model.layer4[-1]).__name__ == "AttentionBlock"
    assert max(rates) == pytest.approx(0.25)


def test_a_built_file_is_built_further(data, tmp_path):
    file, name = tmp_path / "base.safetensors", "micro_resnet:num_classes=2"
    way = Construction(name, ("mc_dropout",), (32, 32), "none")
    write_built(file, load_model(name, pretrained=False).model, way)
    recipe = Recipe(data=data, drop_path=0.25, **RECIPE)
    base, trained = find_base(str(file), recipe, None)
    assert base.name == "micro_resnet:num_classes=2,drop_path_rate=0.25"
    assert base.surgeries == ("mc_dropout",)
    assert trained.model == "micro_resnet:num_classes=2"


def test_another_search_is_refused(done, data):
    out, *_ = done
    recipe = Recipe(data=data, **(RECIPE | {"lr": 0.5}))
    with pytest.raises(RunFolderError, match=r"another search.*recipe\.lr: 0\.01 → 0\.5; seeds: 2"):
        search(TINY_CNN, recipe, out, seeds=3)


def test_folders_of_others_are_refused(tmp_path, data):
    recipe = Recipe(data=data, **RECIPE)
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(RunFolderError, match="not a search folder"):
        search(TINY_CNN, recipe, tmp_path)
    with pytest.raises(RunFolderError, match="is a file"):
        search(TINY_CNN, recipe, tmp_path / "thesis.tex")
    (tmp_path / "search.json").write_text("{}")
    with pytest.raises(RunFolderError, match="another version"):
        search(TINY_CNN, recipe, tmp_path)
    (tmp_path / "search.json").write_text("{")
    with pytest.raises(RunFolderError, match="is damaged"):
        search(TINY_CNN, recipe, tmp_path)


def test_one_process_at_a_time(tmp_path):
    with (
        search_folder.claimed(tmp_path, {}),
        pytest.raises(RunFolderError, match="another process has a search there"),
        search_folder.claimed(tmp_path, {}),
    ):
        pass


def test_what_no_search_can_have(tmp_path, data, monkeypatch):
    recipe = Recipe(data=data, **RECIPE)
    for wrong in ({"seeds": 0}, {"most": 0}, {"jobs": 0}):
        with pytest.raises(WrongInput, match=f"{next(iter(wrong))} of 1 or more; got 0"):
            search(TINY_CNN, recipe, tmp_path, **wrong)
    for wrong in ({"pretrained": True}, {"weights": "a.safetensors"}):
        with pytest.raises(WrongSetting, match="begin with random weights"):
            search(TINY_CNN, Recipe(**wrong), tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(WrongInput, match="without torchrun"):
        search(TINY_CNN, recipe, tmp_path)


def test_a_mistake_does_not_mark_the_folder(tmp_path, data):
    wrong = Recipe(data=data, **(RECIPE | {"batch": 999}))
    with pytest.raises(WrongInput, match="batch of 999 cannot be filled"):
        search(TINY_CNN, wrong, tmp_path)
    with pytest.raises(
        SurgeryRefused, match=r"no room for attention in micro_vit.*\(AMAMAMAMAMAM\)"
    ):
        search("micro_vit:num_classes=2", Recipe(data=data, **RECIPE), tmp_path)
    assert not (tmp_path / "search.json").exists()
