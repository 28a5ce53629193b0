import numpy as np
import pytest

from retinoscope.numerics.paths import lengths, polar, principal_plane, turns


def gram_of(points):
    points = np.asarray(points, dtype=float)
    return points @ points.T


@pytest.fixture
def points():
    """A winding path of seven points in twenty dimensions that ends somewhere."""
    return np.random.default_rng(0).normal(size=(7, 20)).cumsum(0)


def test_a_straight_line_has_one_direction_and_no_turns():
    direction = np.random.default_rng(1).normal(size=30)
    points = np.outer([0, 0.1, 2, 5, 5.5], direction)
    size = np.linalg.norm(direction)
    for line in (points, points - points[-1]):
        gram = gram_of(line)
        coordinates, explained = principal_plane(gram)
        # What rounding leaves of a second direction counts as none.
        np.testing.assert_allclose(explained, [1, 0], atol=1e-12)
        np.testing.assert_array_equal(coordinates[:, 1], 0)
        np.testing.assert_allclose(coordinates[:, 0], [5.5 * size, 5.4 * size, 3.5 * size,
                                                       0.5 * size, 0], rtol=1e-9)  # fmt: skip
        assert lengths(gram).sum() == pytest.approx(np.sqrt(gram_of(line - line[0])[-1, -1]))
        # The arc cosine of 1 - 1e-15 is 4e-8.
        np.testing.assert_allclose(turns(gram), [np.nan, 0, 0, 0], atol=1e-6)


def test_right_angles_and_a_way_back():
    gram = gram_of([[0, 0], [0, 2], [3, 2], [3, 0], [3, 2]])
    np.testing.assert_allclose(lengths(gram), [2, 3, 2, 2])
    np.testing.assert_allclose(turns(gram), [np.nan, np.pi / 2, np.pi / 2, np.pi])


def test_a_point_that_comes_twice_makes_no_turn():
    corner = [[1e3, 7], [0.1, 7], [0.1, 7], [0.1, 0.3]]
    gram = gram_of(corner)
    assert lengths(gram)[1] == 0
    np.testing.assert_allclose(turns(gram), [np.nan, np.nan, np.pi / 2])


def test_the_plane_is_that_of_a_singular_value_decomposition(points):
    coordinates, explained = principal_plane(gram_of(points))
    centred = points - points.mean(0)
    _, values, directions = np.linalg.svd(centred, full_matrices=False)
    expected = (points - points[-1]) @ directions[:2].T
    expected *= np.sign(expected[np.abs(expected).argmax(0), [0, 1]])
    np.testing.assert_allclose(coordinates, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(explained, values[:2] ** 2 / (values**2).sum(), rtol=1e-9)


def test_polar_coordinates_by_the_formula(points):
    radius, angle = polar(gram_of(points))
    apart = points - points[-1]
    sizes = np.linalg.norm(apart, axis=1)
    np.testing.assert_allclose(radius, sizes / sizes[0], rtol=1e-9, atol=1e-12)
    expected = np.arccos((apart @ apart[0])[1:-1] / (sizes[1:-1] * sizes[0]))
    np.testing.assert_allclose(angle[1:-1], expected, rtol=1e-9)
    assert angle[0] == pytest.approx(0, abs=1e-6)
    assert radius[-1] == 0
    assert np.isnan(angle[-1])


def test_lengths_and_turns_by_vectors(points):
    steps = np.diff(points, axis=0)
    sizes = np.linalg.norm(steps, axis=1)
    gram = gram_of(points)
    np.testing.assert_allclose(lengths(gram), sizes, rtol=1e-9)
    cosines = (steps[1:] * steps[:-1]).sum(1) / (sizes[1:] * sizes[:-1])
    np.testing.assert_allclose(turns(gram)[1:], np.arccos(cosines), rtol=1e-9)


def test_rotations_and_another_origin_change_nothing(points):
    turned = points @ np.linalg.qr(np.random.default_rng(2).normal(size=(20, 20)))[0]
    moved = points + np.random.default_rng(3).normal(size=20)
    measures = (
        lambda gram: principal_plane(gram)[0], lambda gram: principal_plane(gram)[1],
        lambda gram: polar(gram)[0], lambda gram: polar(gram)[1][1:], lengths, turns,
    )  # fmt: skip
    for other in (turned, moved):
        for measure in measures:
            expected = measure(gram_of(points))
            np.testing.assert_allclose(measure(gram_of(other)), expected, rtol=1e-8, atol=1e-9)


def test_a_path_that_ends_where_it_began_has_no_polar_coordinates():
    gram = gram_of([[1, 0], [0, 1], [1, 0]])
    radius, angle = polar(gram)
    assert np.isnan(radius).all()
    assert np.isnan(angle).all()
    np.testing.assert_allclose(lengths(gram), np.sqrt([2, 2]))


def test_points_that_are_all_one():
    gram = gram_of(np.full((3, 4), 0.1))
    coordinates, explained = principal_plane(gram)
    np.testing.assert_array_equal(coordinates, 0)
    assert np.isnan(explained).all()
    np.testing.assert_array_equal(lengths(gram), 0)
    assert np.isnan(turns(gram)).all()


def test_small_steps_beside_a_long_way_are_seen():
    """About the end, as the probe takes them: the last steps of a training are short."""
    points = np.array([[1.0, 0, 0], [3e-7, 0, 0], [3e-7, 3e-7, 0], [0, 3e-7, 0]])
    gram = gram_of(points - points[-1])
    np.testing.assert_allclose(lengths(gram)[1:], 3e-7, rtol=1e-6)
    np.testing.assert_allclose(turns(gram)[1:], np.pi / 2, rtol=1e-6)
