import os
import pickle
import random

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from retinoscope.core.errors import UnreadableFile, UnsafeCheckpoint, WeightsMismatch
from retinoscope.models.checkpoint import file_hash, load_weights, read_checkpoint, state_hash


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(2))


def parallel(state):
    """The names that DistributedDataParallel gives."""
    return {f"module.{name}": tensor for name, tensor in state.items()}


def compiled(state):
    """The names that torch.compile gives."""
    return {f"_orig_mod.{name}": tensor for name, tensor in state.items()}


@pytest.fixture
def trained():
    model = net(1)
    model(torch.randn(2, 3, 8, 8))
    return model


@pytest.mark.parametrize(
    "save",
    [
        lambda model, path: save_file(model.state_dict(), path.with_suffix(".safetensors")),
        lambda model, path: torch.save(model.state_dict(), path),
        lambda model, path: torch.save({"state_dict": model.state_dict(), "epoch": 3}, path),
        lambda model, path: torch.save({"model": parallel(model.state_dict())}, path),
        lambda model, path: torch.save(parallel(compiled(model.state_dict())), path),
        lambda model, path: torch.save(compiled(parallel(model.state_dict())), path),
        lambda model, path: torch.save({"model_ema": model.state_dict(), "model": {}}, path),
    ],
)  # fmt: skip
def test_forms_in_which_weights_are_saved(save, trained, tmp_path):
    path = tmp_path / "w.pth"
    save(trained, path)
    path = next(tmp_path.iterdir())
    other = net(2)
    other(torch.randn(2, 3, 8, 8))
    assert state_hash(other) != state_hash(trained)
    called = load_weights(other, path)
    assert called == f"{path.name}, sha256 {file_hash(path)}"
    assert state_hash(other) == state_hash(trained)


class Bomb:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.system, (f"touch {self.target}",)


def test_a_hostile_checkpoint_is_refused_with_the_names_of_what_it_would_run(tmp_path):
    path, victim = tmp_path / "hostile.pth", tmp_path / "owned"
    torch.save({"state_dict": Bomb(victim)}, path)
    with pytest.raises(UnsafeCheckpoint) as caught:
        read_checkpoint(path)
    assert not victim.exists()
    assert "system" in str(caught.value)
    assert "It was not read" in str(caught.value)
    assert "--allow-pickle" in str(caught.value)
    with pytest.raises(UnreadableFile):
        read_checkpoint(
            path, allow_pickle=True
        )  # with the user's word it runs, and holds no weights
    assert victim.exists()


def test_a_bare_pickle_is_refused(tmp_path):
    path, victim = tmp_path / "bare.pth", tmp_path / "owned"
    for protocol in (2, 4):
        path.write_bytes(pickle.dumps(Bomb(victim), protocol))
        with pytest.raises(UnsafeCheckpoint, match=r"posix.system.*It was not read"):
            read_checkpoint(path)
    torch.save({"a": torch.ones(2), "b": Bomb(victim)}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(UnsafeCheckpoint, match=r"while it is read: posix.system\. It was"):
        read_checkpoint(path)
    assert not victim.exists()


def test_keys_that_do_not_fit_are_listed(trained, tmp_path):
    path = tmp_path / "w.safetensors"
    state = trained.state_dict()
    state["0.kernel"] = state.pop("0.weight").clone()
    state["3.bias"] = torch.zeros(7)
    save_file(state, path)
    with pytest.raises(WeightsMismatch) as caught:
        load_weights(trained, path)
    text = str(caught.value)
    assert "1 missing in the file: 0.weight" in text
    assert "1 not in the model: 0.kernel" in text
    assert "3.bias (7,) in the file, (2,) in the model" in text
    assert "num_classes" in text


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize("content", [b"", b"not weights at all", b"\x00" * 64])
def test_damaged_files(suffix, content, tmp_path):
    path = tmp_path / f"w{suffix}"
    path.write_bytes(content)
    with pytest.raises(UnreadableFile, match="cannot be read as weights"):
        read_checkpoint(path)


def test_a_torn_file_is_noticed(trained, tmp_path):
    path = tmp_path / "w.safetensors"
    save_file(trained.state_dict(), path)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(UnreadableFile, match="cannot be read as weights"):
        read_checkpoint(path)


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n"
DAMAGED = [
    (lambda whole: b"", "it is empty. Copy or download it again"),
    (lambda whole: whole[: len(whole) // 2], "it is cut off or damaged. Copy or download it again"),
    (lambda whole: whole[:-30], "it is cut off or damaged"),
    (lambda whole: whole[:300] + bytes(60) + whole[360:], "it is cut off or damaged"),
    (lambda whole: b"\x80\x02}q", "it is cut off or damaged"),
    (lambda whole: random.Random(0).randbytes(500), "it is damaged, or no file of weights at all"),
    (lambda whole: b"<!DOCTYPE html>", "it is a web page"),
    (lambda whole: LFS, "pointer of Git LFS.*git lfs pull"),
]


@pytest.mark.parametrize("allow_pickle", [False, True])
@pytest.mark.parametrize(("damage", "says"), DAMAGED)
def test_damage_is_named_in_our_own_words(damage, says, allow_pickle, trained, tmp_path):
    path = tmp_path / "w.pth"
    torch.save(trained.state_dict(), path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UnreadableFile, match=f"cannot be read as weights: .*{says}") as caught:
        read_checkpoint(path, allow_pickle)
    for advice in ("weights_only", "torch.load", "miniz", "allow"):
        assert advice not in str(caught.value)


def test_a_class_that_is_not_at_hand_is_no_damage(tmp_path):
    path = tmp_path / "w.pth"
    path.write_bytes(b"cno_such_module\nNet\n.")
    with pytest.raises(UnreadableFile, match=r"cannot be imported.*no_such_module.*state_dict"):
        read_checkpoint(path, allow_pickle=True)


def test_nothing_there_and_nothing_in_it(tmp_path):
    with pytest.raises(UnreadableFile, match=r"There is no file .* to read weights from"):
        read_checkpoint(tmp_path / "none.pth")
    torch.save({"epoch": 3, "lr": 0.1}, tmp_path / "w.pth")
    with pytest.raises(
        UnreadableFile, match=r"holds no weights that could be found. It holds: epoch, lr"
    ):
        read_checkpoint(tmp_path / "w.pth")


def test_state_hash_sees_every_tensor(trained):
    before = state_hash(trained)
    assert before == state_hash(trained)
    trained[1].running_var[0] += 1e-6
    assert state_hash(trained) != before
