import pickle
import subprocess
import sys
from dataclasses import fields

import pytest

from retinoscope.core.catalogue import load_file, name_of, source_of
from retinoscope.core.errors import UnknownProbe, UnreadableFile
from retinoscope.core.settings import WrongSetting, hint
from retinoscope.probes import get_probe, parse_probe, write_probe
from retinoscope.probes.variance import Variance

OWN = '''
from __future__ import annotations
from dataclasses import dataclass
from typing import ClassVar
from beside import RANK
from retinoscope.core.settings import setting
from retinoscope.probes.variance import VarianceResult

LOADED = []

@dataclass(frozen=True)
class Rank:
    """A probe of one's own."""
    result: ClassVar = VarianceResult
    schema: ClassVar[int] = 1
    question: ClassVar[str] = "How many directions?"
    reading: ClassVar[str] = ""
    k: int = setting(RANK, "How many.", at_least=1)
    def combine(self, anatomy, partials): ...

class Helper:
    """No probe."""
'''


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside.py").write_text("RANK = 3\n")
    (tmp_path / "rank.py").write_text(OWN)
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    return tmp_path / "rank.py"


def test_a_file_is_loaded_once_by_whatever_path(own):
    module = load_file("rank.py")
    assert load_file(own) is load_file("./rank.py") is module
    assert sys.modules[module.__name__] is module
    assert str(own.parent) not in sys.path
    assert source_of(module.Rank) == own.resolve()
    assert source_of(Variance) is None
    assert name_of(module.Rank) == "rank"
    assert hint(module.Rank, "k") is int


def test_probes_of_ones_own_are_parsed_and_written(own):
    probe = parse_probe("./rank.py:Rank:k=5")
    assert probe.k == 5
    assert type(probe) is get_probe("rank.py") is get_probe(f"{own}:Rank")
    assert parse_probe("rank.py").k == 3
    assert parse_probe(write_probe(probe)) == probe
    assert [one.name for one in fields(probe)] == ["k"]
    with pytest.raises(WrongSetting, match=r"\./rank\.py:Rank: k is 1 or more; got 0"):
        parse_probe("./rank.py:Rank:k=0")


def test_another_process_can_have_what_a_users_class_made(own):
    (own.parent / "probe.pickle").write_bytes(pickle.dumps(parse_probe("rank.py:Rank:k=7")))
    program = (
        "import pickle; from retinoscope.core.catalogue import load_file; load_file('rank.py'); "
        "assert pickle.load(open('probe.pickle', 'rb')).k == 7"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=own.parent)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nowhere.py:Rank", r"There is no file 'nowhere\.py'"),
        (
            "rank.py:Rnak",
            r"'rank\.py' has no class 'Rnak'\. Did you mean 'Rank'\? It contains: Rank\.",
        ),
        ("rank.py:Helper", r"Helper in 'rank\.py' is not a probe \(see retinoscope\.core\.probe\)"),
        (
            "beside.py",
            r"names a file but no class\. Write it as beside\.py:Class\. It contains: no",
        ),
        (
            "broken.py:Rank",
            r"'broken\.py' fails: ZeroDivisionError: .* Fix this line: .*broken\.py:2",
        ),
        ("spelt.py:Rank", r"'spelt\.py' fails: SyntaxError: .* Fix this line: .*spelt\.py:1"),
    ],
)
def test_what_cannot_be_loaded_is_told(own, name, says):
    (own.parent / "broken.py").write_text("\n1 / 0\n")
    (own.parent / "spelt.py").write_text("clas Rank:\n")
    with pytest.raises(UnknownProbe, match=says):
        get_probe(name)
    with pytest.raises(UnreadableFile):
        load_file("broken.py")
