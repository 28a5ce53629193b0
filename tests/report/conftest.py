"""A run with two small subjects, measured once for all tests of a process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from retinoscope.core.result import seal
from retinoscope.probes.fourier import Fourier
from retinoscope.probes.variance import Variance
from retinoscope.run.run import Run
from retinoscope.run.subject import load_subject
from run.tiny import build

HOSTILE = (
    "<script>document.title='pwned'</script>",
    "\"'><img src=x onerror=\"document.title='pwned'\">",
    "مرحبا \u202e txet desrever",
    "very_" * 80 + "long",
    "</script></title></style>{{ 7 * 7 }} &amp; =cmd()",
)


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with a trained-looking and an untrained subject."""
    folder = tmp_path_factory.mktemp("run")
    run = Run(folder)
    for name in ("tiny", "other"):
        subject = load_subject(build().eval(), "cues", name=name, size=(16, 16), images=40)
        run.measure_all([Fourier(pictures=0), Variance()], subject)
    run.files.close()
    return folder


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, weights, units, images and reasons that would rather be code."""
    folder = tmp_path_factory.mktemp("hostile")
    run = Run(folder)
    for name in HOSTILE:
        model = build().eval()
        subject = load_subject(model, "cues", name=name, size=(16, 16), images=20)
        run.measure_all([Fourier(), Variance()], subject)
    run.files.close()
    for path in [*folder.rglob("*.json")]:
        text = path.read_text()
        text = text.replace('"block', f'"block{HOSTILE[0]}').replace("as given", HOSTILE[0])
        text = text.replace('"set aside": []', f'"set aside": [["{HOSTILE[0]}", "{HOSTILE[0]}"]]')
        if path.with_suffix(".npz").exists():
            plain = json.loads(text)
            del plain["sha256"]
            packed = path.with_suffix(".npz").read_bytes()
            text = json.dumps(plain | {"sha256": seal(plain, packed)})
        path.write_text(text)
    return folder


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    """Debian's Chromium, or whatever this machine calls it."""
    playwright = pytest.importorskip("playwright.sync_api")
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"there is no browser here: none of {', '.join(names)}")
    with playwright.sync_playwright() as running:
        chromium = running.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield chromium
        chromium.close()
