"""What other implementations of CKA get wrong, each as a case that ours gets right.

torch-cka: NaN from a last mini-batch of three images or fewer and from a negative HSIC, digits lost
between features of different scale, hooks that stay in the model. ckatorch: only the last
mini-batch counts, positions are taken for samples, no feature maps, a biased estimate under the
name of an unbiased one. cka-pytorch: a constant in the denominator that shrinks small features.
"""

import numpy as np
import pytest
import torch
from torch import nn

from numerics.test_similarity import naive_cka, our_cka
from probes.small import small
from retinoscope import measure
from retinoscope.models.order_one import draw_at_order_one
from retinoscope.probes.similarity import Similarity
from retinoscope.run.subject import load_subject

RANDOM = np.random.default_rng(0)


def test_a_last_group_of_three_is_no_nan():
    subject = small("vit", "float32", images=19)
    found = measure(Similarity(group=8), subject)  # 8, 8 and 3 images
    assert (found.images, found.groups) == (16, 2)
    assert np.isfinite(found.cka).all()


def test_a_negative_hsic_gives_a_negative_score():
    for _ in range(100):
        one, other = ([RANDOM.normal(size=(6, 40))] for _ in range(2))
        if (found := our_cka(one, other)) < 0:
            break
    assert -1 < found < 0
    assert found == pytest.approx(naive_cka(one, other), abs=1e-10)


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 0.1, 1e3, 1e6])
def test_features_with_themselves_at_any_scale(scale):
    features = RANDOM.normal(size=(32, 24))
    assert our_cka([scale * features], [features]) == pytest.approx(1, abs=1e-10)
    tiny = (scale * features).astype(np.float32)
    assert our_cka([tiny], [features]) == pytest.approx(1, abs=1e-5)


def test_independent_features_wider_than_images():
    """A biased estimate gives 0.945 here."""
    found = [
        our_cka([RANDOM.normal(size=(32, 500))], [RANDOM.normal(size=(32, 500))]) for _ in range(20)
    ]
    assert abs(np.mean(found)) < 0.02
    assert np.abs(found).max() < 0.15


def test_every_group_counts():
    mixed = RANDOM.normal(size=(12, 9))
    first, second = (RANDOM.normal(size=(16, 12)) for _ in range(2))
    batches = [first, second], [first @ mixed, RANDOM.normal(size=(16, 9))]
    both, last = our_cka(*batches), our_cka([batches[0][1]], [batches[1][1]])
    assert both == pytest.approx(our_cka(*(side[::-1] for side in batches)), abs=1e-12)
    assert abs(both - last) > 0.1


class Rearranged(nn.Module):
    """A network and the same with the positions of its second map in reverse order."""

    def __init__(self):
        super().__init__()
        self.stem, self.body = nn.Conv2d(3, 6, 4, 4), nn.Conv2d(6, 6, 3, padding=1)
        self.head = nn.Linear(6, 5)

    def forward(self, x):
        x = self.stem(x)
        return self.head(self.body(x).flip(2, 3).flip(2, 3).mean((2, 3)))


def test_images_are_the_samples_not_positions():
    """Feature maps of a CNN are fine, and a fixed rearrangement of positions changes nothing."""
    torch.manual_seed(0)
    model = draw_at_order_one(Rearranged()).eval()
    subject = load_subject(model, "cues", size=(16, 16), images=12, precision="float64")
    found = measure(Similarity(group=12), subject)
    (batch,) = subject.splits["test"].batches(range(12), 12)
    with torch.no_grad():
        stem = subject.backbone.stem(subject.model.normalise(batch.images.double()))
        maps = [stem, subject.backbone.body(stem)]
    states = [one.flatten(1).numpy() for one in maps]
    turned = [one.flip(2, 3).flatten(1).numpy() for one in maps]
    assert found.cka[0, 1] == pytest.approx(naive_cka([states[0]], [states[1]]), abs=1e-8)
    assert found.cka[0, 1] == pytest.approx(naive_cka([states[0]], [turned[1]]), abs=1e-8)
    samples = [one.flatten(2).mT.flatten(0, 1).numpy() for one in maps]  # positions as samples
    assert abs(found.cka[0, 1] - naive_cka([samples[0]], [samples[1]])) > 0.01


def test_no_hook_stays_in_the_model():
    model = small("vit", "float32", images=8).model
    measure(Similarity(group=4), small("vit", "float32", images=8))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
