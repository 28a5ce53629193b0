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
from retinoscope.surgery.gap_head import GapHead
from sampling import PROOF

SIZE = 32
VIT = {"img_size": SIZE, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2,
       "num_classes": 5}  # fmt: skip


@pytest.fixture(scope="module")
def model():
    return vit()


def vit(name="vit_tiny_patch16_224", **options):
    return draw_at_order_one(timm.create_model(name, **VIT | options)).eval().double()


def images():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(3, 3, SIZE, SIZE, generator=generator, dtype=torch.float64)


@cache
def anatomy_of(model):
    return dissect(model, SIZE)


def operated(model):
    return GapHead().operate(model, anatomy_of(model))


def logits(model):
    with torch.no_grad():
        found = model(images())
    return found if isinstance(found, torch.Tensor) else found.logits


def difference(a, b):
    """The largest difference, relative to the largest value."""
    return ((a - b).abs().max() / b.abs().max()).item()


def tokens_behind(model, path):
    """What the module gives, before anything is operated on."""
    found = []
    hook = model.get_submodule(path).register_forward_hook(lambda _, __, out: found.append(out))
    logits(model)
    hook.remove()
    return found[0] if isinstance(found[0], torch.Tensor) else found[0][0]


def test_the_norm_follows_the_mean(model):
    patches = tokens_behind(model, "blocks.1")[:, 1:]
    with torch.no_grad():
        expected = model.head(model.norm(patches.mean(1)))
    found = logits(operated(model))
    assert difference(found, expected) < 1e-12  # float64, sums in another order
    assert difference(found, logits(model)) > 1e-2


def test_agrees_with_timms_own_pooling(model):
    """The same weights in a ViT that was built to pool: its ``norm`` is called ``fc_norm``."""
    peer = timm.create_model("vit_tiny_patch16_224", **VIT, global_pool="avg").eval().double()
    weights = {k.replace("norm.", "fc_norm.") if k.startswith("norm.") else k: v
               for k, v in model.state_dict().items()}  # fmt: skip
    peer.load_state_dict(weights)
    assert difference(logits(operated(model)), logits(peer)) < 1e-12


def test_both_heads_of_a_distilled_vit_read_the_mean():
    model = vit("deit_tiny_distilled_patch16_224")
    patches = tokens_behind(model, "blocks.1")[:, 2:]
    with torch.no_grad():
        pooled = model.norm(patches.mean(1))
        expected = (model.head(pooled) + model.head_dist(pooled)) / 2
    assert difference(logits(operated(model)), expected) < 1e-12


def test_other_peoples_vits():
    torchvision = pytest.importorskip("torchvision")
    model = torchvision.models.VisionTransformer(SIZE, 8, 2, 2, 24, 48, num_classes=5)
    model = draw_at_order_one(model).eval().double()
    patches = tokens_behind(model, "encoder.layers.encoder_layer_1")[:, 1:]
    with torch.no_grad():
        expected = model.heads(model.encoder.ln(patches.mean(1)))
    assert difference(logits(operated(model)), expected) < 1e-12


def test_a_vit_of_transformers():
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
        image_size=SIZE, patch_size=8,
    )  # fmt: skip
    model = draw_at_order_one(transformers.ViTForImageClassification(config)).eval().double()
    states = []
    norm = model.vit.layernorm
    hook = norm.register_forward_pre_hook(lambda _, given: states.append(given[0]))
    logits(model)
    hook.remove()
    with torch.no_grad():
        expected = model.classifier(norm(states[0][:, 1:].mean(1)))
    assert difference(logits(operated(model)), expected) < 1e-12


class Odd(nn.Module):
    """The token that is read stands behind the grid; the batch is the second dimension."""

    def __init__(self, reads=-1):
        super().__init__()
        self.pos_embed, self.patch = nn.Parameter(torch.randn(1, 1, 8)), nn.Conv2d(3, 8, 8, 8)
        self.one, self.two = nn.LayerNorm(8), nn.MultiheadAttention(8, 2)
        self.block = nn.ModuleDict({"mlp": Bump(8)})
        self.exit = nn.Linear(8, 5)
        self.reads = reads

    def forward(self, x):
        z = self.patch(x).flatten(2).permute(2, 0, 1)
        z = torch.cat([z, self.pos_embed.expand(-1, z.shape[1], -1)])
        y = self.one(z)
        z = self.block["mlp"](z + self.two(y, y, y, need_weights=False)[0])
        return self.exit(z[self.reads :].mean(0))


class Bump(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 16), nn.Linear(16, width)

    def forward(self, z):
        return z + self.down(self.up(z).relu())


def test_a_module_of_ones_own():
    model = draw_at_order_one(Odd()).eval().double()
    grid = tokens_behind(model, "block.mlp")[:-1]
    with torch.no_grad():
        expected = model.exit(grid.mean(0))
    assert difference(logits(operated(model)), expected) < 1e-12
    with pytest.raises(SurgeryRefused, match=r"reads not only the 1 tokens outside the grid"):
        operated(draw_at_order_one(Odd(reads=-2)).double())


def test_what_the_head_reads_does_not_depend_on_its_weights():
    """A head that starts at zero reads everything with no effect."""
    model = vit()
    nn.init.zeros_(model.head.weight)
    assert "MeanPrefix" in str(operated(model))
    pooling = vit(global_pool="avg")
    nn.init.zeros_(pooling.head.weight)
    with pytest.raises(SurgeryRefused, match=r"but also the grid: it already pools"):
        operated(pooling)


@PROOF  # a smaller one in test_contract.py
def test_keys_modes_anatomy_and_training(model):
    before = copy.deepcopy(model.state_dict())
    patient = operated(model)
    assert list(patient.state_dict()) == list(before)
    assert all(torch.equal(model.state_dict()[key], before[key]) for key in before)
    assert "MeanPrefix" not in str(model)
    found = [(u.name, u.kind, u.grid) for u in dissect(patient, SIZE)]
    assert found == [(u.name, u.kind, u.grid) for u in anatomy_of(model)]
    optimiser = torch.optim.SGD(patient.parameters(), lr=0.1)
    patient.train()(images()).square().mean().backward()
    optimiser.step()
    assert not torch.equal(patient.state_dict()["head.weight"], before["head.weight"])


def test_refuses_what_it_cannot_do(model):
    with pytest.raises(SurgeryRefused, match="no class token, so the head already pools"):
        operated(vit(class_token=False, global_pool="avg"))
    with pytest.raises(SurgeryRefused, match=r"blocks.1.mlp.*lacks the last unit"):
        GapHead().operate(model, anatomy_of(model).where(kind="attention"))
    assert parse_surgery("gap_head") == GapHead()


def test_refuses_a_state_that_no_module_holds():
    class Bare(Odd):
        def forward(self, x):
            z = self.patch(x).flatten(2).permute(2, 0, 1)
            z = torch.cat([z, self.pos_embed.expand(-1, z.shape[1], -1)])
            bump = self.block["mlp"]
            z = z + bump.down(bump.up(z).relu())
            return self.exit(z[-1])

    with pytest.raises(SurgeryRefused, match=r"no module outputs or takes the state after it"):
        operated(draw_at_order_one(Bare()))
