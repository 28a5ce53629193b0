import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from retinoscope.models.checkpoint import read_checkpoint
from retinoscope.train.processes import Processes, _is_loss

TINY = Path(__file__).parent / "tiny.py"


def command(out: Path, count: int) -> subprocess.CompletedProcess[str]:
    """Three steps in float64, by one process or several."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    recipe = "micro:precision=float64,fraction=0.0008,scored=10,batch=8,snapshots=1"
    return subprocess.run(
        [
            sys.executable, *(launcher if count > 1 else []), "-m", "retinoscope", "train", recipe,
            "--model", f"{TINY}:smooth:img_size=32", "--epochs", "1", "--workers", "0",
            "--out", str(out),
        ],
        capture_output=True, text=True, check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def test_two_processes_learn_what_one_does(tmp_path):
    """Without batch norm, in float64: sums in another order are all that differs."""
    for count in (1, 2):
        done = command(tmp_path / str(count), count)
        assert done.returncode == 0, done.stderr
    one, two = (
        read_checkpoint(tmp_path / str(count) / "snapshots" / "end.safetensors") for count in (1, 2)
    )
    init = read_checkpoint(tmp_path / "1" / "snapshots" / "init.safetensors")
    for key in one:
        torch.testing.assert_close(one[key], two[key], rtol=0, atol=1e-9)
        assert not torch.equal(one[key], init[key])
    logs = [(tmp_path / str(count) / "log.jsonl").read_text().splitlines() for count in (1, 2)]
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
