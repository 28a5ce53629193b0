"""An examination of the tiny network as a command for another process."""

from __future__ import annotations

import sys
from pathlib import Path

TINY = f"{Path(__file__).parent / 'tiny.py'}:build:img_size=16"
TINY_VIT = f"{Path(__file__).parent / 'tiny_vit.py'}:build"

_PROGRAM = """
import sys, time
from retinoscope.probes.fourier import Fourier
from retinoscope.probes.variance import Variance
from retinoscope.run.engines.local import Here
from retinoscope.run.run import Run
from retinoscope.run.subject import load_subject

class Slow(Here):
    def run(self, subject, tasks):
        for done in super().run(subject, tasks):
            yield done
            time.sleep(float(sys.argv[3]))

subject = load_subject(sys.argv[1], "cues", images=300)
Run(sys.argv[2], engine=Slow()).measure_all([Fourier(), Variance()], subject)
"""


def command(folder: Path, slow: float = 0.0) -> list[str]:
    """Measure into ``folder``, waiting a little after each piece."""
    return [sys.executable, "-c", _PROGRAM, TINY, str(folder), str(slow)]
