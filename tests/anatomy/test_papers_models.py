"""What the papers' own models are made of, exactly."""

from functools import cache

import pytest
import timm
import torchvision
from torch import nn

from retinoscope import Kind, dissect

# C conv, A attention, a channel attention, M mlp, m token mlp, P pool; ↓ subsampling; | stage
EXPECTED = {
    "resnet18": "CC|C↓C|C↓C|C↓C",
    "resnet50": "CCC|C↓CCC|C↓CCCCC|C↓CC",
    "resnet101": "CCC|C↓CCC|C↓" + "C" * 22 + "|C↓CC",
    "resnext50_32x4d": "CCC|C↓CCC|C↓CCCCC|C↓CC",
    "vit_tiny_patch16_224": "AM" * 12,
    "vit_small_patch16_224": "AM" * 12,
    "pit_ti_224": "AM" * 2 + "|C↓" + "AM" * 6 + "|C↓" + "AM" * 4,
    "swin_tiny_patch4_window7_224": "AMAM|C↓AMAM|C↓" + "AM" * 6 + "|C↓AMAM",
    "twins_svt_small": "AMCAM|C↓AMCAM|C↓AMC" + "AM" * 9 + "|C↓AMC" + "AM" * 3,
    "mixer_s16_224": "mM" * 8,
    "convit_tiny": "AM" * 12,
    "levit_128s": "AM" * 2 + "|A↓M" + "AM" * 3 + "|A↓M" + "AM" * 4,
    "coat_lite_tiny": "CAMCAM" + "|C↓CAMCAM" * 3,
    "resnetv2_50": "CCC|C↓CCC|C↓CCCCC|C↓CC",
    "convnext_tiny": "CCC|C↓CCC|C↓" + "C" * 9 + "|C↓CCC",
    "pvt_v2_b0": "ACAC" + "|C↓ACAC" * 3,
}  # fmt: skip


@cache
def taken_apart(name):
    """The anatomy of a timm model at its own size, and how many parameters the model has."""
    model = timm.create_model(name)
    count = sum(p.numel() for p in model.parameters())
    return dissect(model, model.pretrained_cfg["input_size"][1:]), count


@pytest.mark.parametrize("name", EXPECTED)
def test_timm(name):
    anatomy, count = taken_apart(name)
    assert anatomy.sketch == EXPECTED[name]
    assert anatomy.units[0].kind is Kind.STEM
    assert anatomy.units[-1].kind is Kind.HEAD
    assert anatomy.parameters == count
    assert len({unit.name for unit in anatomy.walk()}) == len(list(anatomy.walk()))


@pytest.mark.parametrize(
    ("name", "sketch"),
    [
        ("vit_b_16", "AM" * 12),
        ("swin_t", EXPECTED["swin_tiny_patch4_window7_224"]),
        ("resnet50", EXPECTED["resnet50"]),
    ],
)
def test_torchvision(name, sketch):
    assert dissect(torchvision.models.get_model(name), 224).sketch == sketch


def test_transformers_vit_and_convnext():
    transformers = pytest.importorskip("transformers")
    vit = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
    )
    anatomy = dissect(transformers.ViTForImageClassification(vit), 32)
    assert anatomy.sketch == "AM" * 3
    assert str(anatomy.units[1].grid) == "4×4+1"
    convnext = transformers.ConvNextConfig(hidden_sizes=[8, 16, 24, 32], depths=[1, 2, 1, 1])
    assert (
        dissect(transformers.ConvNextForImageClassification(convnext), 64).sketch
        == "C|C↓CC|C↓C|C↓C"
    )


@pytest.mark.parametrize(
    ("name", "units"),
    [
        ("resnet50", {"conv1": "56×56", "layer1.0": "56×56", "layer3.5": "14×14", "fc": "None"}),
        ("vit_tiny_patch16_224", {"blocks.3.attn": "14×14+1", "blocks.3.mlp": "14×14+1"}),
        ("swin_tiny_patch4_window7_224", {"layers.2.blocks.1.attn": "14×14"}),
        ("deit_tiny_distilled_patch16_224", {"blocks.0.attn": "14×14+2"}),
        ("vit_small_patch14_reg4_dinov2", {"blocks.0.attn": "37×37+5"}),
    ],
)  # fmt: skip
def test_names_and_grids(name, units):
    anatomy, _ = taken_apart(name)
    assert {unit: str(anatomy[unit].grid) for unit in units} == units


def test_modules_are_those_whose_output_is_the_branch():
    resnet, _ = taken_apart("resnet18")
    assert resnet["layer1.0"].module == "layer1.0.bn2"
    assert resnet["layer2.0"].module == "layer2.0"  # not residual: the whole block
    vit, _ = taken_apart("vit_tiny_patch16_224")
    assert vit["blocks.0.attn"].module == "blocks.0.attn"
    assert vit["blocks.0.mlp"].module == "blocks.0.mlp"
    scaled = dissect(timm.create_model("vit_tiny_patch16_224", depth=2, init_values=0.1), 224)
    assert scaled["blocks.0.attn"].module == "blocks.0.ls1"


def test_residual_and_subsampling_marks():
    anatomy, _ = taken_apart("resnet50")
    not_residual = [unit.name for unit in anatomy.where(kind="conv") if not unit.residual]
    assert not_residual == ["layer1.0", "layer2.0", "layer3.0", "layer4.0"]
    assert [u.name for u in anatomy if u.subsamples] == [
        "conv1",
        "layer2.0",
        "layer3.0",
        "layer4.0",
    ]


def test_inner_units_of_mobilevit_edgenext_and_coat():
    mobilevit = dissect(timm.create_model("mobilevit_xxs"), 256)
    (outer, *_) = mobilevit.where(kind="attention")
    assert [u.kind for u in outer.inner] == ["conv", "attention", "mlp", "attention", "mlp", "mlp"]
    assert {str(u.grid) for u in outer.inner} == {"32×32"}
    edgenext = dissect(timm.create_model("edgenext_xx_small"), 256)
    (outer, *_) = edgenext.where(kind="channel_attention")
    assert any(u.residual and u.kind is Kind.CHANNEL_ATTENTION for u in outer.inner)
    nest = dissect(timm.create_model("nest_tiny_jx"), 224)
    assert nest.where(kind="attention").sketch.replace("|", "") == "A" * 12


@pytest.mark.parametrize(
    "name", ["skresnet18", "resnest14d", "legacy_seresnet18", "seresnext26d_32x4d"]
)
def test_gates_are_no_attention(name):
    anatomy = dissect(timm.create_model(name), 224)
    assert {unit.kind for unit in anatomy.walk()} == {Kind.STEM, Kind.CONV, Kind.HEAD}


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("xcit_nano_12_p8_224", {"channel_attention": 12, "attention": 2}),
        ("davit_tiny", {"channel_attention": 6, "attention": 6}),
        ("efficientvit_b0", {"attention": 4}),  # ReLU linear attention
        ("mobilevitv2_050", {"attention": 9}),  # separable attention: softmax, product, sum
        ("volo_d1_224", {"attention": 20}),  # outlook attention over unfolded neighbourhoods
        ("swinv2_tiny_window8_256", {"attention": 12}),  # cosine attention
        ("poolformer_s12", {"pool": 12}),
        ("gmlp_ti16_224", {"token_mlp": 30}),
        ("resmlp_12_224", {"token_mlp": 12}),
        ("eva02_tiny_patch14_224", {"attention": 12}),
    ],
)
def test_attention_however_it_is_written(name, kinds):
    anatomy, _ = taken_apart(name)
    found = [unit.kind for outer in anatomy for unit in (outer.inner or (outer,))]
    assert {kind: found.count(Kind(kind)) for kind in kinds} == kinds


def test_networks_without_residuals():
    anatomy = dissect(timm.create_model("vgg11"), 224)
    assert anatomy.sketch == "P↓C|P↓CC|P↓CC|P↓CC|P↓"
    assert not len(anatomy.where(residual=True))
    assert anatomy.units[-1].kind is Kind.HEAD


class Own(nn.Module):
    """A network written here: a stem, one residual and one gated unit, and a head."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 4, 4), nn.Conv2d(8, 8, 3, padding=1)
        self.c, self.d = nn.Conv2d(8, 16, 1), nn.Conv2d(16, 8, 1)
        self.e = nn.Linear(8, 5)

    def forward(self, x):
        x = self.a(x)
        x = x + self.b(x).relu()
        x = x + self.d(self.c(x).relu() * self.c(x).mean((2, 3), keepdim=True).sigmoid())
        return self.e(x.mean((2, 3)))


def test_a_model_written_here():
    anatomy = dissect(Own(), (32, 48))
    assert anatomy.sketch == "CM"
    assert [unit.name for unit in anatomy] == ["a", "b", "c", "e"]
    assert [str(unit.grid) for unit in anatomy] == ["8×12", "8×12", "8×12", "None"]
    assert [unit.channels for unit in anatomy] == [8, 8, 8, 5]
    assert anatomy.model == "Own"
