"""The code in the documentation runs as it stands."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
BLOCKS = {
    f"{page.stem}-{place}": block
    for page in sorted(DOCS.glob("*.md"))
    if page.stem != "extending"  # files of their own, with tests of their own
    for place, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.S))
}


@pytest.mark.parametrize("name", BLOCKS)
def test_compiles(name):
    compile(BLOCKS[name], name, "exec")


@pytest.mark.docs
@pytest.mark.parametrize("name", BLOCKS)
def test_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec("import retinoscope\n" + BLOCKS[name], {})
