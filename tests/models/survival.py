"""What tests of several families ask of a network, and what they make it from."""

import timm
import torch
from safetensors.torch import load_file, save_file

from retinoscope.models.order_one import draw_at_order_one


def count(model):
    return sum(p.numel() for p in model.parameters())


def on_meta(name, **options):
    with torch.device("meta"):
        return timm.create_model(name, **options).eval()


def made(name, **options):
    """Weights at order one, the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return draw_at_order_one(timm.create_model(name, **options)).eval()


def images(height=32, width=None, channels=3, dtype=torch.float32):
    generator = torch.Generator().manual_seed(4)
    shape = (2, channels, height, height if width is None else width)
    return torch.randn(shape, generator=generator).to(dtype)


def seeded(run, *args):
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(5)
        return run(*args)


def survives(model, again, x, tmp_path):
    """Gradients everywhere, export, a file and back, half precision; returns the logits."""
    logits = model(x)
    logits.square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name
    exported = torch.export.export(model, (x,)).module()
    torch.testing.assert_close(exported(x), logits, rtol=1e-4, atol=1e-4)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    again.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert torch.equal(again.eval()(x), logits)
    rough = model.bfloat16()(x.bfloat16())
    assert rough.dtype == torch.bfloat16
    assert (rough - logits).std() < 0.2 * logits.std()
    return logits


def survives_drawing(model, other, x, tmp_path):
    """The same for networks that may draw in eval mode, and whose norms learn from the batch."""
    logits = seeded(model, x)
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    other.eval().load_state_dict(load_file(tmp_path / "w.safetensors"))
    assert torch.equal(seeded(other, x), logits)
    exported = torch.export.export(model, (x,)).module()
    torch.testing.assert_close(seeded(exported, x), logits)
    model.train()(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    half = other.bfloat16()(x.bfloat16())
    assert half.dtype == torch.bfloat16
    assert half.isfinite().all()
