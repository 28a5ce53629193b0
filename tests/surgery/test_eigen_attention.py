import copy
import io
import pickle
from dataclasses import replace
from functools import cache

import hypothesis.strategies as st
import pytest
import timm
import torch
from hypothesis import given, settings
from timm.models.pvt_v2 import PyramidVisionTransformerV2
from timm.models.swin_transformer import SwinTransformer
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torchvision.models import VisionTransformer

from retinoscope import dissect
from retinoscope.core.errors import SurgeryRefused, UnknownSurgery
from retinoscope.layers.eigen_linear import EigenOutputLinear, EigenValueLinear
from retinoscope.models.order_one import draw_at_order_one
from retinoscope.surgery import parse_surgery, write_surgery
from retinoscope.surgery.eigen_attention import EigenAttention
from sampling import sampled

DIM, HEADS, SIDE, PATCH = 8, 2, 16, 4
SIGNS = {"+": 1.0, "-": -1.0}


def timm_vit(fused=True, name="vit_tiny_patch16_224", **options):
    given = {"img_size": SIDE, "patch_size": PATCH, "embed_dim": DIM, "depth": 2}
    model = timm.create_model(name, num_classes=5, num_heads=HEADS, **given | options)
    for block in model.blocks:
        block.attn.fused_attn = fused
    return model


def transformers_vit():
    transformers = pytest.importorskip("transformers")
    configuration = transformers.ViTConfig(
        hidden_size=DIM, num_hidden_layers=1, num_attention_heads=HEADS, intermediate_size=DIM,
        image_size=SIDE, patch_size=PATCH, num_labels=5,
    )  # fmt: skip
    return transformers.ViTForImageClassification(configuration)


class Shuffled(nn.Module):
    """Attention that orders its channels as nobody else does.

    Its first map gives, for each entry of a head, that of all heads, first value, then key, then
    query; its output map reads the entries backwards, and for each entry all heads.
    """

    def __init__(self):
        super().__init__()
        self.into, self.out_of = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x):
        value, key, query = self.into(x).unflatten(-1, (-1, HEADS, 3)).unbind(-1)
        weights = torch.einsum("bqdh,bkdh->bhqk", query, key).softmax(-1)
        mixed = torch.einsum("bhqk,bkdh->bdhq", weights, value)
        return self.out_of(mixed.flip(1).flatten(1, 2).transpose(1, 2))


class Odd(nn.Module):
    """Attention with something that the surgery must not overlook."""

    def __init__(self, kind, wide=DIM):
        super().__init__()
        self.kind = kind
        self.query, self.key = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
        self.value, self.out = nn.Linear(DIM, wide), nn.Linear(wide, DIM)
        self.norm = nn.LayerNorm(wide)
        self.conv = nn.Conv1d(DIM, DIM, 3, padding=1)
        if kind == "weight norm":
            self.out = parametrizations.weight_norm(self.out)

    def forward(self, x):
        query, key, value = self.query(x), self.key(x), self.value(x)
        if self.kind == "keys are values":
            key = value
        if self.kind == "convolution":
            value = self.conv(x.transpose(1, 2)).transpose(1, 2)
        if self.kind == "norm":
            value = self.norm(value)
        if self.kind == "linear attention":
            return self.out(query.relu() @ (key.relu().transpose(1, 2) @ value))
        mixed = F.scaled_dot_product_attention(query, key, value)
        if self.kind == "gate":
            mixed = mixed * query.sigmoid()
        if self.kind == "used twice":
            return self.out(mixed) + mixed
        if self.kind == "positions":  # entries of neighbouring positions change places
            mixed = mixed.unflatten(1, (-1, 2)).transpose(2, 3).flatten(1, 2).flatten(1)
            mixed = mixed.unflatten(1, (-1, DIM))
        return self.out(mixed)


class Own(nn.Module):
    """A network of one residual block."""

    def __init__(self, block):
        super().__init__()
        self.start, self.norm = nn.Conv2d(3, DIM, PATCH, PATCH), nn.LayerNorm(DIM)
        self.block, self.end = block, nn.Linear(DIM, 5)

    def forward(self, image):
        x = self.start(image).flatten(2).transpose(1, 2)
        x = x + self.block(self.norm(x))
        return self.end(x.mean(1))


FAMILIES = {  # how to make it, and the modules that attend
    "timm": (timm_vit, ["blocks.0.attn", "blocks.1.attn"]),
    "timm, not fused": (lambda: timm_vit(False, qkv_bias=False, depth=1), ["blocks.0.attn"]),
    "timm, query and key norm": (lambda: timm_vit(qk_norm=True, depth=1), ["blocks.0.attn"]),
    "distilled": (
        lambda: timm_vit(name="deit_tiny_distilled_patch16_224", depth=1),
        ["blocks.0.attn"],
    ),
    "pit": (
        lambda: timm.create_model("pit_ti_224", img_size=64),
        ["transformers.0.blocks.0.attn", "transformers.2.blocks.3.attn"],
    ),
    "swin": (
        lambda: SwinTransformer(SIDE, 2, embed_dim=8, depths=(2,), num_heads=(2,), window_size=4),
        ["layers.0.blocks.0.attn", "layers.0.blocks.1.attn"],
    ),
    "transformers": (transformers_vit, ["vit.layers.0.attention"]),
    "shuffled": (lambda: Own(Shuffled()), ["block"]),
}


def order_one(model):
    return draw_at_order_one(model).double().eval()


def operated(model, sign="-", form="symmetric", side=SIDE, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return EigenAttention(sign, form).operate(model, dissect(model, side, name="the model"))


@cache
def original(family):
    return order_one(FAMILIES[family][0]())


@cache
def patient_of(family, sign="-", form="symmetric"):
    """A patient of that family, for tests that leave it as it is."""
    return operated(original(family), sign, form, 64 if family == "pit" else SIDE)


def images(count=2):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, 3, SIDE, SIDE, generator=generator, dtype=torch.float64)


def owner(module):
    (found,) = (m for m in module.modules() if isinstance(m, EigenValueLinear))
    return found


def product(attention, width, length=16):
    """W_V W_proj as the module does it: where all tokens are the same, attention mixes nothing."""
    tokens = torch.eye(width, dtype=torch.float64)[:, None].expand(-1, length, -1).contiguous()
    mixed = attention(tokens)
    mixed = mixed[0] if isinstance(mixed, tuple) else mixed
    assert torch.allclose(mixed, mixed[:, :1], atol=1e-12)
    return mixed[:, 0]


@torch.no_grad()
def check_eigenvalues(attention, sign, form):
    values = owner(attention).values
    theta, squares = values.theta, SIGNS[sign] * values.psi**2
    V = torch.linalg.qr(theta).Q
    expected = V @ torch.diag(squares) @ V.mT if form == "symmetric" else torch.diag(squares)
    found = product(attention, len(theta))
    small = 1e-12 * max(1.0, squares.abs().max().item())  # rounding of some hundred terms
    torch.testing.assert_close(found, expected, rtol=0, atol=small)
    eigenvalues = torch.linalg.eigvals(found)
    assert eigenvalues.imag.abs().max() < 1e-6 * max(1.0, squares.abs().max().item())
    assert (SIGNS[sign] * eigenvalues.real).min() > -100 * small


@pytest.mark.parametrize("family", sampled(FAMILIES, "timm"))
def test_the_product_of_values_and_output_has_such_eigenvalues(family):
    patient = patient_of(family)
    for path in FAMILIES[family][1]:
        check_eigenvalues(patient.get_submodule(path), "-", "symmetric")


@pytest.mark.parametrize(("sign", "form"), [("+", "symmetric"), ("+", "authors"), ("-", "authors")])
def test_signs_and_forms(sign, form):
    patient = patient_of("shuffled", sign, form)
    check_eigenvalues(patient.block, sign, form)
    assert parse_surgery(f"eigen_attention:sign={sign},form={form}") == EigenAttention(sign, form)


@pytest.mark.parametrize("sign", SIGNS)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_whatever_the_parameters(sign, data):
    """Θ of any scale, as long as it has full rank: else V is not unique, and rounding decides."""
    attention = copy.deepcopy(patient_of("shuffled", sign).block)
    values = owner(attention).values
    scale = 10.0 ** data.draw(st.integers(-100, 100))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32)))
    drawn = torch.randn(DIM, DIM, generator=generator, dtype=torch.float64)
    psi = data.draw(st.lists(st.floats(-1e3, 1e3), min_size=DIM, max_size=DIM))
    with torch.no_grad():
        values.theta.copy_(scale * drawn)
        values.psi.copy_(torch.tensor(psi))
    check_eigenvalues(attention, sign, "symmetric")


def written_out(model, patient, batch):
    """timm's ViT with A_h X H_h per head, from the original's weights and Θ, ψ alone."""
    x = model._pos_embed(model.patch_embed(batch))
    for block, changed in zip(model.blocks, patient.blocks, strict=True):
        normed = block.norm1(x)
        values = owner(changed).values
        V, squares = torch.linalg.qr(values.theta).Q, -(values.psi**2)
        query, key, _ = block.attn.qkv(normed).chunk(3, -1)
        for head in range(HEADS):
            mine = slice(head * DIM // HEADS, (head + 1) * DIM // HEADS)
            A = (query[..., mine] @ key[..., mine].mT / (DIM // HEADS) ** 0.5).softmax(-1)
            H = V[:, mine] @ torch.diag(squares[mine]) @ V[:, mine].mT
            x = x + A @ normed @ H
        x = x + block.mlp(block.norm2(x))
    return model.head(model.norm(x)[:, 0])


def test_agrees_with_a_transformer_written_out():
    model, patient, batch = original("timm"), patient_of("timm"), images()
    expected = written_out(model, patient, batch)
    torch.testing.assert_close(patient(batch), expected, rtol=0, atol=1e-10)
    assert (patient(batch) - model(batch)).abs().max() > 1e-2


def test_heads_stay_together_in_any_order_of_channels():
    """Column c of the output map belongs to head c mod 2, whose values come from V[:, c]."""
    model, patient = original("shuffled"), patient_of("shuffled")
    x = torch.randn(2, 5, DIM, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = owner(patient).values
    V, squares = torch.linalg.qr(values.theta).Q, -(values.psi**2)
    _, key, query = model.block.into(x).unflatten(-1, (-1, HEADS, 3)).unbind(-1)
    expected = 0
    for head in range(HEADS):
        A = (query[..., head] @ key[..., head].mT).softmax(-1)
        mine = slice(head, None, HEADS)
        expected = expected + A @ x @ V[:, mine] @ torch.diag(squares[mine]) @ V[:, mine].mT
    torch.testing.assert_close(patient.block(x), expected, rtol=0, atol=1e-12)


def test_queries_and_keys_stay_and_the_rest_is_new():
    model, patient = original("timm"), patient_of("timm")
    for block, changed in zip(model.blocks, patient.blocks, strict=True):
        before, after = block.attn.qkv, changed.attn.qkv
        assert torch.equal(after.weight[: 2 * DIM], before.weight[: 2 * DIM])
        assert torch.equal(after.bias[: 2 * DIM], before.bias[: 2 * DIM])
        assert not after.bias[2 * DIM :].any()
        assert not torch.equal(after.weight[2 * DIM :], before.weight[2 * DIM :])
    shuffled, scrambled = original("shuffled").block.into, patient_of("shuffled").block.into
    rows = torch.arange(3 * DIM) % 3 > 0
    assert torch.equal(scrambled.weight[rows], shuffled.weight[rows])
    assert torch.equal(scrambled.bias[rows], shuffled.bias[rows])
    assert not scrambled.bias[~rows].any()


def test_keys_of_the_state():
    """Θ and ψ are there once, where the values are made; what is untouched keeps its key."""
    model, patient = original("timm"), patient_of("timm")
    gone, new = (
        {name.removeprefix("blocks.0.attn.") for name in a if name not in b and "blocks.0" in name}
        for a, b in ((model.state_dict(), patient.state_dict()),
                     (patient.state_dict(), model.state_dict()))
    )  # fmt: skip
    assert gone == {"qkv.weight", "qkv.bias", "proj.weight", "proj.bias"}
    assert new == {"qkv.kept_weight", "qkv.kept_bias", "qkv.values.theta", "qkv.values.psi"}
    count = sum(p.numel() for p in patient.blocks[0].attn.parameters())
    assert count == 3 * DIM**2 + DIM + 2 * DIM  # Q, K and Θ; ψ; biases of queries and keys
    names = set(patient_of("transformers").vit.layers[0].attention.state_dict())
    assert {"v_proj.values.theta", "v_proj.values.psi"} < names
    assert not any("kept" in name for name in names)
    other = operated(model, seed=1)
    assert not torch.equal(other(images()), patient(images()))
    other.load_state_dict(patient.state_dict())
    assert torch.equal(other(images()), patient(images()))


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "save"])
def test_copies_hold_their_own_parameters_once(how):
    patient, batch = patient_of("timm"), images()
    file = io.BytesIO()
    if how == "deepcopy":
        copied = copy.deepcopy(patient)
    elif how == "pickle":
        copied = pickle.loads(pickle.dumps(patient))
    else:
        torch.save(patient, file)
        file.seek(0)
        copied = torch.load(file, weights_only=False)
    assert torch.equal(copied(batch), patient(batch))
    expected, attention = patient(batch), copied.blocks[0].attn
    before = [attention.qkv.weight.clone(), attention.proj.weight.clone()]
    with torch.no_grad():
        attention.qkv.values.theta += torch.eye(DIM)
    after = [attention.qkv.weight, attention.proj.weight]
    assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    check_eigenvalues(attention, "-", "symmetric")
    assert torch.equal(patient(batch), expected)


def test_training_exporting_compiling_and_half_precision():
    patient, batch = copy.deepcopy(patient_of("timm")), images()
    patient.train()(batch).square().sum().backward()
    assert all(p.grad.isfinite().all() for p in patient.parameters())
    made = patient.blocks[0].attn.qkv
    for parameter in (made.kept_weight, made.kept_bias, made.values.theta, made.values.psi):
        assert parameter.grad[:DIM].abs().max() > 1e-6  # of queries; keys' bias cancels out
    patient.eval()
    expected = patient(batch)
    exported = torch.export.export(patient, (batch,)).module()
    compiled = torch.compile(patient, backend="eager", fullgraph=True)
    for same in (exported, compiled):
        torch.testing.assert_close(same(batch), expected, rtol=0, atol=1e-12)
    half = patient.bfloat16()(batch.bfloat16())
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.double(), expected, rtol=0.1, atol=0.2)  # 8 bits of mantissa
    assert patient.blocks[0].attn.proj.weight.dtype == torch.bfloat16


@pytest.mark.parametrize("family", ["timm", "shuffled"])
def test_the_anatomy_stays(family):
    def seen(model):
        return [(u.name, u.kind, u.grid, u.residual, u.module) for u in dissect(model, SIDE).walk()]

    assert seen(patient_of(family)) == seen(original(family))


def test_only_units_that_were_asked_for():
    model = original("timm")
    state = {name: value.clone() for name, value in model.state_dict().items()}
    anatomy = dissect(model, SIDE)
    first = replace(anatomy, units=tuple(u for u in anatomy if u.name == "blocks.0.attn"))
    patient = EigenAttention("+").operate(model, first)
    assert isinstance(patient.blocks[0].attn.proj, EigenOutputLinear)
    assert type(patient.blocks[1].attn.proj) is nn.Linear
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())


REFUSED = {
    "resnet": (lambda: timm.create_model("test_resnet"), "it has no attention unit"),
    "torchvision": (
        lambda: VisionTransformer(SIDE, PATCH, 1, 2, DIM, DIM, num_classes=5),
        r"its values are computed by a linear map that is not a separate nn\.Linear",
    ),
    "talking heads": (
        lambda: timm.create_model(
            "cait_xxs24_224", img_size=16, patch_size=4, embed_dim=8, depth=1, num_heads=2
        ),
        r"at 'blocks\.0\.attn': its heads are mixed after the softmax",
    ),
    "keys are values": (Odd, "its values are also used by scaled_dot_product_attention"),
    "convolution": (Odd, "its values are computed by conv1d, not a linear map"),
    "norm": (Odd, "its values are computed by layer_norm, not a linear map"),
    "linear attention": (Odd, "its weights do not come from a softmax over keys"),
    "gate": (Odd, "its mixed values go into mul, not a linear map"),
    "used twice": (Odd, "its mixed values are used 2 times"),
    "positions": (Odd, "its values do not reach the output map one to one"),
    "weight norm": (
        Odd,
        r"its mixed values go into a linear map that is not a separate nn\.Linear",
    ),
    "wide": (
        lambda kind: Odd(kind, 2 * DIM),
        "it is square, but 8 channels become 16 values, and 16 become 8",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refusals(kind):
    make, message = REFUSED[kind]
    own = kind not in ("resnet", "torchvision", "talking heads")
    model = Own(make(kind)) if own else make()
    with pytest.raises(SurgeryRefused, match=rf"eigen_attention cannot .* the model.*{message}"):
        operated(model)


def test_values_of_reduced_keys():
    """Fewer keys than queries, and keys and values from one map, as in PVT."""
    model = PyramidVisionTransformerV2(
        depths=(1,), embed_dims=(8,), num_heads=(2,), sr_ratios=(2,), mlp_ratios=(1,), num_classes=5
    )
    patient = operated(order_one(model))
    attention = patient.stages[0].blocks[0].attn
    kept = model.stages[0].blocks[0].attn.kv.weight[:DIM]
    assert torch.equal(attention.kv.weight[:DIM], kept)
    assert torch.equal(attention.proj.weight, attention.kv.values.weights()[1])


def test_written_as_text():
    for sign in "+-":
        assert parse_surgery(f"eigen_attention:sign={sign}") == EigenAttention(sign)
        assert write_surgery(EigenAttention(sign)) == f"eigen_attention:sign={sign}"
    with pytest.raises(UnknownSurgery, match=r"sign is one of \+, -; got 'minus'"):
        parse_surgery("eigen_attention:sign=minus")
    with pytest.raises(ValueError, match=r"sign is one of \+, -; got 'minus'"):
        EigenAttention("minus")
    with pytest.raises(ValueError, match="form is one of symmetric, authors; got 'qr'"):
        EigenAttention("+", "qr")


def test_rows_of_a_value_map():
    with pytest.raises(ValueError, match=r"4 inputs need as many values.*got 3 rows, 2 of them"):
        EigenValueLinear(nn.Linear(4, 8), (0, 1, 1), "+")
