"""Every probe of units on every architecture: a result for each unit, or the reason why not."""

import numpy as np
import pytest
import timm
import torch

from anatomy.test_taps import Einsum, Written
from probes.small import Logits
from retinoscope.core.errors import NotApplicable
from retinoscope.core.unit import Kind
from retinoscope.models.order_one import draw_at_order_one
from retinoscope.probes.attention import Attention
from retinoscope.probes.attention_spectrum import AttentionSpectrum
from retinoscope.probes.consistency import Consistency
from retinoscope.probes.fourier import Fourier
from retinoscope.probes.lesion import Lesion
from retinoscope.probes.oversmoothing import Oversmoothing
from retinoscope.probes.similarity import Similarity
from retinoscope.probes.tokens import Tokens
from retinoscope.run.run import Run
from retinoscope.run.subject import load_subject
from sampling import sampled

IMAGES = 8
PROBES = (
    Similarity(group=4), Lesion(), Attention(ranks=2), Tokens(),
    Oversmoothing(absolute=2, ranks=2), Consistency(group=4), Fourier(),
    AttentionSpectrum(images=1, powers=4, max_tokens=300),
)  # fmt: skip
OF_ATTENTION = {"attention", "attention_spectrum"}
SIZES = {
    "resnet18": 64, "resnet50": 64, "resnext50_32x4d": 64, "resnetv2_50": 64,
    "vit_tiny_patch16_224": 224, "pit_ti_224": 224, "swin_tiny_patch4_window7_224": 224,
    "twins_svt_small": 224, "mixer_s16_224": 224, "convit_tiny": 224, "levit_128s": 224,
    "coat_lite_tiny": 224, "mobilevit_xxs": 256, "swinv2_tiny_window8_256": 256,
    "eva02_tiny_patch14_224": 224, "gcvit_xxtiny": 224, "focalnet_tiny_srf": 224,
    "coatnet_nano_rw_224": 224, "pvt_v2_b0": 224, "edgenext_xx_small": 256,
}  # fmt: skip
MICRO = (
    "micro_resnet", "micro_preact_resnet", "micro_alternet", "micro_vit", "micro_vit_gap",
    "micro_vit_plus", "micro_vit_minus", "micro_vit_cb", "micro_vit_conv3", "micro_pit",
    "micro_swin", "micro_twins", "micro_mixer", "micro_convit", "micro_levit", "micro_coat_lite",
    "micro_resnext",
)  # fmt: skip


def of_transformers(name):
    transformers = pytest.importorskip("transformers")
    if name == "transformers swin":
        config = transformers.SwinConfig(
            image_size=32, patch_size=4, embed_dim=12, depths=[2, 1], num_heads=[2, 4],
            window_size=4, num_labels=5,
        )  # fmt: skip
        return transformers.SwinForImageClassification(config)
    config = transformers.Dinov2WithRegistersConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=3, image_size=32, patch_size=8,
        num_register_tokens=2, num_labels=5,
    )  # fmt: skip
    return transformers.Dinov2WithRegistersForImageClassification(config)


def made(name):
    """A model and the size of its images."""
    if name == "own":
        return Written(Einsum()), 16
    if name.startswith("transformers"):
        return Logits(of_transformers(name)), 32
    return timm.create_model(name), SIZES.get(name, 32)


@pytest.mark.parametrize(
    "name",
    sampled(
        [*MICRO, *SIZES, "transformers swin", "transformers dinov2 with registers", "own"],
        "micro_alternet", "micro_vit_gap", "transformers dinov2 with registers", "own",
    ),
)  # fmt: skip
def test_every_unit_has_a_result_or_a_reason(name, tmp_path):
    torch.manual_seed(0)
    model, side = made(name)
    subject = load_subject(
        draw_at_order_one(model).eval(), "cues", name=name, size=(side, side), images=IMAGES
    )
    every = [unit.name for unit in subject.anatomy]
    attends = any(unit.kind is Kind.ATTENTION for unit in subject.anatomy)
    run = Run(tmp_path)
    for probe in PROBES:
        called = probe.result.probe
        found, refusal = measured(run, probe, subject)
        if found is None:
            assert called in OF_ATTENTION, f"{called}: {refusal}"
            assert not attends or called == "attention_spectrum", f"{called}: {refusal}"
            assert len(refusal) > 20
            continue
        assert found.units, called
        told = [*found.units, *(unit for unit, _ in found.skipped)]
        if called != "lesion":  # its rows are parts of the network, not all of them units
            assert sorted(told) == sorted(every), called
        assert all(len(reason) > 5 for _, reason in found.skipped)
        numbers = [array for array in found.arrays().values() if array.dtype.kind == "f"]
        assert any(np.isfinite(array).any() for array in numbers), called
        assert not any(np.isinf(array).any() for array in numbers), called
        assert found.findings(), called


def measured(run, probe, subject):
    """The result, or the reason why there is none."""
    try:
        return run.measure(probe, subject), ""
    except NotApplicable as reason:
        return None, str(reason)
