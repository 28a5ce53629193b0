import pytest
import torch
from safetensors.torch import save_file

from retinoscope import load_model, load_subject
from retinoscope.models.built_file import Construction, write_built
from retinoscope.models.history import find_history
from retinoscope.probes.hessian import Hessian
from retinoscope.probes.variance import Variance
from retinoscope.run.folder import RunFolder
from retinoscope.run.key import key_of
from run.elsewhere import TINY
from run.tiny import build
from train.by_hand import ROWS, write_training


@pytest.fixture
def trained(tmp_path):
    """A training folder with a snapshot."""
    folder = write_training(tmp_path / "training")
    (folder / "snapshots").mkdir()
    save_file(build().state_dict(), folder / "snapshots" / "end.safetensors")
    return folder


def test_found_in_the_files_own_folder_and_the_one_above(trained, tmp_path, monkeypatch):
    assert find_history(trained / "snapshots" / "end.safetensors") == trained
    assert find_history(str(trained / "end.safetensors")) == trained
    assert find_history(trained / "snapshots" / "deeper" / "end.safetensors") is None
    assert find_history(tmp_path / "end.safetensors") is None
    monkeypatch.chdir(trained / "snapshots")
    assert find_history("end.safetensors") == trained


def test_other_peoples_files_of_the_same_names_are_no_history(trained):
    (trained / "training.json").write_text('{"loss": 3}')
    assert find_history(trained / "end.safetensors") is None
    (trained / "training.json").write_text('{"retinoscope training": 1, "na')  # ours, cut short
    assert find_history(trained / "end.safetensors") == trained
    (trained / "log.jsonl").unlink()
    assert find_history(trained / "end.safetensors") is None
    (trained / "training.json").unlink()
    assert find_history(trained / "end.safetensors") is None


def test_a_model_knows_where_its_weights_were_learned(trained):
    file = trained / "snapshots" / "end.safetensors"
    assert load_model(TINY, weights=file).history == trained
    assert load_model(TINY).history is None


def test_a_file_that_is_a_model_knows_it_too(tmp_path):
    folder = write_training(tmp_path / "training")
    model = load_model("resnet20_cifar", pretrained=False).model
    file = folder / "snapshots" / "end.safetensors"
    write_built(file, model, Construction("resnet20_cifar", (), (32, 32), "x", trained=True))
    assert load_model(str(file)).history == folder
    # Weights drawn anew have not been learned.
    assert load_model(str(file), pretrained=False).history is None


def test_it_decides_the_loss_and_nothing_else(trained, tmp_path):
    """The same weights with and without a history: one fingerprint, one key where none is asked."""
    file = trained / "snapshots" / "end.safetensors"
    (tmp_path / "alone").mkdir()
    copy = tmp_path / "alone" / "end.safetensors"
    copy.write_bytes(file.read_bytes())
    one, two = (load_subject(TINY, "cues", images=20, weights=str(f)) for f in (file, copy))
    assert (one.history, two.history) == (trained, None)
    assert one.fingerprint == two.fingerprint
    assert (one.weight_decay, two.weight_decay) == (0.05, 0.0)
    assert one.assumed == two.assumed
    known = {"weight decay": 0.05, "assumed": one.assumed}  # not the augmentation of its training
    assert one.protocol == two.protocol | known
    assert key_of(Variance(), one) == key_of(Variance(), two)
    assert key_of(Hessian(), one) != key_of(Hessian(), two)
    assert torch.equal(one.backbone.stem.weight, two.backbone.stem.weight)


def test_a_run_keeps_a_copy(trained, tmp_path):
    file = trained / "snapshots" / "end.safetensors"
    subject = load_subject(TINY, "cues", images=20, weights=str(file))
    files = RunFolder(tmp_path / "run")
    for rows in (ROWS[:2], ROWS):  # the second time, the training has gone on
        write_training(trained, rows)
        folder = files.subject_folder(subject)
        for name in ("training.json", "log.jsonl"):
            assert (folder / name).read_bytes() == (trained / name).read_bytes()
    (trained / "log.jsonl").unlink()
    assert files.subject_folder(subject) == folder  # what was kept stays
    assert (folder / "log.jsonl").is_file()
    files.close()


def test_a_run_of_weights_without_a_history_keeps_none(tmp_path):
    files = RunFolder(tmp_path / "run")
    folder = files.subject_folder(load_subject(TINY, "cues", images=20))
    assert sorted(path.name for path in folder.iterdir()) == ["anatomy.json", "subject.json"]
    files.close()
