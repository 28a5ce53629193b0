"""What the papers' own models are made of, exactly.

Each in full by ``make prove``; here with a block or two per stage, which run the same code.
"""

import pytest
import timm
import torch
import torchvision
from torch import nn

from retinoscope import Kind, dissect
from sampling import PROOF

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


# With few blocks and small images: options, the size of images, and what it is made of. Twins, PiT,
# LeViT, CoaT, ConViT and Mixer are there as micro networks, in tests/models.
SHALLOW = {
    "resnet18": ({"layers": (1, 1, 2, 2)}, 64, "C|C↓|C↓C|C↓C"),
    "resnet50": ({"layers": (1, 2, 1, 1)}, 64, "C|C↓C|C↓|C↓"),
    "vit_tiny_patch16_224": ({"img_size": 32, "depth": 2}, 32, "AMAM"),
    "swin_tiny_patch4_window7_224": (
        {"img_size": 56, "depths": (2, 1), "num_heads": (3, 6)}, 56, "AMAM|C↓AM"
    ),
    "resnetv2_50": ({"layers": (1, 1, 1, 1)}, 64, "C|C↓|C↓|C↓"),
    "convnext_atto": ({"depths": (1, 1, 2, 1)}, 64, "C|C↓C|C↓CC|C↓C"),
}  # fmt: skip


def own_size(name):
    return timm.get_pretrained_cfg(name).input_size[1:]


def either(name):
    """The shallow network, and the whole one by ``make prove``."""
    options, size, _ = SHALLOW[name]
    return [(name, size, options), pytest.param(name, own_size(name), {}, marks=PROOF)]


@pytest.mark.parametrize(
    ("name", "size", "options", "sketch"),
    [
        *((name, size, options, sketch) for name, (options, size, sketch) in SHALLOW.items()),
        *(pytest.param(n, own_size(n), {}, EXPECTED[n], marks=PROOF) for n in EXPECTED),
    ],
)
def test_timm(name, size, options, sketch, taken_apart):
    anatomy = taken_apart(name, size, **options)
    assert anatomy.sketch == sketch
    assert anatomy.units[0].kind is Kind.STEM
    assert anatomy.units[-1].kind is Kind.HEAD
    with torch.device("meta"):
        model = timm.create_model(name, **options)
    assert anatomy.parameters == sum(p.numel() for p in model.parameters())
    assert len({unit.name for unit in anatomy.walk()}) == len(list(anatomy.walk()))


@PROOF
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


def test_shallow_networks_of_torchvision():
    vit = torchvision.models.VisionTransformer(32, 8, 2, 2, 24, 48)
    assert dissect(vit, 32).sketch == "AMAM"
    swin = torchvision.models.SwinTransformer([4, 4], 12, [2], [2], [7, 7])
    assert dissect(swin, 56).sketch == "AMAM"


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


TINY_DEIT = {"img_size": 32, "depth": 1}
TINY_DINO = {"img_size": 56, "depth": 1}


@pytest.mark.parametrize(
    ("name", "size", "options", "units"),
    [
        (*either("resnet50")[0], {"conv1": "16×16", "layer1.0": "16×16", "fc": "None"}),
        (*either("vit_tiny_patch16_224")[0], {"blocks.1.attn": "2×2+1", "blocks.1.mlp": "2×2+1"}),
        (*either("swin_tiny_patch4_window7_224")[0], {"layers.1.blocks.0.attn": "7×7"}),
        ("deit_tiny_distilled_patch16_224", 32, TINY_DEIT, {"blocks.0.attn": "2×2+2"}),
        ("vit_small_patch14_reg4_dinov2", 56, TINY_DINO, {"blocks.0.attn": "4×4+5"}),
        *(
            pytest.param(name, own_size(name), {}, units, marks=PROOF)
            for name, units in {
                "resnet50": {
                    "conv1": "56×56", "layer1.0": "56×56", "layer3.5": "14×14", "fc": "None"
                },
                "vit_tiny_patch16_224": {"blocks.3.attn": "14×14+1", "blocks.3.mlp": "14×14+1"},
                "swin_tiny_patch4_window7_224": {"layers.2.blocks.1.attn": "14×14"},
                "deit_tiny_distilled_patch16_224": {"blocks.0.attn": "14×14+2"},
                "vit_small_patch14_reg4_dinov2": {"blocks.0.attn": "37×37+5"},
            }.items()
        ),
    ],
)  # fmt: skip
def test_names_and_grids(name, size, options, units, taken_apart):
    anatomy = taken_apart(name, size, **options)
    assert {unit: str(anatomy[unit].grid) for unit in units} == units


@pytest.mark.parametrize(("name", "size", "options"), either("resnet50"))
def test_modules_are_those_whose_output_is_the_branch(name, size, options, taken_apart):
    resnet = taken_apart(name, size, **options)
    assert resnet["layer2.1"].module == "layer2.1.bn3"
    assert resnet["layer2.0"].module == "layer2.0"  # not residual: the whole block


@pytest.mark.parametrize(("name", "size", "options"), either("vit_tiny_patch16_224"))
def test_modules_of_a_vit_are_attention_mlp_and_layer_scale(name, size, options, taken_apart):
    vit = taken_apart(name, size, **options)
    assert vit["blocks.0.attn"].module == "blocks.0.attn"
    assert vit["blocks.0.mlp"].module == "blocks.0.mlp"
    shallow = {"img_size": 32, "depth": 1, "init_values": 0.1}
    assert taken_apart(name, 32, **shallow)["blocks.0.attn"].module == "blocks.0.ls1"


@pytest.mark.parametrize(("name", "size", "options"), either("resnet18"))
def test_modules_of_basic_blocks(name, size, options, taken_apart):
    resnet = taken_apart(name, size, **options)
    assert resnet["layer1.0"].module == "layer1.0.bn2"
    assert resnet["layer3.0"].module == "layer3.0"


@pytest.mark.parametrize(("name", "size", "options"), either("resnet50"))
def test_residual_and_subsampling_marks(name, size, options, taken_apart):
    anatomy = taken_apart(name, size, **options)
    not_residual = [unit.name for unit in anatomy.where(kind="conv") if not unit.residual]
    assert not_residual == ["layer1.0", "layer2.0", "layer3.0", "layer4.0"]
    assert [u.name for u in anatomy if u.subsamples] == [
        "conv1",
        "layer2.0",
        "layer3.0",
        "layer4.0",
    ]


@pytest.mark.parametrize(("size", "side"), [(64, 8), pytest.param(256, 32, marks=PROOF)])
def test_inner_units_of_mobilevit(size, side, replayed):
    (outer, *_) = replayed("mobilevit_xxs", size)[1].anatomy.where(kind="attention")
    assert [u.kind for u in outer.inner] == ["conv", "attention", "mlp", "attention", "mlp", "mlp"]
    assert {str(u.grid) for u in outer.inner} == {f"{side}×{side}"}


@PROOF
def test_inner_units_of_edgenext():
    edgenext = dissect(timm.create_model("edgenext_xx_small"), 256)
    (outer, *_) = edgenext.where(kind="channel_attention")
    assert any(u.residual and u.kind is Kind.CHANNEL_ATTENTION for u in outer.inner)


@PROOF
def test_attention_of_nest():
    nest = dissect(timm.create_model("nest_tiny_jx"), 224)
    assert nest.where(kind="attention").sketch.replace("|", "") == "A" * 12


ONE_EACH = {"layers": (1, 1, 1, 1)}


@pytest.mark.parametrize(
    ("name", "size", "options"),
    [
        ("skresnet18", 64, ONE_EACH),
        ("resnest14d", 64, {}),
        ("legacy_seresnet18", 64, ONE_EACH),
        ("seresnext26d_32x4d", 64, ONE_EACH),
        *(
            pytest.param(name, 224, {}, marks=PROOF)
            for name in ("skresnet18", "resnest14d", "legacy_seresnet18", "seresnext26d_32x4d")
        ),
    ],
)
def test_gates_are_no_attention(name, size, options, taken_apart):
    anatomy = taken_apart(name, size, **options)
    assert {unit.kind for unit in anatomy.walk()} == {Kind.STEM, Kind.CONV, Kind.HEAD}


SWIN_V2 = {"img_size": 64, "depths": (1, 1), "num_heads": (3, 6)}


@pytest.mark.parametrize(
    ("name", "size", "options", "kinds"),
    [
        (
            "xcit_nano_12_p8_224", 32, {"depth": 1, "img_size": 32},
            {"channel_attention": 1, "attention": 2},
        ),
        ("swinv2_tiny_window8_256", 64, SWIN_V2, {"attention": 2}),
        ("eva02_tiny_patch14_224", 56, {"img_size": 56, "depth": 2}, {"attention": 2}),
        *(
            pytest.param(name, own_size(name), {}, kinds, marks=PROOF)
            for name, kinds in {
                "xcit_nano_12_p8_224": {"channel_attention": 12, "attention": 2},
                "davit_tiny": {"channel_attention": 6, "attention": 6},
                "efficientvit_b0": {"attention": 4},  # ReLU linear attention
                "mobilevitv2_050": {"attention": 9},  # separable attention: softmax, product, sum
                "volo_d1_224": {"attention": 20},  # outlook attention: unfolded neighbourhoods
                "swinv2_tiny_window8_256": {"attention": 12},  # cosine attention
                "poolformer_s12": {"pool": 12},
                "gmlp_ti16_224": {"token_mlp": 30},
                "resmlp_12_224": {"token_mlp": 12},
                "eva02_tiny_patch14_224": {"attention": 12},
            }.items()
        ),
    ],
)  # fmt: skip
def test_attention_however_it_is_written(name, size, options, kinds, taken_apart):
    anatomy = taken_apart(name, size, **options)
    found = [unit.kind for outer in anatomy for unit in (outer.inner or (outer,))]
    assert {kind: found.count(Kind(kind)) for kind in kinds} == kinds


def test_networks_without_residuals():
    with torch.device("meta"):
        model = timm.create_model("vgg11")
    anatomy = dissect(model, 224)
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
