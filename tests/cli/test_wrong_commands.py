"""Wrong command lines and calls, made up by the hundred: each is told what to do instead.

Every example takes a command that works and spoils one thing in it. It must end with an exit code
that says so, without a traceback, in a message that names a next step. Commands and names that a
message proposes are tried.
"""

import random
import re
import shlex
import string
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import retinoscope
from retinoscope.cli.main import main
from retinoscope.core.errors import RetinoscopeError
from run.elsewhere import TINY

FILES = Path(__file__).parent.parent / "run"
STEP = re.compile(
    r"--[a-z]|retinoscope [a-z]|Did you mean|There are:|It has:|Expected|Write |Name |Give |Take "
    r"|Use |Call |Choose |Make |Build |Try |Install |Put |Copy |is one of|or more|Check |Fix |Let "
    r"|in Python|Options follow|[Ii]ts settings|is from |is an integer|is a number| is above "
    r"| is below |Pass |be one of|at least"
)
"""What tells the reader how to go on."""
PROPOSED = re.compile(r"Did you mean '([^']+)'")

CODE = {
    "syntax.py": "def build(:\n",
    "raises.py": "def build():\n    raise ValueError('no luck')\n",
    "none.py": "def build():\n    return None\n",
    "broken_import.py": "import no_such_package\n",
    "linear.py": "from torch import nn\ndef build():\n    return nn.Linear(3, 4)\n",
    "probe.py": "class NotAProbe:\n    pass\n",
}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder of files that are wrong in their own ways."""
    folder = tmp_path_factory.mktemp("wrong things")
    for name, text in CODE.items():
        (folder / name).write_text(text)
    for suffix in ("pth", "pt", "safetensors", "parquet", "json", "png"):
        (folder / f"noise.{suffix}").write_bytes(random.Random(suffix).randbytes(300))
        (folder / f"empty.{suffix}").write_bytes(b"")
    torch.save({"a": torch.zeros(3)}, folder / "other.pth")
    (folder / "nothing").mkdir()
    (folder / "texts").mkdir()
    (folder / "texts" / "a.txt").write_text("no image")
    (folder / "harmed").mkdir()
    (folder / "harmed" / "a.png").write_bytes(b"no image")
    return folder


def spoiled(word: str, how: int) -> str:
    """A name with a letter lost, doubled or swapped."""
    index = how % max(1, len(word) - 1)
    return [
        word[:index] + word[index + 1 :],
        word[:index] + word[index] + word[index:],
        word[:index] + word[index + 1] + word[index] + word[index + 2 :],
    ][how % 3]


def names(known: list[str]) -> st.SearchStrategy[str]:
    """Names that nothing has."""
    made_up = st.text(string.ascii_lowercase + "_", min_size=1, max_size=9)
    near = st.builds(spoiled, st.sampled_from(known), st.integers(0, 60))
    return st.one_of(near, made_up).filter(lambda name: name not in known and name)


MODELS = ["resnet18", "vit_tiny_patch16_224", "micro_resnet", "micro_vit", "swin_tiny"]
WRONG_FILES = [
    "syntax.py:build", "raises.py:build", "none.py:build", "linear.py:build",
    "broken_import.py:build", "nowhere.py:build", "linear.py:builds", "linear.py",
    "noise.safetensors", "empty.safetensors", "nothing", "gone.safetensors",
]  # fmt: skip
models = st.one_of(
    names(MODELS),
    st.sampled_from(WRONG_FILES).map(lambda name: f"{{world}}/{name}"),
    st.sampled_from([
        "micro_resnet:num_class=10", "micro_vit:depth=x", "micro_resnet:", "torchvision:resnet1",
        "hf:{world}/nothing", ":", "a=", "=b", "micro_resnet:num_classes", "micro_vit.nowhere",
    ]),
)  # fmt: skip
PROBES = ["fourier", "variance", "tokens", "attention", "similarity", "accuracy"]
probes = st.one_of(
    names(PROBES),
    st.sampled_from([
        "fourier:band=3", "fourier:bands=1", "fourier:bands=x", "fourier:direction=up", "hessian:",
        "hessian:k=0", "hessian:batch=1", "hessian:tolerance=2", "hessian:k=3,k=4", "hessian:k",
        "landscape:points=4", "landscape:towards=x", "landscape:radius=0", "variance:x=1",
        "landscape:dimensions=3", "hessian:images=all", "trajectory:snapshots=[{world}/nothing]",
        "{world}/probe.py:NotAProbe", "{world}/probe.py:Nobody", "{world}/gone.py:Probe",
        "{world}/syntax.py:Probe", "landscape:target=gone.safetensors", "hessian:seed=-1",
        "similarity:group=3", "similarity:kernel=rbf,width=0", "similarity:other=gone.pth",
        "lesion:remove=nothing", "attention:maps=-1", "tokens:outlier=1",
        "attention_spectrum:images=0", "consistency:images=sound", "oversmoothing:ranks=-1",
    ]),
)  # fmt: skip
data = st.one_of(
    names(["cues", "cifar10", "cifar100", "imagenet"]),
    st.sampled_from([
        "{world}/nothing", "{world}/texts", "{world}/harmed", "{world}/noise.parquet",
        "{world}/empty.parquet", "{world}/gone", "{world}/none.py:build", "{world}/other.pth", "",
    ]),
)  # fmt: skip
EXAMINE = {
    "--data": data,
    "--preset": names(["quick", "standard", "paper"]),
    "--probe": probes,
    "--size": st.sampled_from(["0", "-3", "x", "8x", "0x8", "3.5", "", "8x8x8"]),
    "--images": st.sampled_from(["0", "-1", "some", "1.5", ""]),
    "--batch": st.sampled_from(["0", "-1", "x"]),
    "--workers": st.sampled_from(["-1", "x"]),
    "--passes": st.sampled_from(["-1", "x"]),
    "--seed": st.sampled_from(["-1", "x", str(2**70)]),
    "--mean": st.sampled_from(["grey", "0.1,0.2", "", "nan"]),
    "--std": st.sampled_from(["0", "-1", "0,0,0", "x"]),
    "--precision": names(["float32", "float64", "bfloat16", "float16"]),
    "--device": st.sampled_from(["cuda:7", "gpu", "tpu"]),
    "--crop-pct": st.sampled_from(["0", "2", "x"]),
    "--crop-mode": names(["center", "squash", "border"]),
    "--interpolation": names(["nearest", "bilinear", "bicubic"]),
    "--weights": st.sampled_from([
        "{world}/other.pth", "{world}/noise.pth", "{world}/empty.pth", "{world}/gone.pth",
        "{world}/noise.safetensors", "{world}/nothing", "{world}/noise.pt",
    ]),
    "--recipe": names(["micro", "cifar_strong", "deit"]),
    "--jobs": st.sampled_from(["0", "-1", "x"]),
    "--out": st.sampled_from(["{world}/other.pth", "{world}/texts"]),
}  # fmt: skip
BASE = {
    "examine": [TINY, "--images", "6", "--probe", "variance", "--out", "{out}"],
    "anatomy": [TINY],
    "advise": [TINY],
    "build": [TINY, "--apply", "gap_head", "--out", "{out}.safetensors"],
    "train": ["micro:epochs=1", "--model", TINY, "--data", "cues", "--out", "{out}"],
}
surgeries = st.one_of(
    names(["build_up", "gap_head", "mc_dropout", "localise", "spatial_smoothing"]),
    st.sampled_from([
        "localise:kernel=2", "mc_dropout:rate=2", "build_up:stage=1", "build_up:head_width=x",
        "context_broadcasting", "eigen_attention:sign=0", "localise",
    ]),
)  # fmt: skip
FLAGS = {
    "examine": EXAMINE,
    "anatomy": {key: EXAMINE[key] for key in ("--size", "--mean", "--weights")},
    "advise": {key: EXAMINE[key] for key in ("--size", "--data", "--weights")},
    "build": {
        "--apply": surgeries,
        "--size": EXAMINE["--size"],
        "--out": st.sampled_from(["{world}/nothing", "{world}/x.pth", "{world}/no/way.txt"]),
        "--weights": EXAMINE["--weights"],
    },
    "train": {
        "--data": data,
        "--epochs": st.sampled_from(["-1", "x"]),
        "--batch": st.sampled_from(["0", "1000000", "x"]),
        "--size": EXAMINE["--size"],
        "--out": EXAMINE["--out"],
        "--track": names(["tensorboard", "wandb", "mlflow"]),
    },
}


@st.composite
def wrong_commands(draw: st.DrawFn) -> tuple[list[str], str]:
    """A command with one wrong word in it, and that word."""
    command = draw(st.sampled_from([*BASE, "report", "list", "nonsense"]))
    if command == "nonsense":
        word = draw(names([*BASE, "report", "list", "search"]))
        return [word, TINY], word
    if command == "report":
        word = draw(st.sampled_from(["{world}/gone", "{world}/texts", "{world}/other.pth"]))
        return ["report", word, "-o", "{out}.html"], word
    if command == "list":
        what = draw(st.sampled_from(["probes", "surgeries", "recipes", ""]))
        word = draw(names(["models", "probes", "presets", "surgeries", "recipes", "data"]))
        return ["list", *([what] if what else []), word], word
    words = list(BASE[command])
    if draw(st.integers(0, 3)) == 0:
        word = draw(models)
        return [command, *(word if one == TINY else one for one in words)], word
    flag = draw(st.sampled_from(sorted(FLAGS[command])))
    word = draw(FLAGS[command][flag])
    if flag in words:
        words[words.index(flag) + 1] = word
        return [command, *words], word
    return [command, *words, flag, word], word


def run(words: list[str], capsys, monkeypatch) -> tuple[int, str]:
    """The exit code of a command line, and all that it said."""
    monkeypatch.setattr(sys, "argv", ["retinoscope", *words])
    try:
        main()
        code = 0
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else 1
    said = capsys.readouterr()
    return code, " ".join(f"{said.out} {said.err}".replace("│", " ").split())


def quick(examples: int) -> settings:
    """So many examples, always the same, without looking for smaller ones."""
    return settings(
        max_examples=examples, deadline=None, derandomize=True, database=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )  # fmt: skip


@quick(15)
@given(wrong=wrong_commands(), number=st.integers(0, 10**9))
def test_wrong_command_lines(wrong, number, world, capsys, monkeypatch, tmp_path_factory):
    try_command(wrong, number, world, capsys, monkeypatch, tmp_path_factory)


@pytest.mark.proof
@quick(200)
@given(wrong=wrong_commands(), number=st.integers(0, 10**9))
def test_200_wrong_command_lines(wrong, number, world, capsys, monkeypatch, tmp_path_factory):
    try_command(wrong, number, world, capsys, monkeypatch, tmp_path_factory)


def try_command(wrong, number, world, capsys, monkeypatch, tmp_path_factory):
    """Run a wrong command line, and what its message proposes."""
    words, spoilt = wrong
    out = str(tmp_path_factory.mktemp("out") / f"run{number}")
    filled = [word.format(world=world, out=out) if "{" in word else word for word in words]
    monkeypatch.chdir(tmp_path_factory.mktemp("here"))
    code, said = run(filled, capsys, monkeypatch)
    shown = shlex.join(filled)
    assert code not in (0, 1), f"{shown} ended with {code}: {said}"
    assert "Traceback" not in said, f"{shown}: {said}"
    assert STEP.search(said), f"{shown} does not say what to do: {said}"
    for proposed in PROPOSED.findall(said)[:1]:
        word = spoilt.partition(":")[0]
        better = [proposed if one == word else one for one in filled]
        if better != filled:
            _, again = run(better, capsys, monkeypatch)
            assert f"{proposed!r}" not in again, f"{better}: {again}"
    for listed in re.findall(r"retinoscope list ([a-z]+)(?= |$|\.)", said)[:1]:
        assert run(["list", listed], capsys, monkeypatch)[0] == 0


CALLS = {
    "load_subject": (models, lambda word: retinoscope.load_subject(word, "cues", images=4)),
    "data": (data, lambda word: retinoscope.examine(TINY, word, probes=["variance"], out="run")),
    "probes": (
        probes,
        lambda word: retinoscope.examine(TINY, images=4, probes=[word], out="run"),
    ),
    "preset": (
        names(["quick", "standard", "paper"]),
        lambda word: retinoscope.examine(TINY, preset=word, out="run"),
    ),
    "size": (
        st.sampled_from([0, -1, (0, 4), (3, 3, 3), "8", 2.5, (8,), ()]),
        lambda size: retinoscope.load_subject(TINY, "cues", images=4, size=size),
    ),
    "setting": (
        names(["images", "size", "mean", "std"]),
        lambda word: retinoscope.load_subject(TINY, "cues", **{word: 3}),
    ),
}


@st.composite
def wrong_calls(draw: st.DrawFn):
    """A function, and something that it cannot take."""
    name = draw(st.sampled_from(sorted(CALLS)))
    strategy, call = CALLS[name]
    return name, call, draw(strategy)


@quick(15)
@given(wrong=wrong_calls())
def test_wrong_calls(wrong, world, monkeypatch, tmp_path_factory):
    try_call(wrong, world, monkeypatch, tmp_path_factory)


@pytest.mark.proof
@quick(200)
@given(wrong=wrong_calls())
def test_200_wrong_calls(wrong, world, monkeypatch, tmp_path_factory):
    try_call(wrong, world, monkeypatch, tmp_path_factory)


def try_call(wrong, world, monkeypatch, tmp_path_factory):
    """Make a wrong call in Python."""
    name, call, word = wrong
    monkeypatch.chdir(tmp_path_factory.mktemp("here"))
    filled = word.format(world=world) if isinstance(word, str) and "{" in word else word
    try:
        done = call(filled)
    except RetinoscopeError as error:
        said = str(error)
    else:  # that nothing is applicable is an answer too, but no result
        said = "" if getattr(done, "measured", True) else "Nothing was measured. Check the report."
    assert STEP.search(said), f"{name} of {filled!r} does not say what to do: {said or done!r:.300}"
