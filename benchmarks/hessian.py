"""Time to find the largest Hessian eigenvalues, against PyHessian and curvlinops.

    python benchmarks/hessian.py
    python benchmarks/hessian.py --networks resnet --batches 32
    python benchmarks/hessian.py --networks vit --spectrum vit
    python benchmarks/hessian.py --networks resnet --steps 0      before any training

- ours is Lanczos, with products from a graph that is built once; the time includes building it
- PyHessian uses power iteration, as in Park & Kim (2022, arXiv:2202.06709)
- curvlinops uses products in forward-over-reverse mode and scipy's eigsh (ARPACK). Its check for
  determinism is switched off: ours runs once per run and is not part of the time either

Both peers need attention without fused kernels, and get it. All use the same network, a mini-batch
of 16 training images of cues and one thread, and run in turns, each search with another start
vector; times are CPU seconds. Products and eigenvalues are first checked against double precision.
Networks are trained briefly beforehand. Finally, random start vectors are compared with others.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import count
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from networks import NETWORKS
from pairs import Ratio, asked, peer, take_turns, verdict
from retinoscope.core.probe import Needs
from retinoscope.core.subject import Batch, Subject
from retinoscope.geometry.curvature import Curvature
from retinoscope.geometry.sample import shuffled
from retinoscope.models.checkpoint import state_hash
from retinoscope.numerics.krylov import Eigenpairs, Lanczos
from retinoscope.run.subject import load_subject

K, SIZE, BATCHES, IMAGES = 5, 16, 3, 1024
STEPS, EPOCH = 64, 8
"""Number of training steps beforehand, and of mini-batches, which are used repeatedly."""
RATES = {"resnet20_cifar": 2e-3, "ViT-Tiny": 5e-4}
BARS = {
    "resnet20_cifar": {"PyHessian": 3.8, "curvlinops": 3.5, "product": 8.0},
    "ViT-Tiny": {"PyHessian": 3.5, "curvlinops": 2.1, "product": 6.6},
}
TOLERANCE = 1e-3
"""Requested relative error; PyHessian interprets it differently and may exceed it."""
SAME_EXACTLY, SAME_ROUNDED, SAME_REFERENCE = 1e-10, 1e-4, 1e-8
"""Tolerances: products in double and in single precision, searches in double precision."""
SAME_FORWARD = 1e-3
"""Tolerance for products of curvlinops in double precision: it uses forward mode, and torch 2.15's
forward derivative of a layer norm's gain is wrong (tests/probes/test_hessian.py shows it)."""
LONG = 20.0
"""Runs of more seconds than this are timed a fifth as often, but at least three times."""


@dataclass(frozen=True)
class Found:
    """Eigenvalues, and the number of products that they took."""

    values: np.ndarray
    products: int

    def off(self, truth: np.ndarray) -> float:
        """The largest relative error."""
        ordered = self.values[np.argsort(-np.abs(self.values))]
        return float(np.max(np.abs(ordered - truth) / np.abs(truth)))


def main() -> None:
    """Print the lines of each network; exit with 1 if results disagree."""
    arguments = asked(
        __doc__, pairs=15, batches=8, steps=STEPS, checked=BATCHES, networks=tuple(NETWORKS),
        spectrum=("resnet20_cifar",),
    )  # fmt: skip
    warnings.simplefilter("ignore")  # warnings of the peers
    spectrum = chosen(arguments.spectrum)
    for called in chosen(arguments.networks):
        subject = warmed(called, arguments.steps)
        batches = same_matrices(called, subject, arguments.checked)
        slowest = same_answers(called, subject, batches)
        turns = arguments.pairs if slowest < LONG else max(3, arguments.pairs // 5)
        compare_times(called, subject, batches[0], turns)
        compare_product(called, subject, batches[0], arguments.pairs)
        if called in spectrum:
            compare_starts(called, subject, arguments.batches)


def chosen(words: Sequence[str]) -> list[str]:
    """The networks whose names begin with these words."""
    for word in words:
        if not any(name.lower().startswith(word.lower()) for name in NETWORKS):
            raise SystemExit(f"No network is called {word!r}. There are: {', '.join(NETWORKS)}.")
    return [n for n in NETWORKS if any(n.lower().startswith(word.lower()) for word in words)]


def mini_batches(subject: Subject, number: int) -> list[Batch]:
    """Clean training images in random order."""
    split = subject.split(Needs("train", labels=True))
    return list(split.batches(shuffled(len(split), 0)[: number * SIZE], SIZE))


def warmed(called: str, steps: int = STEPS) -> Subject:
    """A network that was trained briefly on a few mini-batches, always in the same way."""
    subject = load_subject(NETWORKS[called], "cues", pretrained=False, images=IMAGES)
    optimiser = torch.optim.AdamW(subject.model.parameters(), RATES[called], weight_decay=0.05)
    batches, losses = mini_batches(subject, EPOCH), []
    subject.model.train()
    for step in range(steps):
        batch = batches[step % EPOCH]
        loss = subject.loss(subject.model(batch.images), batch)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    subject.model.eval()
    optimiser.zero_grad()
    count = sum(p.numel() for p in subject.model.parameters())
    trained = "untrained"
    if losses:
        first, last = (statistics.mean(part) for part in (losses[:EPOCH], losses[-EPOCH:]))
        trained = (
            f"{steps} steps of AdamW with rate {RATES[called]:g} on {EPOCH} mini-batches of {SIZE} "
            f"images; loss {first:.3f} in the first epoch, {last:.3f} in the last"
        )
    print(f"{called}: {count:,} parameters, seed 0, {trained}", flush=True)
    return replace(subject, state=state_hash(subject.backbone), origin=None)


def in_double(subject: Subject) -> Subject:
    """The same network in double precision."""
    model = deepcopy(subject.model).double()
    return replace(subject, model=model, backbone=model.get_submodule("backbone"))


def ours(subject: Subject, batch: Batch, seed: int) -> Found:
    """Lanczos, as in the probe."""
    curvature = Curvature(subject.backbone, subject.batch_loss, batch)
    found = Lanczos(k=K, tolerance=TOLERANCE)(curvature.product, curvature.like, seed)
    return Found(found.values, found.products)


def for_pyhessian(subject: Subject, batch: Batch) -> Any:
    """The Hessian as PyHessian's object."""
    module = peer("pyhessian.hessian", "pyhessian")
    data = (subject.to_device(batch.images), batch.labels)
    with sdpa_kernel(SDPBackend.MATH):
        return module.hessian(subject.model, nn.CrossEntropyLoss(), data=data, cuda=False)


def pyhessian(subject: Subject, batch: Batch, seed: int) -> Found:
    """Power iteration by PyHessian, one value after the other."""
    module = peer("pyhessian.hessian", "pyhessian")
    torch.manual_seed(seed)  # it draws from the global generator
    counted = patch.object(module, "hessian_vector_product", wraps=module.hessian_vector_product)
    with counted as product:
        matrix = for_pyhessian(subject, batch)
        values, _ = matrix.eigenvalues(maxIter=100, tol=TOLERANCE, top_n=K)
    subject.model.zero_grad(set_to_none=True)  # its gradients keep the graph alive
    return Found(np.array(values), product.call_count)


def for_curvlinops(subject: Subject, batch: Batch) -> Any:
    """The Hessian as curvlinops's operator."""
    module = peer("curvlinops", "curvlinops-for-pytorch==3.0.1")
    return module.HessianLinearOperator(
        subject.model, nn.CrossEntropyLoss(), list(subject.model.parameters()),
        [(subject.to_device(batch.images), batch.labels)], check_deterministic=False,
    )  # fmt: skip


def curvlinops(subject: Subject, batch: Batch, seed: int, tolerance: float = TOLERANCE) -> Found:
    """Implicitly restarted Lanczos by ARPACK, with curvlinops's products."""
    linalg = peer("scipy.sparse.linalg", "scipy")
    matrix, products = for_curvlinops(subject, batch).to_scipy(), count()

    def multiply(vector: np.ndarray) -> np.ndarray:
        next(products)
        return matrix @ vector

    counted = linalg.LinearOperator(matrix.shape, matvec=multiply, dtype=matrix.dtype)
    start = np.random.default_rng(seed).standard_normal(matrix.shape[0])
    with sdpa_kernel(SDPBackend.MATH):
        values, _ = linalg.eigsh(counted, k=K, which="LM", tol=tolerance, v0=start)
    return Found(values, next(products))


SEARCHES = {"ours": ours, "PyHessian": pyhessian, "curvlinops": curvlinops}


def products(subject: Subject, batch: Batch) -> dict[str, Tensor]:
    """The products of each one's matrix with the same vector, in the network's precision."""
    curvature = Curvature(subject.backbone, subject.batch_loss, batch)
    drawn = torch.randn(len(curvature.like), generator=torch.Generator().manual_seed(0))
    vector = drawn.to(curvature.like)
    theirs = for_pyhessian(subject, batch)
    parts = vector.split([p.numel() for p in theirs.params])
    shaped = [part.view_as(p) for part, p in zip(parts, theirs.params, strict=True)]
    multiply = peer("pyhessian.utils", "pyhessian").hessian_vector_product
    found = torch.cat([p.flatten() for p in multiply(theirs.gradsH, theirs.params, shaped)])
    subject.model.zero_grad(set_to_none=True)
    with sdpa_kernel(SDPBackend.MATH):
        other = for_curvlinops(subject, batch) @ vector
    return {"ours": curvature.product(vector), "PyHessian": found, "curvlinops": other}


def same_matrices(called: str, subject: Subject, wanted: int) -> list[Batch]:
    """Mini-batches on which all multiply by the same matrix; an error if there are too few.

    In double precision they must agree, as far as torch allows. In single precision, one ReLU in a
    million whose input is almost 0 may be rounded to the other side, which changes the matrix for
    every implementation. On such mini-batches, a search cannot be compared with one in double
    precision.
    """
    double, kept = in_double(subject), []
    for number, batch in enumerate(mini_batches(subject, 4 * wanted)):
        exact = products(double, batch)
        errors = {name: apart(found, exact["PyHessian"]) for name, found in exact.items()}
        if errors["ours"] > SAME_EXACTLY or errors["curvlinops"] > SAME_FORWARD:
            raise SystemExit(f"{called}: they multiply by different matrices: {errors}")
        if errors["curvlinops"] > SAME_EXACTLY:
            print(f"{called}: curvlinops differs from the others by {errors['curvlinops']:.1e}")
        rounded = {n: apart(found, exact[n]) for n, found in products(subject, batch).items()}
        fits = max(rounded.values()) < SAME_ROUNDED
        listed = ", ".join(f"{name} {error:.1e}" for name, error in rounded.items())
        print(
            f"{called}: mini-batch {number}: relative errors of products: {listed}"
            f"{'' if fits else '; not used, because rounding has changed the matrix'}",
            flush=True,
        )
        kept += [batch] if fits else []
        if len(kept) == wanted:
            return kept
    raise SystemExit(f"{called}: single precision does not suffice for {wanted} mini-batches.")


def apart(found: Tensor, truth: Tensor) -> float:
    """The relative distance between two vectors."""
    return float((found.detach().double() - truth).norm() / truth.norm())


def same_answers(called: str, subject: Subject, batches: Sequence[Batch]) -> float:
    """Check all results against double precision; returns the seconds of the slowest search."""
    double = in_double(subject)
    truths = [reference(double, batch) for batch in batches]
    listed = ", ".join(f"{value:.6g}" for value in truths[0])
    print(f"{called}: eigenvalues of the first mini-batch: {listed}", flush=True)
    if called == "resnet20_cifar":
        off = curvlinops(double, batches[0], 0, tolerance=1e-10).off(truths[0])
        print(f"{called}: the reference differs from curvlinops in double precision by {off:.1e}")
        if off > SAME_REFERENCE:
            raise SystemExit(f"{called}: the reference is wrong.")
    slowest = 0.0
    for name, search in SEARCHES.items():
        start = time.process_time()
        found = [search(subject, batch, seed) for seed, batch in enumerate(batches)]
        slowest = max(slowest, (time.process_time() - start) / len(batches))
        off = max(one.off(truth) for one, truth in zip(found, truths, strict=True))
        counts = ", ".join(str(one.products) for one in found)
        print(f"{called}: {name}: largest relative error {off:.1e}, products {counts}", flush=True)
        if off > TOLERANCE and name != "PyHessian":
            raise SystemExit(f"{called}: the eigenvalues of {name} are wrong.")
    return slowest


def reference(double: Subject, batch: Batch) -> np.ndarray:
    """The eigenvalues, as accurate as possible."""
    curvature = Curvature(double.backbone, double.batch_loss, batch)
    search = Lanczos(k=K, tolerance=1e-10, products=600)
    found = search(curvature.product, curvature.like, seed=1000)
    if not found.converged.all():
        raise SystemExit(f"{double.name}: no reference after {found.products} products.")
    return found.values


def compare_times(called: str, subject: Subject, batch: Batch, turns: int) -> None:
    """Time the three in turns, and print the ratios."""
    seeds = {name: count() for name in SEARCHES}
    runs = [
        lambda name=name, search=search: search(subject, batch, next(seeds[name]))
        for name, search in SEARCHES.items()
    ]
    mine, *theirs = take_turns(runs, turns, time.process_time)
    for name, seconds in zip(list(SEARCHES)[1:], theirs, strict=True):
        found, bar = Ratio.of(seconds, mine), BARS[called][name]
        print(f"{called}: {name} / ours {found}; bar {bar} {verdict(found.median >= bar)}")


def compare_product(called: str, subject: Subject, batch: Batch, turns: int) -> None:
    """Time a product relative to a forward pass of the same images."""
    curvature = Curvature(subject.backbone, subject.batch_loss, batch)

    def product() -> Tensor:
        return curvature.product(curvature.like)

    def forward() -> Tensor:
        with torch.inference_mode():
            return subject.model(batch.images)

    product()
    forward()
    found = Ratio.of(*take_turns((product, forward), turns, time.process_time))
    bar = BARS[called]["product"]
    print(
        f"{called}: product / forward pass {found}; bar {bar} {verdict(found.median <= bar)}",
        flush=True,
    )


def compare_starts(called: str, subject: Subject, number: int) -> None:
    """Compare random start vectors with those that mini-batches could share."""
    first, *batches = mini_batches(subject, 1 + number)
    curvature = Curvature(subject.backbone, subject.batch_loss, first)
    known = Lanczos(k=K, tolerance=TOLERANCE)(curvature.product, curvature.like, 0)
    found: dict[str, list[Found]] = {}
    truths = []
    for seed, batch in enumerate(batches, 1):
        one = each_start(Curvature(subject.backbone, subject.batch_loss, batch), known, seed)
        truths.append(one.pop("thrice").values)
        for name, answer in one.items():
            found.setdefault(name, []).append(answer)
    print(f"{called}: {number} further mini-batches, searches that start from")
    for name, answers in found.items():
        mean = statistics.mean(one.products for one in answers)
        wrong = sum(one.off(truth) > TOLERANCE for one, truth in zip(answers, truths, strict=True))
        print(f"  {name}: {mean:.1f} products each, {wrong} of {number} with a wrong value")


def each_start(curvature: Curvature, known: Eigenpairs, seed: int) -> dict[str, Found]:
    """Search one mini-batch from every start; the reference uses three times the products."""
    search, like = Lanczos(k=K, tolerance=TOLERANCE), curvature.like
    draws = torch.Generator().manual_seed(seed)
    noise = torch.randn(len(like), generator=draws)

    def start(direction: Tensor) -> Found:
        # Not by calling it: its check for repeated eigenvalues assumes a random start.
        begin = direction / direction.norm() + 0.1 * noise / noise.norm()
        pairs = search._search(curvature.product, begin, like.new_empty(0, len(like)), draws)
        return Found(pairs.values, pairs.products)

    chance = search(curvature.product, like, seed)
    many = 3 * chance.products
    thrice = replace(search, steps=many, products=max(many, search.products))
    truth = thrice(curvature.product, like, seed + 1000)
    again = replace(search, again=True)(curvature.product, like, seed)
    return {
        "noise": Found(chance.values, chance.products),
        "noise, then again orthogonally to what was found": Found(again.values, again.products),
        "the first mini-batch's eigenvectors plus 10 % noise": start(known.vectors.sum(0)),
        "the gradient plus 10 % noise": start(curvature.gradient),
        "the space of the first mini-batch's eigenvectors": block(curvature, known, search),
        "thrice": Found(truth.values, truth.products),
    }


def block(curvature: Curvature, known: Eigenpairs, search: Lanczos) -> Found:
    """Rayleigh-Ritz in a space that grows by the residual of the first unconverged value."""
    basis = torch.linalg.qr(known.vectors.T)[0].T
    images = torch.stack([curvature.product(vector) for vector in basis])
    while True:
        within = (basis @ images.T).double().numpy()
        values, coordinates = np.linalg.eigh((within + within.T) / 2)
        order = np.argsort(-np.abs(values))[: K + 1]
        share = torch.from_numpy(coordinates[:, order].T.copy()).to(basis)
        left = share @ images - torch.from_numpy(values[order]).to(basis)[:, None] * (share @ basis)
        residuals = np.full(len(values), np.inf)
        residuals[order] = left.norm(dim=1).numpy()
        places, settled = search._verdict(values, residuals, 0.0)
        converged = search._close(values, residuals, 0.0)
        if settled or len(basis) >= search.products:
            return Found(values[places], len(basis))
        rest = left[next((i for i, at in enumerate(order) if not converged[at]), -1)]
        for _ in range(2):
            rest = rest - (basis @ rest) @ basis
        basis = torch.cat([basis, rest[None] / rest.norm()])
        images = torch.cat([images, curvature.product(basis[-1])[None]])


if __name__ == "__main__":
    main()
