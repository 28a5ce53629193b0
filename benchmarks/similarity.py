"""CKA of all layers with all layers against torch-cka, and against the plain forward pass.

Both compare the outputs of the same modules on the same mini-batches. torch-cka runs the model
twice and computes each Gram matrix again for every pair of layers; ours is computed once, and
all pairs are one product. Ours hooks the modules here, because torch-cka knows modules only; the
probe ``similarity`` compares units, and is timed too. The bound is 1 forward pass. The weights are
fresh: with weights at order one, torch-cka loses its digits in single precision.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from networks import NETWORKS
from pairs import Ratio, asked, peer, take_turns, time_pairs, verdict
from retinoscope.core.context import Context
from retinoscope.core.subject import Batch, Subject
from retinoscope.numerics.gram import Grams, bordered_gram
from retinoscope.numerics.similarity import cka, hsic, own_hsic, u_centred
from retinoscope.probes.similarity import Similarity
from retinoscope.run.shared_pass import SharedPass
from retinoscope.run.subject import load_subject

IMAGES = {"resnet20_cifar": 1024, "ViT-Tiny": 512}
BATCH = {"resnet20_cifar": 256, "ViT-Tiny": 64}
BARS = {"resnet20_cifar": (10.0, 1.75), "ViT-Tiny": (8.0, 1.3)}
"""torch-cka / ours, and ours / forward pass."""


def main() -> None:
    """Print a line per network and comparison."""
    arguments = asked(__doc__, pairs=15, peer=3, networks=tuple(NETWORKS))
    for called in arguments.networks:
        count = IMAGES[called]
        subject = load_subject(NETWORKS[called], "cues", pretrained=False, images=count)
        images = torch.cat([b.images for b in subject.splits["test"].batches(range(count), count)])
        with torch.inference_mode():
            measure(called, subject, images, arguments.pairs, arguments.peer)


def measure(called: str, subject: Subject, images: Tensor, pairs: int, turns: int) -> None:
    """Time ours, torch-cka and the forward pass of the same images."""
    chosen = layers(subject.model)
    batches = images.split(BATCH[called])

    def ours() -> np.ndarray:
        return compared(subject.model, chosen, batches)

    def theirs() -> np.ndarray:
        return torch_cka(subject.model, chosen, batches)

    def forward() -> None:
        for batch in batches:
            subject.model(batch)

    found, expected = ours(), theirs()
    off = float(np.abs(found - expected).max())
    print(f"{called}: {len(chosen)} layers, {len(images)} images, CKA agrees to {off:.1e}")
    if off > 2e-3:  # torch-cka subtracts large sums in single precision
        raise SystemExit(f"{called}: CKA differs by {off:.1e}")
    most, total = BARS[called]
    ratio = Ratio.of(*take_turns((theirs, ours), max(2, turns)))
    print(f"{called}: torch-cka / ours {ratio}; bar {most:.2f} {verdict(ratio.median >= most)}")
    ratio = time_pairs(ours, forward, pairs)
    print(
        f"{called}: ours / forward {ratio}; bound 1; bar {total} {verdict(ratio.median <= total)}"
    )
    print(f"{called}: probe similarity / forward {probe(subject, images, pairs)}; bound 1")


def layers(model: nn.Module) -> list[str]:
    """20 layers of a ResNet-20 (convolutions and classifier), 38 of a ViT (with both branches)."""
    named = dict(model.named_modules())
    blocks = [name for name in named if name.rpartition(".")[0].endswith("blocks")]
    if blocks:
        ends = ("", ".attn", ".mlp")
        inner = [block + end for block in blocks for end in ends]
        return ["backbone.patch_embed", *inner, "backbone.norm"]
    return [n for n, m in named.items() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)] + [
        "backbone.fc"
    ]


def compared(model: nn.Module, chosen: Sequence[str], batches: Sequence[Tensor]) -> np.ndarray:
    """Our CKA of hooked modules, in the order in which they run."""
    grams: dict[str, Tensor] = {}

    def hook(name: str):
        def keep(_module: nn.Module, _inputs: object, output: Tensor) -> None:
            grams[name] = bordered_gram(output.flatten(1))

        return keep

    handles = [model.get_submodule(n).register_forward_hook(hook(n)) for n in chosen]
    both, own = [], []
    for batch in batches:
        grams.clear()
        model(batch)
        centred = u_centred(Grams.of(torch.stack(list(grams.values())).numpy()).kernel())
        both.append(hsic(centred, centred)), own.append(own_hsic(centred))
    for handle in handles:
        handle.remove()
    mean = np.mean(own, axis=0)
    return cka(np.mean(both, axis=0), mean, mean)


def torch_cka(model: nn.Module, chosen: Sequence[str], batches: Sequence[Tensor]) -> np.ndarray:
    """The same by torch-cka; its rows are in the order in which layers run."""
    library = peer("torch_cka", "torch-cka")
    loader = DataLoader(TensorDataset(torch.cat(list(batches))), batch_size=len(batches[0]))
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = library.CKA(
            model, model, "one", "two", model1_layers=list(chosen), model2_layers=list(chosen)
        )
        found.compare(loader)
    for name in chosen:  # it never removes its hooks
        model.get_submodule(name)._forward_hooks.clear()
    return found.export()["CKA"].numpy()


def probe(subject: Subject, images: Tensor, pairs: int) -> Ratio:
    """The probe on all units, with neighbours and rank correlation."""
    watcher = Similarity()
    shared, context = SharedPass((watcher,)), Context()
    groups = [
        Batch(part, tuple(range(64 * i, 64 * i + len(part))))
        for i, part in enumerate(images.split(64))
    ]

    def ours() -> object:
        found = [shared.look(subject, [batch], context)[0][0] for batch in groups]
        return watcher.combine(subject.anatomy, [watcher.gather(group) for group in found])

    return time_pairs(ours, lambda: [subject.model(b.images) for b in groups], pairs)


if __name__ == "__main__":
    main()
