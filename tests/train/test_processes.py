import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from retinoscope.models.checkpoint import read_checkpoint
from retinoscope.recipes import parse_recipe
from retinoscope.train.processes import Processes, _is_loss
from retinoscope.train.recipe import changed
from retinoscope.train.train import train_model
from sampling import PROOF

TINY = Path(__file__).parent / "tiny.py"


RECIPE = "micro:precision=float64,fraction=0.0008,scored=10,batch=8,epochs=1"


def test_this_process_and_another_learn_what_one_does(tmp_path, monkeypatch):
    """Without batch norm, in float64; by torchrun's launcher with ``make prove``."""
    model = f"{TINY}:smooth:img_size=32"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}"}
    other = subprocess.Popen(
        [
            sys.executable, "-m", "retinoscope", "train", RECIPE, "--model", model,
            "--workers", "0", "--out", str(tmp_path / "2"),
        ],
        env=os.environ | place | {"RANK": "1", "LOCAL_RANK": "1", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        with monkeypatch.context() as first:
            for name, value in (place | {"RANK": "0", "LOCAL_RANK": "0"}).items():
                first.setenv(name, value)
            train_model(changed(parse_recipe(RECIPE), {"model": model}), tmp_path / "2")
        assert other.wait(60) == 0
    finally:
        other.kill()
    train_model(changed(parse_recipe(RECIPE), {"model": model}), tmp_path / "1")
    compare(tmp_path)


@PROOF
def test_two_processes_learn_what_one_does(tmp_path):
    """Without batch norm, in float64: sums in another order are all that differs."""
    model = f"{TINY}:smooth:img_size=32"
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
            "-m", "retinoscope", "train", RECIPE, "--model", model, "--workers", "0",
            "--out", str(tmp_path / "2"),
        ],
        capture_output=True, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    train_model(changed(parse_recipe(RECIPE), {"model": model}), tmp_path / "1")
    compare(tmp_path)


def compare(tmp_path: Path) -> None:
    """Sums in another order are all that differs between the folders 1 and 2."""
    one, two = (
        read_checkpoint(tmp_path / count / "snapshots" / "end.safetensors") for count in "12"
    )
    init = read_checkpoint(tmp_path / "1" / "snapshots" / "init.safetensors")
    for key in one:
        torch.testing.assert_close(one[key], two[key], rtol=0, atol=1e-9)
        assert not torch.equal(one[key], init[key])
    logs = [(tmp_path / count / "log.jsonl").read_text().splitlines() for count in "12"]
    assert len(logs[0]) == len(logs[1]) == 3


def test_alone_there_is_nothing_to_add():
    team = Processes()
    values = torch.tensor([1.0, 2.0])
    assert team.add(values) is values
    assert team.gathered(3) == [3]
    assert team.told("x") == "x"
    assert team.first


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]", True),
        ("NCCL communicator was aborted", True),
        ("mat1 and mat2 shapes cannot be multiplied", False),
    ],
)
def test_a_lost_process_is_told_from_a_bug(text, lost):
    assert _is_loss(RuntimeError(text)) is lost
