import numpy as np

from retinoscope.geometry.sample import seed_of, shuffled


def test_every_place_comes_once_and_the_first_few_are_the_first_of_all():
    order = shuffled(50, seed=3)
    assert sorted(order) == list(range(50))
    assert order != list(range(50))
    assert shuffled(50, 3, 7) == order[:7]
    assert shuffled(5, 3, 100) == shuffled(5, 3)
    assert shuffled(0, 3) == []
    assert all(type(place) is int for place in order)


def test_a_seed_repeats_and_another_does_not():
    assert shuffled(50, 3) == shuffled(50, 3) != shuffled(50, 4)


def test_every_place_is_as_likely_to_come_first():
    first = [shuffled(4, seed, 1)[0] for seed in range(800)]
    counts = np.bincount(first, minlength=4)
    assert (np.abs(counts - 200) < 4 * np.sqrt(150)).all()  # four standard deviations


def test_seeds_of_other_numbers_are_others():
    seeds = {seed_of(a, b, c) for a in range(5) for b in range(20) for c in range(5)}
    assert len(seeds) == 500
    assert all(0 <= seed < 2**32 for seed in seeds)
    assert seed_of(1, 2) == seed_of(1, 2) != seed_of(2, 1)
