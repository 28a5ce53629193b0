"""Names mean nothing: renaming every attribute changes nothing in an anatomy but names."""

from dataclasses import replace

import pytest
import timm
from torch import nn

import retinoscope.models  # noqa: F401  registers the micro networks
from retinoscope import dissect
from sampling import PROOF

SWIN = {"img_size": 56, "depths": (2, 1), "num_heads": (3, 6)}


def renamed(module: nn.Module, counter=None) -> nn.Module:
    """Give every submodule, parameter and buffer a meaningless name, in place.

    Each module gets a subclass of its own class that translates the names its code uses.
    """
    counter = counter if counter is not None else iter(range(10**6))
    for child in module.children():
        renamed(child, counter)
    translation = {}
    for store in ("_modules", "_parameters", "_buffers"):
        old = getattr(module, store)
        new = {f"z{next(counter)}": value for value in old.values()}
        translation |= dict(zip(old, new, strict=True))
        module.__dict__[store] = new
    module._non_persistent_buffers_set = {
        translation.get(name, name) for name in module._non_persistent_buffers_set
    }
    base = type(module)

    def __getattr__(self, name):
        return base.__getattr__(self, translation.get(name, name))

    def __getitem__(self, place):
        values = list(self._modules.values())
        return nn.Sequential(*values[place]) if isinstance(place, slice) else values[place]

    methods = {"__getattr__": __getattr__}
    if isinstance(module, nn.ModuleList | nn.Sequential):
        methods["__getitem__"] = __getitem__
    module.__class__ = type("Z", (base,), methods)
    return module


def nameless(unit):
    return replace(unit, name="", module=None, inner=tuple(nameless(inner) for inner in unit.inner))


@pytest.mark.parametrize(
    ("name", "size", "shallow"),
    [
        ("test_resnet", 160, {}),
        ("test_vit", 160, {}),
        pytest.param("test_convnext", 160, {}, marks=PROOF),
        ("swin_tiny_patch4_window7_224", 56, SWIN),
        pytest.param("xcit_nano_12_p8_224", 32, {"depth": 1, "img_size": 32}, marks=PROOF),
        pytest.param("micro_mixer", 32, {}, marks=PROOF),
        pytest.param("test_efficientnet", 160, {}, marks=PROOF),
        pytest.param("swin_tiny_patch4_window7_224", 224, {"depths": (2, 2, 2, 2)}, marks=PROOF),
        pytest.param("pit_ti_224", 224, {"depth": (1, 2, 1)}, marks=PROOF),
        pytest.param("mobilevit_xxs", 128, {}, marks=PROOF),
        pytest.param("xcit_nano_12_p16_224", 224, {"depth": 3}, marks=PROOF),
        pytest.param("mixer_s32_224", 224, {}, marks=PROOF),
    ],
)
def test_only_names_change(name, size, shallow, taken_apart):
    expected = taken_apart(name, size, **shallow)
    other = renamed(timm.create_model(name, **shallow))
    assert not {"blocks", "attn", "conv1"} & {
        n for path, _ in other.named_modules() for n in path.split(".")
    }
    found = dissect(other, size)
    assert [nameless(unit) for unit in found] == [nameless(unit) for unit in expected]
    assert all(unit.name.startswith("z") for unit in found.walk())
    assert [u.module is None for u in found.walk()] == [u.module is None for u in expected.walk()]
