import pytest
import timm
import torch
from torch import nn
from torch.nn.functional import avg_pool2d, interpolate

from retinoscope.models.sizing import find_size, takes


class Pooled(nn.Module):
    """A CIFAR network of the common kind: it pools 4 × 4 positions and flattens what is left."""

    def __init__(self):
        super().__init__()
        steps = [(3, 1), (4, 2), (4, 2), (4, 2)]
        self.body = nn.Sequential(*(nn.Conv2d(c, 4, 3, s, 1) for c, s in steps))
        self.norm, self.head = nn.BatchNorm2d(4), nn.Linear(4, 10)

    def forward(self, x):
        return self.head(avg_pool2d(self.norm(self.body(x)), 4).flatten(1))


class Tokens(nn.Module):
    """Patches and a table of positions, used by its beginning, whole, or resampled."""

    def __init__(self, size, patch, use):
        super().__init__()
        self.patches = nn.Conv2d(3, 4, patch, patch)
        self.table = nn.Parameter(torch.zeros(1, 4, (size // patch), (size // patch)))
        self.use, self.head, self.seen = use, nn.Linear(4, 10), None

    def forward(self, x):
        x = self.seen = self.patches(x)
        if self.use == "resampled":
            return self.head((x + interpolate(self.table, x.shape[-2:])).mean((2, 3)))
        x, table = x.flatten(2), self.table.flatten(2)
        return self.head(
            (x + (table[..., : x.shape[-1]] if self.use == "begin" else table)).mean(2)
        )


def convolutions(*strides, channels=3):
    layers = [nn.Conv2d(channels if not i else 4, 4, 3, s, 1) for i, s in enumerate(strides)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))


def flattened():
    return nn.Sequential(nn.Conv2d(3, 1, 5), nn.Flatten(), nn.Linear(24 * 24, 10))


READ = {
    "pooled 32": (Pooled, 32),
    "flattened 28": (flattened, 28),
    "whole table 32": (lambda: Tokens(32, 4, "whole"), 32),
    "whole table 224": (lambda: Tokens(224, 16, "whole"), 224),
    "beginning of a table 64": (lambda: Tokens(64, 8, "begin"), 64),
    "beginning of a table 256": (lambda: Tokens(256, 32, "begin"), 256),
    "resampled table 224": (lambda: Tokens(224, 8, "resampled"), 224),
    "resampled table 384": (lambda: Tokens(384, 16, "resampled"), 384),
}  # fmt: skip


@pytest.mark.parametrize(("build", "size"), READ.values(), ids=READ)
def test_a_size_that_the_network_fixes_is_read(build, size):
    found = find_size(build(), 3)
    assert found.size == (size, size)
    assert found.how.startswith("read from the network")


ASSUMED = {
    "no stride at the start, 4 in all": ((1, 2, 2), 32, "last map would be 56×56"),
    "no stride at the start, 8 in all": ((1, 2, 2, 2), 32, "last map would be 28×28"),
    "no stride at the start, 16 in all": ((1, 2, 2, 2, 2), 224, "nothing in the network fixes it"),
    "patches of 4": ((4, 1), 32, "last map would be 56×56"),
    "a photograph's stem, 8 in all": ((2, 2, 2), 224, "nothing in the network fixes it"),
    "32 in all": ((2, 2, 2, 2, 2), 224, "nothing in the network fixes it"),
}


@pytest.mark.parametrize(("strides", "size", "says"), ASSUMED.values(), ids=ASSUMED)
def test_a_network_that_takes_any_size_is_judged_by_its_resolution(strides, size, says):
    found = find_size(convolutions(*strides), 3)
    assert found.size == (size, size)
    assert found.how.startswith("assumed: ")
    assert says in found.how


@pytest.mark.parametrize(("name", "size"), [("resnet20_cifar", 32), ("test_resnet", 224)])
def test_published_networks(name, size):
    assert find_size(timm.create_model(name), 3).size == (size, size)


def test_nothing_is_left_in_the_network_and_nothing_is_drawn():
    model, before = Tokens(32, 4, "whole"), torch.get_rng_state()
    find_size(model, 3)
    assert model.seen is None
    assert type(model.table) is nn.Parameter
    assert torch.equal(torch.get_rng_state(), before)
    assert model(torch.zeros(1, 3, 32, 32)).isfinite().all()


def test_what_depends_on_content_is_assumed_and_says_so(capfd):
    class Fussy(nn.Conv2d):
        def forward(self, x):
            return super().forward(x).mean((2, 3)) if x.sum().item() == 0 else x.amax((2, 3))

    found = find_size(Fussy(3, 4, 3), 3)
    assert found == ((224, 224), "assumed: the network could not be tried at the usual sizes")
    assert takes(Fussy(3, 4, 3), (3, 224, 224))  # nobody can tell
    assert not takes(Tokens(32, 4, "whole"), (3, 224, 224))
    assert capfd.readouterr() == ("", "")
