import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from retinoscope.core.specification import (
    MalformedSpecification,
    Specification,
    short_name,
    short_names,
    split_label,
)

keys = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)
odd_text = st.text(st.sampled_from("ab1.,:=[](){}'\"\\ +-/\n"), max_size=12)
plain = st.one_of(
    st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False, allow_infinity=False),
    st.text(), odd_text,
)  # fmt: skip
values = st.one_of(
    plain, st.lists(plain, max_size=3), st.lists(plain, max_size=3).map(tuple),
    st.dictionaries(st.text(max_size=3), plain, max_size=2),
)  # fmt: skip
names = st.one_of(st.from_regex(r"[a-z0-9_.]{1,9}", fullmatch=True), st.text(), odd_text)


@given(names.filter(bool), st.dictionaries(keys, values, max_size=4))
@example("a", {"k": "[a]+[b]"})
@example("ensemble:[a.safetensors]+[b.safetensors]", {"k": "Dad's"})
@example("a:b=1", {})
@example("[a]", {"k": "[1, 2]"})
@example("'tis", {"k": " 1 "})
def test_reads_what_it_prints(name, options):
    written = Specification(name, options)
    assert Specification.parse(str(written)) == written
    nested = Specification("outer", {"other": str(written), "k": 1})
    assert Specification.parse(Specification.parse(str(nested)).options["other"]) == written


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("resnet50.a1_in1k", "resnet50.a1_in1k", {}),
        ("torchvision:resnet50", "torchvision:resnet50", {}),
        ("hf:google/vit", "hf:google/vit", {}),
        ("dir/file.py:build", "dir/file.py:build", {}),
        ("dir/file.py:build:depth=2", "dir/file.py:build", {"depth": 2}),
        ("./x.py:Probe:k=3", "./x.py:Probe", {"k": 3}),
        ("smp:Unet:encoder_name=resnet18", "smp:Unet", {"encoder_name": "resnet18"}),
        ("swin:window=(7, 7),drop=0.1", "swin", {"window": (7, 7), "drop": 0.1}),
        ("vit:pool=avg,token=False", "vit", {"pool": "avg", "token": False}),
        ("sgd:milestones=[60,120]", "sgd", {"milestones": [60, 120]}),
        ("deit:teacher=torchvision:resnet50", "deit", {"teacher": "torchvision:resnet50"}),
        ("cka:other=[vit:depth=2,heads=3],k=1", "cka", {"other": "vit:depth=2,heads=3", "k": 1}),
        ("t:model=[a:b=[c:d=1]],past=5", "t", {"model": "a:b=[c:d=1]", "past": 5}),
        ("ensemble:[a.safetensors]+[b.pth]", "ensemble:[a.safetensors]+[b.pth]", {}),
        ("ensemble:[a:x=1]+[b:y=2]:k=3", "ensemble:[a:x=1]+[b:y=2]", {"k": 3}),
        ("n:of=[a]+[b]", "n", {"of": "[a]+[b]"}),
        ("n:file='a,b=c.pth',k=1", "n", {"file": "a,b=c.pth", "k": 1}),
        ('n:file="a]b",k="5"', "n", {"file": "a]b", "k": "5"}),
        ("n:of=Dad's,k=1", "n", {"of": "Dad's", "k": 1}),
        ("'a:b=c.py':build:k=1", "a:b=c.py:build", {"k": 1}),
        ("[vit:depth=2]", "vit", {"depth": 2}),
        (" n : k = 1 , l = two words ", "n", {"k": 1, "l": "two words"}),
    ],
)
def test_known_forms(text, name, options):
    assert Specification.parse(text) == Specification(name, options)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("vit:size=3,4", "'4' in 'vit:size=3,4' is not of the form key=value"),
        (":size=3", "has no name"),
        ("", "has no name"),
        ("vit:size=(3", r"lacks '\)'"),
        ("vit:size=3)", r"'\)' in .* closes no open bracket"),
        ("vit:file='a", 'The quote "\'a" is not closed'),
        ("vit:k=1,k=2", "k is given twice"),
        ("'vit'k=1", "A colon must follow the quoted name"),
    ],
)
def test_malformed(text, says):
    with pytest.raises(MalformedSpecification, match=says):
        Specification.parse(text)


def test_names_without_colons_want_options_behind_one():
    assert Specification.parse("micro:lr=1", colons=False) == Specification("micro", {"lr": 1})
    with pytest.raises(MalformedSpecification, match="'epochs' in 'micro:epochs' is not of the"):
        Specification.parse("micro:epochs", colons=False)


def test_an_existing_file_is_that_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a:k=1,b=(.pth", "lr=0.1.py", "runs:x=1"):
        (tmp_path / name).touch()
        assert Specification.parse(name) == Specification(name, {})
        assert Specification.parse(f"{name}:build:k=1") == Specification(f"{name}:build", {"k": 1})
        assert split_label(name) == (None, name)
    assert split_label("mine=lr=0.1.py") == ("mine", "lr=0.1.py")
    # Once it is gone, what was written can still be read.
    written = str(Specification.parse("a:k=1,b=(.pth"))
    (tmp_path / "a:k=1,b=(.pth").unlink()
    assert Specification.parse(written).name == "a:k=1,b=(.pth"


@pytest.mark.parametrize(
    ("text", "label", "name"),
    [
        ("mine=resnet50", "mine", "resnet50"),
        ("My-net_v1.2=./x.py:build:k=1", "My-net_v1.2", "./x.py:build:k=1"),
        ("vit:img_size=32", None, "vit:img_size=32"),
        ("runs/lr=0.1/end.safetensors", None, "runs/lr=0.1/end.safetensors"),
        ("a b=resnet50", None, "a b=resnet50"),
        ("mine=", None, "mine="),
    ],
)
def test_labels(text, label, name):
    assert split_label(text) == (label, name)


def test_short_names_keep_what_tells_them_apart():
    assert short_name("resnet50:num_classes=10") == "resnet50:num_classes=10"
    assert short_name("/deep/down/net.py:build") == "net.py:build"
    assert short_name("hf:/models/vit") == "hf:vit"
    assert short_name("/a/mine.safetensors") == "mine.safetensors"
    assert short_name("a/net.py:f:k=2,weights=b/w.pth") == "net.py:f:k=2 (w.pth)"
    same = "x/net.py:build"
    assert short_names([same, same]) == ["net.py:build"] * 2  # one model, twice
    ends = [f"/runs/{name}/snapshots/end.safetensors" for name in ("a/x", "b/x")]
    assert short_names(ends) == ["a/x/end", "b/x/end"]
