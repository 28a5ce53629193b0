"""Nobody waits for torch who only asks for help."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "program",
    [
        "import retinoscope",
        "from retinoscope.cli.main import app; app(['--help'], standalone_mode=False)",
        "from retinoscope.cli.main import app; app(['examine', '--help'], standalone_mode=False)",
        "from retinoscope.cli.main import app; app(['list', 'probes'], standalone_mode=False)",
        "from retinoscope.cli.main import app; app(['list', 'probes', 'hessian'], "
        "standalone_mode=False)",
    ],
)
def test_start_is_without_torch(program):
    """Which alone takes seconds; the time itself depends on the machine."""
    code = f"import sys; {program}; assert not {{'torch', 'timm'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


WRONG = {
    "data": (["examine", "resnet50", "--data", "nowhere"], "There are no data 'nowhere'"),
    "data file": (["examine", "resnet50", "--data", "none.py:f"], "There is no file 'none.py'"),
    "data option": (["examine", "resnet50", "--data", "cues:sed=1"], "cues has no option sed"),
    "root": (["examine", "resnet50", "--root", "/nowhere"], "'/nowhere' is not a folder"),
    "size": (["examine", "resnet50", "--size", "0"], "--size 0 has no pixels"),
    "crop": (["examine", "resnet50", "--crop-pct", "2"], "crop_pct is above 0 and up to 1"),
    "probe": (["examine", "resnet50", "--probe", "fuorier"], "no probe 'fuorier'"),
    "setting": (["examine", "resnet50", "--probe", "hessian:k=no"], "k is an integer"),
    "recipe": (["examine", "resnet50", "--recipe", "mikro"], "no recipe 'mikro'"),
    "weights": (["examine", "resnet50", "--weights", "none.pth"], "There is no file"),
    "model file": (["examine", "none.py:build"], "There is no file 'none.py'"),
    "built file": (["anatomy", "none.safetensors"], "There is no file 'none.safetensors'"),
    "surgery": (["build", "resnet50", "--apply", "mc_droput"], "no surgery 'mc_droput'"),
    "build": (["build", "none.py:f", "--apply", "mc_dropout"], "There is no file 'none.py'"),
    "train": (["train", "micro", "--data", "nowhere"], "There are no data 'nowhere'"),
    "train model": (["train", "micro", "--model", "none.py:f"], "There is no file 'none.py'"),
    "search": (["search", "resnet18", "--data", "nowhere"], "There are no data 'nowhere'"),
    "advise": (["advise", "resnet18", "--data", "nowhere"], "There are no data 'nowhere'"),
}
_EACH = """
import sys
from retinoscope.cli.main import app
from retinoscope.core.errors import RetinoscopeError
for words, says in WRONG:
    try:
        app(words, standalone_mode=False)
    except RetinoscopeError as error:
        assert says in str(error), (words, str(error))
    else:
        raise AssertionError(f"{words} was not refused")
    assert not {"torch", "timm"} & set(sys.modules), words
"""


def test_what_is_wrong_is_said_before_torch_is_imported(tmp_path):
    code = f"WRONG = {list(WRONG.values())!r}\n{_EACH}"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
    assert not list(tmp_path.iterdir())  # nor is a folder left behind


def test_data_are_looked_for_before_a_model_is_loaded(monkeypatch):
    from retinoscope.data.source import UnknownData
    from retinoscope.run import subject

    def load(*_, **__):
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(subject, "load_model", load)
    with pytest.raises(UnknownData, match="There are no data 'nowhere'"):
        subject.load_subject("resnet50", "nowhere")
