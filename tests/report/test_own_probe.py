"""A probe in a file of the user's own: section, figures and sentences, with nothing registered."""

import base64
import importlib.util
import json
import re
import subprocess
import sys

from retinoscope.figures.describe import figures
from retinoscope.plots import plot
from retinoscope.report.collect import collect
from retinoscope.run.run import Run
from retinoscope.run.subject import load_subject
from run.tiny import build

FILE = '''
"""Which units react to the same images."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from retinoscope.core.coverage import covered, measured_in
from retinoscope.core.probe import Needs
from retinoscope.core.result import Result, answer, axes


@answer
class TogetherResult(Result):
    """``correlation[u, v]`` over images, and the mean map of each unit."""

    probe: ClassVar[str] = "together"
    correlation: np.ndarray = axes(
        "unit", "unit", unit="correlation", draw="matrix", colours="diverging", limits=(-1, 1),
        title="Which units react to the same images",
    )
    maps: np.ndarray = axes(
        "unit", "height", "width", unit="activation", draw="images", title="The mean map of each",
    )
    level: np.ndarray = axes("unit", unit="activation", title="How much each unit reacts")

    def findings(self):
        """The pair that is most alike."""
        rest = self.correlation - 2 * np.eye(len(self.units))
        one, two = np.unravel_index(rest.argmax(), rest.shape)
        return [f"{self.units[one]} and {self.units[two]} react most alike"]


@dataclass(frozen=True)
class Together:
    result: ClassVar[type] = TogetherResult
    schema: ClassVar[int] = 1
    question: ClassVar[str] = "Which units react to the same images?"
    reading: ClassVar[str] = "Red pairs do."

    @property
    def needs(self):
        return Needs()

    def watch(self, sight):
        return sight.maps.mean(1).flatten(1)

    def gather(self, group):
        return {f"{name}/maps": values for name, values in group.rows.items()}

    def combine(self, anatomy, partials):
        names = [unit.name for unit in measured_in(anatomy, partials)]
        maps = [np.concatenate([p[f"{name}/maps"] for p in partials]) for name in names]
        sides = [int(m.shape[1] ** 0.5) for m in maps]
        small = [m.mean(0).reshape(s, s)[:: s // 8, :: s // 8] for m, s in zip(maps, sides)]
        return TogetherResult(
            coverage=covered(anatomy, names),
            correlation=np.corrcoef([m.mean(1) for m in maps]),
            maps=np.stack(small),
            level=np.array([m.mean() for m in maps]),
        )
'''


def test_a_probe_in_a_users_file_has_its_section_figures_and_sentences(tmp_path):
    path = tmp_path / "together.py"
    path.write_text(FILE)
    made = importlib.util.spec_from_file_location("together", path)
    module = importlib.util.module_from_spec(made)
    made.loader.exec_module(module)
    subject = load_subject(build().eval(), "cues", name="tiny", size=(16, 16), images=20)
    run = Run(tmp_path / "run")
    result = run.measure(module.Together(), subject)
    run.files.close()
    path.unlink()
    # Another process knows nothing of the file: the run folder is enough.
    report = tmp_path / "report.html"
    command = ["-m", "retinoscope", "report", str(tmp_path / "run"), "-o", str(report)]
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
    page = report.read_text()
    assert "Which units react to the same images?" in page
    assert "Red pairs do." in page
    assert result.findings()[0] in page
    assert page.count('class="chart heat matrix"') == 1
    assert page.count('class="chart images"') == 1
    assert page.count("<image ") == len(result.units)
    cells = re.findall(r'<rect [^>]*class="point" data-label="([^"]*) · ([^"]*) · [^"]*"', page)
    assert {(a, b) for a, b in cells} >= {(u, v) for u in result.units for v in result.units}
    (table,) = re.findall(r'download="together-correlation-0.csv" href="[^,]*,([^"]*)"', page)
    assert base64.b64decode(table).decode().startswith("unit,unit,correlation\nstem,stem,1\n")
    (whole,) = re.findall(r'download="together-0.json" href="[^,]*,([^"]*)"', page)
    plain = json.loads(base64.b64decode(whole))
    assert plain["findings"] == result.findings()
    assert "correlation" in plain
    assert "maps" not in plain  # images are in the run folder alone
    (found,) = collect([tmp_path / "run"]).examined
    drawn = found.measured[0].result
    assert [f.field for f in figures(drawn)] == ["correlation", "maps", "level"]
    assert plot(drawn).collections[0].get_array().size == len(result.units) ** 2
    assert len(plot(drawn, field="maps").images) == len(result.units)
