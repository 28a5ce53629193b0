import copy
from functools import cache

import pytest
import timm
import torch
from torch import nn

from retinoscope import dissect
from retinoscope.core.errors import SurgeryRefused
from retinoscope.models.order_one import draw_at_order_one
from retinoscope.surgery import parse_surgery
from retinoscope.surgery.context_broadcasting import ContextBroadcasting
from sampling import sampled

SIZE = 32
SMALL = {"embed_dim": 24, "depth": 2, "num_heads": 2}
VIT = {"img_size": SIZE, "patch_size": 8, **SMALL}
SWIN = {"img_size": 56, "embed_dim": 12, "depths": (1,), "num_heads": (2,)}
PVT = {"depths": (1, 1), "embed_dims": (8, 16), "num_heads": (1, 2), "sr_ratios": (2, 1),
       "mlp_ratios": (2, 2)}  # fmt: skip


def images(size=SIZE):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(3, 3, size, size, generator=generator, dtype=torch.float64)


def logits(model, x):
    with torch.no_grad():
        found = model(x)
    return found if isinstance(found, torch.Tensor) else found.logits


@cache
def anatomy_of(model, size):
    return dissect(model, size)


def operated(model, size=SIZE, **settings):
    return ContextBroadcasting(**settings).operate(model, anatomy_of(model, size))


def difference(a, b):
    """The largest difference, relative to the largest value."""
    return ((a - b).abs().max() / b.abs().max()).item()


def broadcast(x, dim=1):
    return (x + x.mean(dim, keepdim=True)) / 2


FORMS = {
    "cb": broadcast,
    "gate": lambda x: x * (x[:, :1] + 1),
    "hybrid": lambda x: x * x[:, :1] + broadcast(x),
}


def hooked(model, before=(), behind=(), form=broadcast):
    """A copy in which ``form`` is done by hooks before and behind some of its modules."""
    twin = copy.deepcopy(model)

    def change(given):
        return (form(given[0]), *given[1:]) if isinstance(given, tuple) else form(given)

    for path in before:
        twin.get_submodule(path).register_forward_pre_hook(lambda _, given: change(given))
    for path in behind:
        twin.get_submodule(path).register_forward_hook(lambda _, __, given: change(given))
    return twin


def paths(pattern, blocks=range(2)):
    return [pattern.format(block) for block in blocks]


def small(name, **options):
    return draw_at_order_one(timm.create_model(name, num_classes=5, **options)).eval().double()


@pytest.fixture(scope="module")
def vit():
    return small("vit_tiny_patch16_224", **VIT)


@pytest.mark.parametrize(
    ("where", "position", "before", "behind"),
    [
        ("mlp", "front", ["blocks.{}.mlp.fc1"], []),
        ("mlp", "mid", ["blocks.{}.mlp.fc2"], []),
        ("mlp", "end", [], ["blocks.{}.mlp.fc2"]),
        ("attention", "front", ["blocks.{}.attn.qkv"], []),
        ("attention", "mid", ["blocks.{}.attn.proj"], []),
        ("attention", "end", [], ["blocks.{}.attn.proj"]),
        ("both", "end", [], ["blocks.{}.attn.proj", "blocks.{}.mlp.fc2"]),
    ],
)
def test_agrees_with_hooks_at_each_place(vit, where, position, before, behind):
    patient = operated(vit, where=where, position=position)
    reference = hooked(
        vit,
        [p for path in before for p in paths(path)],
        [p for path in behind for p in paths(path)],
    )
    x = images()
    found = logits(patient, x)
    assert difference(found, logits(reference, x)) < 1e-12  # float64, sums in another order
    assert difference(found, logits(vit, x)) > 1e-2


@pytest.mark.parametrize("variant", ["gate", "hybrid"])
def test_agrees_with_hooks_in_each_variant(vit, variant):
    patient = operated(vit, variant=variant)
    reference = hooked(vit, behind=paths("blocks.{}.mlp.fc2"), form=FORMS[variant])
    assert difference(logits(patient, images()), logits(reference, images())) < 1e-12


@pytest.mark.parametrize("where", ["mlp", "attention"])
def test_middle_and_end_are_the_same_function_for_the_average(vit, where):
    """A linear map with a bias commutes with (x + mean) / 2, whatever the paper found."""
    mid, end, front = (
        logits(operated(vit, where=where, position=position), images())
        for position in ("mid", "end", "front")
    )
    assert difference(mid, end) < 1e-10
    assert difference(front, end) > 1e-2


@pytest.mark.parametrize("settings", [{"scale": 0.0}, {"variant": "cb_s"}])
def test_neutral_settings_change_nothing(vit, settings):
    patient = operated(vit, where="both", **settings)
    assert difference(logits(patient, images()), logits(vit, images())) < 1e-12


def test_half_a_scale_is_between(vit):
    half = operated(vit, scale=0.5)
    reference = hooked(
        vit, behind=paths("blocks.{}.mlp.fc2"), form=lambda x: 0.75 * x + x.mean(1, True) / 4
    )
    assert difference(logits(half, images()), logits(reference, images())) < 1e-12


def test_learned_scales_are_all_that_is_new_and_they_train(vit):
    before = copy.deepcopy(vit.state_dict())
    patient = operated(vit, variant="cb_s", position="mid").train()
    new = set(patient.state_dict()) - set(before)
    assert new == {f"blocks.{b}.mlp.fc2.graft_before.0.weight" for b in range(2)}
    assert all(torch.equal(patient.state_dict()[key], before[key]) for key in before)
    scales = [patient.get_parameter(key) for key in sorted(new)]
    assert all(scale.shape == (96,) and scale.dtype == torch.float64 for scale in scales)
    optimiser = torch.optim.SGD(patient.parameters(), lr=0.1)
    patient(images()).square().mean().backward()
    optimiser.step()
    assert all((scale != 0).all() for scale in scales)
    reference = hooked(vit)
    for block, scale in zip(reference.blocks, scales, strict=True):
        block.mlp.fc2.register_forward_pre_hook(
            lambda _, given, scale=scale: given[0] + scale * given[0].mean(1, True)
        )
    patient.load_state_dict(before, strict=False)
    patient.eval()
    assert difference(logits(patient, images()), logits(reference, images())) < 1e-12
    assert all(torch.equal(vit.state_dict()[key], before[key]) for key in before)
    assert type(vit.blocks[0].mlp.fc2) is nn.Linear


@pytest.mark.parametrize(
    ("where", "variant"),
    sampled([("mlp", "cb"), ("attention", "hybrid"), ("both", "cb_s")], "both"),
)
def test_the_patient_has_the_same_anatomy(vit, where, variant):
    patient = operated(vit, where=where, variant=variant, position="front")
    anatomy, found = anatomy_of(vit, SIZE), dissect(patient, SIZE)
    assert [(u.name, u.kind) for u in found] == [(u.name, u.kind) for u in anatomy]


def test_only_units_of_the_anatomy_given_are_operated_on(vit):
    part = anatomy_of(vit, SIZE).where(kind="mlp")
    part = type(part)(part.model, part.units[1:], part.image)
    patient = ContextBroadcasting().operate(vit, part)
    reference = hooked(vit, behind=["blocks.1.mlp.fc2"])
    assert difference(logits(patient, images()), logits(reference, images())) < 1e-12


def test_the_mean_is_over_the_whole_image_where_attention_is_in_windows():
    model, x = small("swin_tiny_patch4_window7_224", **SWIN), images(56)
    patient = operated(model, 56)
    # timm hands tokens (N, H·W, C) to the MLP of a Swin block
    reference = hooked(model, behind=["layers.0.blocks.0.mlp.fc2"])
    assert difference(logits(patient, x), logits(reference, x)) < 1e-12
    assert difference(logits(patient, x), logits(model, x)) > 1e-3
    with pytest.raises(SurgeryRefused, match=r"layers.0.blocks.0.attn.*spread over the batch"):
        operated(model, 56, where="attention")


@pytest.fixture(scope="module")
def pvt():
    return small("pvt_v2_b0", **PVT)


@pytest.mark.parametrize(
    ("where", "position", "before", "behind"),
    [
        ("mlp", "front", ["stages.{}.blocks.0.mlp.fc1"], []),
        ("mlp", "end", [], ["stages.{}.blocks.0.mlp.fc2"]),
        # Queries read tokens, the reduced keys maps: both are the outcome of the norm.
        ("attention", "front", ["stages.{}.blocks.0.attn"], []),
    ],
)
def test_a_depthwise_convolution_inside_leaves_an_mlp_an_mlp(pvt, where, position, before, behind):
    anatomy, x = anatomy_of(pvt, 64), images(64)
    assert anatomy.sketch == "AC|C↓AC"
    patient = operated(pvt, 64, where=where, position=position)
    reference = hooked(
        pvt,
        [p for path in before for p in paths(path)],
        [p for path in behind for p in paths(path)],
    )
    assert difference(logits(patient, x), logits(reference, x)) < 1e-12
    assert difference(logits(patient, x), logits(pvt, x)) > 1e-3
    assert [u.kind for u in dissect(patient, 64)] == [u.kind for u in anatomy]


def test_an_inverted_bottleneck_is_no_mlp_unless_it_is_behind_attention():
    """The same three maps, in the place of an MLP and elsewhere."""

    class Maps(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.a, self.c = nn.Conv2d(width, 16, 1), nn.Conv2d(16, width, 1)
            self.b = nn.Conv2d(16, 16, 3, 1, 1, groups=16)

        def forward(self, x):
            return x + self.c(self.b(self.a(x).relu()).relu())

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.head = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 5)
            self.early, self.late = Maps(8), Maps(8)
            self.norm, self.attend = nn.LayerNorm(8), nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            x = self.early(self.stem(x))
            tokens = self.norm(x.flatten(2).transpose(1, 2))
            mixed = self.attend(tokens, tokens, tokens, need_weights=False)[0]
            x = x + mixed.transpose(1, 2).reshape(x.shape)
            return self.head(self.late(x).relu().mean((2, 3)))

    model = draw_at_order_one(Mixed()).eval().double()
    assert dissect(model, SIZE).sketch == "CAC"
    patient = operated(model)
    reference = hooked(model, behind=["late.c"], form=lambda x: broadcast(x, (2, 3)))
    assert difference(logits(patient, images()), logits(reference, images())) < 1e-12
    assert difference(logits(patient, images()), logits(model, images())) > 1e-3


class Gated(nn.Module):
    """A gated MLP on tokens (T, N, C), with linear maps of one's own."""

    def __init__(self, width, hidden):
        super().__init__()
        self.scale = nn.LayerNorm(width)
        self.wheels = nn.ModuleDict(
            {"un": Own(width, hidden), "deux": Own(width, hidden), "trois": Own(hidden, width)}
        )

    def forward(self, z):
        y = self.scale(z)
        return z + self.wheels["trois"](self.wheels["un"](y).sigmoid() * self.wheels["deux"](y))


class Own(nn.Module):
    def __init__(self, width, to):
        super().__init__()
        self.matrix, self.shift = (
            nn.Parameter(torch.empty(width, to)),
            nn.Parameter(torch.zeros(to)),
        )

    def forward(self, q):
        return q @ self.matrix + self.shift


class Odd(nn.Module):
    """Tokens come first, the batch second; names say nothing."""

    def __init__(self):
        super().__init__()
        self.mlp_stem, self.attention_out = nn.Conv2d(3, 8, 8, 8), nn.Linear(8, 5)
        self.x1, self.x2, self.x3 = nn.LayerNorm(8), Split(8), Gated(8, 12)

    def forward(self, image):
        z = self.mlp_stem(image).flatten(2).permute(2, 0, 1)
        z = z + self.x2(self.x1(z))
        return self.attention_out(self.x3(z).relu().mean(0))  # the bare mean would not notice


class Split(nn.Module):
    """Attention over the first dimension, with three maps on the same tensor."""

    def __init__(self, width):
        super().__init__()
        self.ask, self.key, self.say, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, z):
        weights = torch.einsum("tnc,snc->nts", self.ask(z), self.key(z)).softmax(-1)
        return self.out(torch.einsum("nts,snc->tnc", weights, self.say(z)))


@pytest.mark.parametrize(
    ("where", "position", "before", "behind"),
    [
        ("mlp", "front", ["x3.wheels.un", "x3.wheels.deux"], []),
        ("mlp", "mid", ["x3.wheels.trois"], []),
        ("mlp", "end", [], ["x3.wheels.trois"]),
        ("attention", "front", ["x2"], []),
    ],
)
def test_a_module_of_ones_own(where, position, before, behind):
    model = draw_at_order_one(Odd()).eval().double()
    assert dissect(model, SIZE).sketch == "AM"
    patient = operated(model, where=where, position=position)
    reference = hooked(model, before, behind, lambda z: broadcast(z, 0))
    assert difference(logits(patient, images()), logits(reference, images())) < 1e-12
    assert difference(logits(patient, images()), logits(model, images())) > 1e-3


def test_maps_on_the_same_tensor_share_their_scales():
    model = draw_at_order_one(Odd()).eval().double()
    patient = operated(model, where="attention", variant="cb_s", position="front")
    count = sum(p.numel() for p in patient.parameters())
    assert count == sum(p.numel() for p in model.parameters()) + 8
    with torch.no_grad():
        patient.x2.ask.graft_before[0].weight.fill_(0.5)
    reference = hooked(model, ["x2"], form=lambda z: z + z.mean(0) / 2)
    for twin in (patient, copy.deepcopy(patient)):
        assert difference(logits(twin, images()), logits(reference, images())) < 1e-12


def test_other_peoples_vits():
    torchvision = pytest.importorskip("torchvision")
    model = torchvision.models.VisionTransformer(SIZE, 8, 2, 2, 24, 48, num_classes=5)
    model = draw_at_order_one(model).eval().double()
    layers = paths("encoder.layers.encoder_layer_{}.self_attention")
    patient = operated(model, where="attention")
    reference = hooked(model, behind=layers)
    assert difference(logits(patient, images()), logits(reference, images())) < 1e-12
    with pytest.raises(SurgeryRefused, match=r"self_attention.*is not a separate module"):
        operated(model, where="attention", position="front")
    with pytest.raises(SurgeryRefused, match=r"self_attention.*is not a separate module"):
        operated(model, where="attention", position="mid")


def test_a_vit_of_transformers():
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
        image_size=SIZE, patch_size=8,
    )  # fmt: skip
    model = draw_at_order_one(transformers.ViTForImageClassification(config)).eval().double()
    wide = [n for n, m in model.named_modules() if getattr(m, "in_features", 0) == 48]
    assert len(wide) == 2
    reference = hooked(model, behind=wide)
    assert difference(logits(operated(model), images()), logits(reference, images())) < 1e-12


def test_gates_need_a_class_token():
    with pytest.raises(SurgeryRefused, match="'gate' multiplies by the class token, but no token"):
        operated(Odd(), variant="gate")


def test_registers_are_no_class_token():
    pooled = {"class_token": False, "reg_tokens": 2, "global_pool": "avg"}
    model = small("vit_tiny_patch16_224", **VIT, **pooled)
    assert anatomy_of(model, SIZE).units[1].grid.prefix == 2
    with pytest.raises(SurgeryRefused, match="the head does not read the first token"):
        operated(model, variant="gate")


def test_refuses_where_there_is_nothing_to_operate_on():
    model = small("test_resnet")
    with pytest.raises(SurgeryRefused, match=r"no mlp unit. It has: .*4 conv.*counts as one if"):
        operated(model)
    with pytest.raises(SurgeryRefused, match="it has no attention unit"):
        operated(model, where="both")


def test_refuses_branches_side_by_side():
    """Two attentions at once: the last map of one is not the end of the unit."""

    class Twins(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = Split(8), Split(8)

        def forward(self, z):
            return torch.stack([self.left(z), self.right(z)]).sum(0)

    model = Odd()
    model.x2 = Twins()
    for position in ("front", "end"):
        with pytest.raises(SurgeryRefused, match=r"x2.*several parallel branches with learned"):
            operated(model, where="attention", position=position)


def test_refuses_first_maps_that_read_different_tensors():
    class Pooled(Split):
        """Keys come from a coarser copy of the tokens."""

        def forward(self, z):
            coarse = z.mean(0, keepdim=True) + z
            weights = torch.einsum("tnc,snc->nts", self.ask(z), self.key(coarse)).softmax(-1)
            return self.out(torch.einsum("nts,snc->tnc", weights, self.say(coarse)))

    model = Odd()
    model.x2 = Pooled(8)
    with pytest.raises(SurgeryRefused, match=r"x2.*do not read the same tensor"):
        operated(model, where="attention", position="front")


def test_settings_are_checked():
    assert parse_surgery("context_broadcasting:variant=cb_s,scale=1") == ContextBroadcasting("cb_s")
    for wrong, message in (
        ({"variant": "cbs"}, "variant is one of cb, cb_s, gate, hybrid; got 'cbs'"),
        ({"where": "conv"}, "where is one of mlp, attention, both; got 'conv'"),
        ({"position": "back"}, "position is one of front, mid, end; got 'back'"),
        ({"scale": "much"}, "scale is a number; got 'much'"),
    ):
        with pytest.raises(ValueError, match=message):
            ContextBroadcasting(**wrong)
