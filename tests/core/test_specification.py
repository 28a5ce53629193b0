import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinoscope.core.specification import MalformedSpecification, Specification

keys = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)
values = st.one_of(
    st.integers(), st.booleans(), st.none(), st.tuples(st.integers(), st.integers()),
    st.from_regex(r"[a-z_]{4,9}", fullmatch=True).filter(lambda text: text not in ("None", "True")),
)  # fmt: skip


@given(st.from_regex(r"[a-z0-9_.]{1,9}", fullmatch=True), st.dictionaries(keys, values, max_size=4))
def test_reads_what_it_prints(name, options):
    written = Specification(name, options)
    assert Specification.parse(str(written)) == written


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("resnet50.a1_in1k", "resnet50.a1_in1k", {}),
        ("torchvision:resnet50", "torchvision:resnet50", {}),
        ("hf:google/vit", "hf:google/vit", {}),
        ("dir/file.py:build", "dir/file.py:build", {}),
        ("dir/file.py:build:depth=2", "dir/file.py:build", {"depth": 2}),
        ("swin:window=(7, 7),drop=0.1", "swin", {"window": (7, 7), "drop": 0.1}),
        ("vit:pool=avg,token=False", "vit", {"pool": "avg", "token": False}),
    ],
)
def test_known_forms(text, name, options):
    assert Specification.parse(text) == Specification(name, options)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("vit:size=3,4", "'4' in 'vit:size=3,4' is not of the form key=value"),
        (":size=3", "has no name"),
    ],
)
def test_malformed(text, says):
    with pytest.raises(MalformedSpecification, match=says):
        Specification.parse(text)
