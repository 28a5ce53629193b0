import os
import signal
import subprocess
import sys
import time

import pytest

from retinoscope.core.errors import RunFolderError
from retinoscope.core.folders import alone, claim, claim_alone, read_mark

FORKS = """
import os, sys, time
from pathlib import Path
from retinoscope.core.folders import claim_alone
held = claim_alone(Path(sys.argv[1]), "mark", "run")
if not (child := os.fork()):
    time.sleep(60)
print(child, flush=True)
time.sleep(60)
"""


def test_a_folder_is_claimed_by_one_at_a_time(tmp_path):
    with claim_alone(tmp_path, "mark", "training"):
        with pytest.raises(RunFolderError, match="another process has a training there"):
            claim_alone(tmp_path, "mark", "training")
    claim_alone(tmp_path, "mark", "training").close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_lock_ends_with_its_process_though_a_child_lives_on(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", FORKS, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        with claim(tmp_path, "mark", "run") as lock:
            assert not alone(lock)
            process.kill()
            process.wait()
            time.sleep(0.1)
            os.kill(child, 0)  # it lives
            assert alone(lock)
    finally:
        os.kill(child, signal.SIGKILL)


def test_marks_that_are_damaged_or_of_another_layout_are_refused(tmp_path):
    mark = tmp_path / "mark"
    mark.write_text('{"kind": 1, "more": 2}')
    assert read_mark(tmp_path, "mark", "kind", 1) == {"more": 2}
    with pytest.raises(RunFolderError, match="layout 1; this version uses 2"):
        read_mark(tmp_path, "mark", "kind", 2)
    mark.write_text("{")
    with pytest.raises(RunFolderError, match="is damaged"):
        read_mark(tmp_path, "mark", "kind", 1)
