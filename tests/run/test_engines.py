"""The same numbers, however the work is divided."""

import os
import signal
import subprocess
import textwrap
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace

import numpy as np
import pytest

from retinoscope.core.errors import RetinoscopeError, WrongInput
from retinoscope.probes.fourier import Fourier
from retinoscope.probes.hessian import Hessian
from retinoscope.probes.landscape import Landscape
from retinoscope.probes.variance import Variance
from retinoscope.run.engines import choose_engine, processes
from retinoscope.run.engines.processes import InProcesses
from retinoscope.run.engines.remote import NotRebuildable, order, work
from retinoscope.run.job import work_of
from retinoscope.run.run import Run, measure
from retinoscope.run.subject import load_subject
from retinoscope.run.task import Task

PROBES = (Fourier(), Variance())


def agree(one, other, tolerance):
    assert list(one) == list(other)
    for probe in one:
        for name, array in one[probe].arrays().items():
            np.testing.assert_allclose(
                array, other[probe].arrays()[name], rtol=tolerance, atol=tolerance, err_msg=name
            )


def test_any_number_of_workers_gives_the_same_bits(tiny, tmp_path):
    found = [
        Run(tmp_path / str(n)).measure_all(PROBES, tiny(workers=n, batch=32)) for n in (0, 1, 4)
    ]
    assert found[0] == found[1] == found[2]


def test_any_batch_size_gives_the_same_numbers(tiny, tmp_path):
    seven, many = (Run(tmp_path / str(n)).measure_all(PROBES, tiny(batch=n)) for n in (7, 64))
    agree(seven, many, 1e-6)


def test_two_jobs_give_the_numbers_of_one(tiny, tmp_path):
    probes = (
        *PROBES,
        Hessian(k=2, batch=4, batches=3),
        Landscape(points=3, max_images=8, directions="eigenvectors"),
    )
    one = Run(tmp_path / "1").measure_all(probes, tiny())
    two = Run(tmp_path / "2", engine=InProcesses(2)).measure_all(probes, tiny())
    agree(one, two, 1e-6)


def test_live_objects_cannot_leave_the_process(tiny, tmp_path):
    live = load_subject(tiny().backbone, "cues", size=(16, 16), images=20)
    with pytest.raises(NotRebuildable, match=r"--jobs 2 needs .* path/file.py:function"):
        Run(tmp_path, engine=InProcesses(2)).measure(Variance(), live)


@pytest.mark.proof
def test_a_model_that_comes_out_differently_elsewhere_is_refused(tmp_path):
    (tmp_path / "dice.py").write_text(
        textwrap.dedent("""
            import os, torch
            from torch import nn
            def build(img_size=8):
                torch.manual_seed(os.getpid())
                return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3),
                                     nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))
        """)
    )
    subject = load_subject(f"{tmp_path / 'dice.py'}:build:img_size=8", "cues", images=200)
    with pytest.raises(NotRebuildable, match="is different when it is built in another process"):
        Run(tmp_path / "run", engine=InProcesses(2)).measure(Variance(), subject)


@pytest.mark.proof
def test_a_dead_worker_ends_with_advice_and_the_run_goes_on(tmp_path):
    (tmp_path / "fragile.py").write_text(
        textwrap.dedent("""
            import multiprocessing, os, pathlib
            from torch import nn
            HERE = pathlib.Path(__file__).parent
            class Fragile(nn.Sequential):
                pass
            def build(img_size=8):
                import torch
                torch.manual_seed(0)
                if multiprocessing.parent_process() and not (HERE / "died").exists():
                    (HERE / "died").touch()
                    os.kill(os.getpid(), 9)
                return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3),
                                     nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))
        """)
    )
    subject = load_subject(f"{tmp_path / 'fragile.py'}:build:img_size=8", "cues", images=300)
    run = Run(tmp_path / "run", engine=InProcesses(2))
    with pytest.raises(RetinoscopeError, match="A worker process died"):
        run.measure(Variance(), subject)
    assert run.measure(Variance(), subject) == measure(Variance(), subject)


def test_another_outcome_elsewhere_is_refused(tiny):
    """What a worker does, in this process; in another one by ``make prove``."""
    subject = tiny(images=9)
    work_on = work_of(Variance())
    made = order(subject, Task(work_on, work_on.pieces(subject)[0]), "--jobs 2")
    assert work(made).finished is not None
    with pytest.raises(NotRebuildable, match="is different when it is built in another process"):
        work(replace(made, fingerprint="another"))
    with pytest.raises(NotRebuildable, match="are different in another process"):
        work(replace(made, data="another"))


def test_a_broken_pool_ends_with_advice(tiny, tmp_path, monkeypatch):
    """As when a worker dies; one is killed by ``make prove``."""

    class Broken(ProcessPoolExecutor):
        def submit(self, *args, **options):
            raise BrokenProcessPool("a process died")

    monkeypatch.setattr(processes, "ProcessPoolExecutor", Broken)
    with pytest.raises(RetinoscopeError, match=r"A worker process died.*Finished pieces are kept"):
        Run(tmp_path, engine=InProcesses(2)).measure(Variance(), tiny(images=9))


def test_engines_by_option():
    assert type(choose_engine()).__name__ == "Here"
    assert choose_engine(3) == InProcesses(3)
    with pytest.raises(WrongInput, match="at least 1; got 0"):
        choose_engine(0)


def test_a_cluster_that_is_not_there_is_said(tiny, tmp_path):
    pytest.importorskip("ray")
    with pytest.raises(RetinoscopeError, match="Cannot connect to a Ray cluster at"):
        Run(tmp_path, engine=choose_engine(ray="127.0.0.1:1")).measure(Variance(), tiny(images=9))


@pytest.mark.proof
def test_two_processes_on_one_folder_do_not_harm_each_other(tiny, tmp_path):
    from run.elsewhere import command

    expected = Run(tmp_path / "alone").measure_all(PROBES, tiny())
    both = [subprocess.Popen(command(tmp_path / "shared")) for _ in range(2)]
    assert [process.wait(120) for process in both] == [0, 0]
    assert Run(tmp_path / "shared").measure_all(PROBES, tiny()) == expected


def test_a_killed_process_is_resumed_to_the_same_result(tiny, tmp_path):
    """Once here; at twenty random moments by ``make prove``."""
    from run.elsewhere import command

    expected = Run(tmp_path / "alone").measure_all(PROBES, tiny())
    folder = tmp_path / "killed"
    process = subprocess.Popen(command(folder, slow=0.3))
    deadline = time.monotonic() + 60
    while not list(folder.rglob("*.piece")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*.piece")}
    assert 0 < len(before) < 6
    assert Run(folder).measure_all(PROBES, tiny()) == expected
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in before.items())
