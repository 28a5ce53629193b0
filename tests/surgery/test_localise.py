import copy
import io
from dataclasses import replace
from functools import cache

import pytest
import timm
import torch
from timm.models.pvt_v2 import PyramidVisionTransformerV2
from timm.models.swin_transformer import SwinTransformer
from torch import nn
from torch.nn import functional as F
from torchvision.models import VisionTransformer

from retinoscope import dissect
from retinoscope.anatomy.graph.answer import choose_logits
from retinoscope.anatomy.record import recall
from retinoscope.anatomy.replay import Replay
from retinoscope.core.errors import SurgeryRefused, UnknownSurgery, WrongInput
from retinoscope.layers.attention_mask import AttentionMask
from retinoscope.layers.neighbourhood_attention import neighbourhood_mask
from retinoscope.models.order_one import draw_at_order_one
from retinoscope.surgery import parse_surgery
from retinoscope.surgery.localise import Localise
from sampling import sampled

PATCH, DIM = 4, 8
GRID = (3, 5)  # not square, so that rows and columns cannot be confused
SIZE = (GRID[0] * PATCH, GRID[1] * PATCH)


def timm_vit(fused=True, **options):
    given = {"img_size": SIZE, "patch_size": PATCH, "embed_dim": DIM, "depth": 1, "num_heads": 2}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=5, **given | options)
    for block in model.blocks:
        block.attn.fused_attn = fused
    return model


def transformers_vit():
    transformers = pytest.importorskip("transformers")
    configuration = transformers.ViTConfig(
        hidden_size=DIM, num_hidden_layers=1, num_attention_heads=2, intermediate_size=DIM,
        image_size=SIZE, patch_size=PATCH, num_labels=5,
    )  # fmt: skip
    return transformers.ViTForImageClassification(configuration)


class Gazer(nn.Module):
    """Attention with names, an order of tokens and an order of axes that nobody else has."""

    def __init__(self, extra=None):
        super().__init__()
        self.wonder, self.whence, self.what, self.out = (nn.Linear(DIM, DIM) for _ in range(4))
        self.extra = extra

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (2, -1)) for w in (self.wonder, self.whence, self.what))
        logits = torch.einsum("bqhd,bkhd->bqkh", q, k)
        weights = torch.softmax(logits, dim=2)
        if self.extra == "log":
            weights = F.log_softmax(logits, 2).exp() + 0 * weights
        mixed = self.out(torch.einsum("bqkh,bkhd->bqhd", weights, v).flatten(2))
        return mixed + logits.softmax(2).amax() if self.extra == "softmax" else mixed


class Own(nn.Module):
    """Patches, column by column, through one residual block; ``last`` holds the tokens."""

    def __init__(self, block, norm=True):
        super().__init__()
        self.start = nn.Conv2d(3, DIM, PATCH, PATCH)
        self.norm = nn.LayerNorm(DIM) if norm else nn.Identity()
        self.block, self.last, self.end = block, nn.LayerNorm(DIM), nn.Linear(DIM, 5)

    def forward(self, image):
        x = self.start(image).transpose(2, 3).flatten(2).transpose(1, 2)
        x = x + self.block(self.norm(x))
        return self.end(self.last(x).mean(1))


def encoder():
    """torch's own layers, which have a fused path past their attention module."""
    layer = nn.TransformerEncoderLayer(DIM, 2, DIM, 0.0, batch_first=True, norm_first=True)
    return Own(nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), norm=False)


FAMILIES = {  # how to make it, the module that gives the last tokens, sides of the map, prefix
    "timm": (timm_vit, "norm", GRID, 1),
    "timm, not fused": (lambda: timm_vit(False), "norm", GRID, 1),
    "timm, registers": (lambda: timm_vit(reg_tokens=3), "norm", GRID, 4),
    "torchvision": (
        lambda: VisionTransformer(16, PATCH, 1, 2, DIM, DIM, num_classes=5), "encoder.ln", (4, 4), 1
    ),
    "transformers": (transformers_vit, "vit.layernorm", GRID, 1),
    "own": (lambda: Own(Gazer()), "last", GRID, 0),
    "encoder": (encoder, "last", GRID, 0),
}  # fmt: skip


def order_one(model):
    return draw_at_order_one(model).double().eval()


@cache
def original(family):
    return order_one(FAMILIES[family][0]())


@cache
def localised(family, kernel):
    """A patient of that family, for tests that leave it as it is."""
    return operated(original(family), kernel, FAMILIES[family][2])


def operated(model, kernel, grid=GRID):
    return Localise(kernel).operate(model, dissect(model, tuple(s * PATCH for s in grid)))


def images(grid=GRID, count=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    sides = [side * PATCH for side in grid]
    return torch.randn(count, 3, *sides, generator=generator, dtype=torch.float64)


def last_tokens(model, family, batch):
    found = []
    last = model.get_submodule(FAMILIES[family][1])
    watch = last.register_forward_hook(lambda module, given, tokens: found.append(tokens))
    model(batch)
    watch.remove()
    return found[0].detach()


def reached(model, family):
    """How far each position changes with each patch (patches, positions), and tokens beside."""
    _, _, (height, width), prefix = FAMILIES[family]
    batch = images((height, width)).repeat(height * width + 1, 1, 1, 1)
    for place in range(height * width):
        y, x = place // width * PATCH, place % width * PATCH
        batch[place + 1, :, y : y + PATCH, x : x + PATCH] += 1
    tokens = last_tokens(model, family, batch)
    change = (tokens[1:] - tokens[:1]).abs().amax(-1)
    at = change[:, prefix:]
    if isinstance(model, Own):
        at = at.unflatten(1, (width, height)).transpose(1, 2).flatten(1)
    return at, change[:, :prefix]


@pytest.mark.parametrize("family", FAMILIES)
def test_each_query_sees_its_neighbours_alone(family):
    """In a model of one block: the tokens that a patch changes are those around it, exactly."""
    _, _, grid, prefix = FAMILIES[family]
    near = neighbourhood_mask(*grid, kernel=3) == 0
    assert not near.all()
    for gradients in (False, True):  # fused paths of torch are only taken without
        with torch.set_grad_enabled(gradients):
            found, beside = reached(localised(family, 3), family)
            before, _ = reached(original(family), family)
        assert torch.equal(found > 0, near)
        assert found[near].min() > 1e-6  # not by rounding
        assert before.min() > 1e-6  # without the surgery, all of them see all
        assert beside.shape == (near.shape[0], prefix)
        assert not prefix or beside.min() > 1e-6


@pytest.mark.parametrize("family", sampled(FAMILIES, "timm", "transformers"))
def test_what_the_patient_is_made_of_is_known(family):
    """From the model's own graph with masks put in, or from the proof."""
    grid = FAMILIES[family][2]
    size = tuple(side * PATCH for side in grid)
    patient = operated(original(family), 3, grid)
    known = recall(patient, (3, *size), type(patient).__name__)
    assert known.anatomy == dissect(patient, size)
    batch = images(grid, 2)
    with torch.no_grad():
        expected = choose_logits(patient(batch), None)
        # torch's own layers add their masks up in another order.
        torch.testing.assert_close(Replay(known)(batch), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "family", sampled(["timm", "own", "torchvision", "encoder"], "timm", "own")
)
def test_a_window_that_covers_the_map_changes_nothing(family):
    grid = FAMILIES[family][2]
    model, patient, batch = original(family), localised(family, 2 * max(grid) - 1), images(grid, 2)
    assert torch.equal(patient(batch), model(batch))
    assert torch.equal(*(last_tokens(m, family, batch) for m in (patient, model)))
    with torch.no_grad():  # where torch's fused encoder layers sum in another order
        torch.testing.assert_close(patient(batch), model(batch), rtol=0, atol=1e-12)
    assert list(patient.state_dict()) == list(model.state_dict())


def twin(model, batch, kernel):
    """A pre-norm transformer written out, with a mask."""
    x = model._pos_embed(model.patch_embed(batch))
    mask = neighbourhood_mask(*GRID, kernel, prefix=1, dtype=torch.float64)
    for block in model.blocks:
        query, key, value = block.attn.qkv(block.norm1(x)).unflatten(-1, (3, 2, -1)).unbind(2)
        logits = torch.einsum("bqhd,bkhd->bhqk", query, key) * query.shape[-1] ** -0.5
        mixed = torch.einsum("bhqk,bkhd->bqhd", (logits + mask).softmax(-1), value)
        x = x + block.ls1(block.attn.proj(mixed.flatten(2)))
        x = x + block.ls2(block.mlp(block.norm2(x)))
    return model.head(model.norm(x)[:, 0])


@pytest.mark.parametrize(("fused", "kernel"), [(True, 3), (False, 3), (False, 1)])
def test_agrees_with_a_transformer_written_out(fused, kernel):
    model, batch = order_one(timm_vit(fused, depth=2, init_values=0.1)), images(count=3)
    patient = operated(model, kernel)
    torch.testing.assert_close(patient(batch), twin(model, batch, kernel), rtol=0, atol=1e-10)
    assert (patient(batch) - model(batch)).abs().max() > 1e-3


def test_only_units_that_were_asked_for():
    model, batch = order_one(timm_vit(depth=2, global_pool="avg")), images()
    anatomy = dissect(model, SIZE)
    first = replace(anatomy, units=tuple(u for u in anatomy if u.name == "blocks.0.attn"))
    patient, whole = Localise(3).operate(model, first), Localise(3).operate(model, anatomy)
    expected = copy.deepcopy(model)
    expected.blocks[0] = whole.blocks[0]
    assert torch.equal(patient(batch), expected(batch))
    assert not torch.equal(patient(batch), whole(batch))
    assert not torch.equal(patient(batch), model(batch))


def test_the_patient_can_be_copied_saved_exported_and_compiled():
    model, batch = order_one(timm_vit(global_pool="avg")), images(count=2)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    patient = operated(model, 3)
    expected = patient(batch)
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert not torch.equal(model(batch), expected)
    assert dissect(patient, SIZE).units == dissect(model, SIZE).units
    file = io.BytesIO()
    torch.save(patient, file)
    file.seek(0)
    saved = torch.load(file, weights_only=False)
    exported = torch.export.export(patient, (batch,)).module()
    compiled = torch.compile(patient, backend="eager", fullgraph=True)
    for same in (copy.deepcopy(patient), saved, exported, compiled):
        torch.testing.assert_close(same(batch), expected, rtol=0, atol=1e-12)  # order of sums


@pytest.mark.parametrize("family", ["timm", "timm, not fused"])
def test_training_and_half_precision(family):
    patient = copy.deepcopy(localised(family, 3)).train()
    patient(images(count=2)).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in patient.parameters())
    assert patient.blocks[0].attn.qkv.weight.grad.abs().max() > 1e-3
    patient.eval().bfloat16()
    near = neighbourhood_mask(*GRID, kernel=3) == 0
    changed = images().repeat(2, 1, 1, 1)
    changed[1, :, :PATCH, :PATCH] += 1
    tokens = patient.forward_features(changed.bfloat16())
    found = (tokens[1] != tokens[0]).any(-1)[1:]
    assert torch.equal(found, near[0])


def test_other_sizes_are_an_error():
    """Also where the window covers the map: it might not cover the other one."""
    patient = operated(order_one(timm_vit(dynamic_img_size=True)), 9)
    with pytest.raises(
        WrongInput,
        match=r"masked for 16 queries and 16 keys, 1 times each time it runs \(9×9 of 3×5 "
        r"positions plus 1 outside the map\), but met 26 queries and 26 keys\. Apply .* again",
    ):
        patient(images((5, 5)))


class Twice(nn.Module):
    """One block that runs twice, on maps of the same or of different sizes."""

    def __init__(self, step):
        super().__init__()
        self.start, self.block = nn.Conv2d(3, DIM, PATCH, PATCH), Gazer()
        self.pool, self.end = nn.AvgPool2d(step), nn.Linear(DIM, 5)

    def forward(self, image):
        x = self.start(image)
        for pool in (nn.Identity(), self.pool):
            x = pool(x)
            x = x + self.block(x.flatten(2).transpose(1, 2)).transpose(1, 2).unflatten(
                2, x.shape[2:]
            )
        return self.end(x.mean((2, 3)))


def test_a_module_that_runs_twice():
    model, batch = order_one(Twice(1)), images((4, 4))
    patient = operated(model, 3, (4, 4))
    assert not torch.equal(patient(batch), model(batch))
    with pytest.raises(
        SurgeryRefused, match=r"'block' also computes other attention, of another map"
    ):
        operated(order_one(Twice(2)), 3, (4, 4))


class Wayward(Own):
    """Goes round its attention module where no gradients are asked for."""

    def forward(self, image):
        if torch.is_grad_enabled() or torch.compiler.is_exporting():
            return super().forward(image)
        x = self.start(image).flatten(2).transpose(1, 2)
        return self.end(self.last(x).mean(1))


class Restless(nn.Module):
    """Attends once when it runs first, and twice after that."""

    def __init__(self):
        super().__init__()
        self.start, self.end, self.gaze = (
            nn.Conv2d(3, DIM, PATCH, PATCH),
            nn.Linear(DIM, 5),
            Often(),
        )

    def forward(self, image):
        x = self.start(image).flatten(2).transpose(1, 2)
        x = x + self.gaze(x, 1)
        return self.end((x + self.gaze(x, 2)).mean(1))


class Often(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(DIM, DIM)

    def forward(self, x, times):
        for _ in range(times):
            x = self.out(F.scaled_dot_product_attention(x, x, x))
        return x


class Attending(nn.Module):
    """Fused attention with whatever is given to it, or something that looks like attention."""

    def __init__(self, kind, height=GRID[0]):
        super().__init__()
        self.qkv, self.out, self.kind = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM), kind
        bias = torch.randn(15, 15, generator=torch.Generator().manual_seed(0))
        mask = {"added": bias, "true": (bias > -1) | torch.eye(15, dtype=torch.bool)}
        self.register_buffer("mask", mask.get(kind, bias))
        self.height = height

    def forward(self, x):
        if self.kind == "rolled":
            x = x.unflatten(1, (-1, self.height)).roll(1, 1).flatten(1, 2)
        query, key, value = self.qkv(x).chunk(3, -1)
        if self.kind == "linear":
            return self.out(query.relu() @ (key.relu().transpose(1, 2) @ value))
        mask = self.mask if self.kind in ("added", "true") else None
        causal = self.kind == "causal"
        return self.out(F.scaled_dot_product_attention(query, key, value, mask, is_causal=causal))


@pytest.mark.parametrize("kind", ["added", "true"])
def test_masks_that_are_there_are_kept(kind):
    model = order_one(Own(Attending(kind)))
    patient = operated(model, 3)
    hidden = neighbourhood_mask(*GRID[::-1], kernel=3, dtype=torch.float64)  # column by column
    with torch.no_grad():
        if kind == "added":
            model.block.mask += hidden
        else:
            model.block.mask &= hidden == 0
        torch.testing.assert_close(patient(images()), model(images()), rtol=0, atol=1e-12)


REFUSED = {
    "swin": (
        lambda: SwinTransformer(16, 2, embed_dim=8, depths=(2,), num_heads=(2,), window_size=4),
        r"'layers.0.blocks.0.attn': its attention is not global: it is restricted to parts",
    ),
    "pvt": (
        lambda: PyramidVisionTransformerV2(
            depths=(1, 1), embed_dims=(8, 8), num_heads=(1, 1), sr_ratios=(2, 1), mlp_ratios=(1, 1)
        ),
        r"'stages.0.blocks.0.attn': its attention is not global: it has 4×4 queries but 2×2 keys",
    ),
    "resnet": (
        lambda: timm.create_model("test_resnet"),
        r"it has no attention unit\. It has: 1 stem, 4 conv, 1 head",
    ),
    "talking heads": (
        lambda: timm.create_model(
            "cait_xxs24_224", img_size=16, patch_size=4, embed_dim=8, depth=1, num_heads=2
        ),
        r"'blocks.0.attn': an operation between its softmax and its values gives hidden keys",
    ),
    "class attention": (
        lambda: timm.create_model(
            "xcit_nano_12_p16_224", img_size=32, embed_dim=8, depth=1, num_heads=2
        ),
        r"'cls_attn_blocks.0.attn': its only queries are tokens outside the map, which see all",
    ),
    "linear": (lambda: Own(Attending("linear")), "do not come from a softmax over keys"),
    "rolled": (lambda: Own(Attending("rolled", 4)), "it rolls the map"),
    "causal": (lambda: Own(Attending("causal")), "its attention is causal"),
    "two softmaxes": (
        lambda: Own(Gazer("softmax")),
        r"not all of its attention could be intercepted: .* but such calls occurred 2 times",
    ),
    "way round": (lambda: Wayward(Gazer()), "at 'block': the model can attend without the mask"),
    "restless": (Restless, "'gaze' does not compute the same each time it runs"),
    "no numbers": (lambda: Own(Gazer()).to("meta"), "its weights contain no numbers"),
    "weights past the softmax": (lambda: Own(Gazer("log")), "gives hidden keys a weight of up to"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_refusals(kind):
    """With fresh weights: a bias that is still zero must not hide what it can do."""
    make, message = REFUSED[kind]
    model = make().eval()
    side = 32 if kind == "class attention" else 16
    anatomy = dissect(model, side, name="the model")
    with pytest.raises(
        SurgeryRefused, match=rf"localise cannot be applied to the model.*{message}"
    ):
        Localise(3).operate(model, anatomy)


@pytest.mark.parametrize("kernel", [0, -1, 2, 4])
def test_windows_have_a_centre(kernel):
    with pytest.raises(
        ValueError, match=rf"kernel (must be an odd number.*|is 1 or more); got {kernel}\."
    ):
        Localise(kernel)


def test_written_as_text():
    assert parse_surgery("localise:kernel=5") == Localise(5)
    with pytest.raises(UnknownSurgery, match=r"localise: kernel must be an odd number .* got 4"):
        parse_surgery("localise:kernel=4")
    with pytest.raises(UnknownSurgery, match=r"localise needs kernel"):
        parse_surgery("localise")


def test_masks_put_into_multi_head_attention():
    """Its boolean masks mean the opposite of those of fused attention."""
    module = nn.MultiheadAttention(DIM, 2, batch_first=True).double().eval()
    x = images().flatten(1)[:, : 15 * DIM].reshape(1, 15, DIM)
    hidden = neighbourhood_mask(*GRID, kernel=3).isinf()
    given = torch.rand(15, 15, generator=torch.Generator().manual_seed(0)) < 0.2
    given.fill_diagonal_(False)
    added = torch.zeros(15, 15).masked_fill(given, -torch.inf).double()
    for weights in (True, False):
        expected = module(x, x, x, attn_mask=given | hidden, need_weights=weights)[0]
        for mask in (given, added):
            with AttentionMask(hidden).context():
                found = module(x, x, x, attn_mask=mask, need_weights=weights)[0]
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_causal_attention_cannot_be_masked():
    x, hidden = torch.zeros(1, 15, DIM), neighbourhood_mask(*GRID, kernel=3).isinf()
    with pytest.raises(WrongInput, match="Causal attention has no neighbourhood on a map"):
        with AttentionMask(hidden).context():
            F.scaled_dot_product_attention(x, x, x, is_causal=True)
