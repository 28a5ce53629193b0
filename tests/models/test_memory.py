import pytest
import torch

from retinoscope.models.memory import DoesNotFit, Parts, slices, went_in_parts


def hungry(most, done, error=None):
    """Work that fails where a part of eight images has more than ``most``."""

    def work(parts):
        done.append(parts)
        if any(len(range(8)[part]) > most for part in slices(8, parts)):
            raise error or torch.OutOfMemoryError("full")
        return parts

    return work


def test_more_parts_as_often_as_memory_demands():
    parts, tried, said = Parts(), [], []
    assert parts.run(hungry(2, tried), 8, said.append) == 4
    assert tried == [1, 2, 4]
    assert said == [2, 4]
    assert parts.run(hungry(2, tried), 8, said.append) == 4  # the next batch begins so
    assert tried == [1, 2, 4, 4]


def test_never_more_parts_than_images():
    parts, tried = Parts(6), []
    assert parts.run(hungry(1, tried), 8, tried.append) == 8
    assert tried == [6, 8, 8]
    assert Parts(6).run(lambda count: count, 4, tried.append) == 4


def test_one_image_that_does_not_fit():
    with pytest.raises(DoesNotFit, match=r"One image does not fit into memory\. Use another one\."):
        Parts().run(hungry(0, []), 8, lambda parts: None, "Use another one.")


def test_other_errors_are_not_taken_for_want_of_memory():
    tried = []
    with pytest.raises(RuntimeError, match="a bug"):
        Parts().run(hungry(0, tried, RuntimeError("a bug")), 8, lambda parts: None)
    assert tried == [1]


@pytest.mark.parametrize(("images", "parts"), [(7, 1), (7, 2), (7, 4), (7, 7), (8, 3)])
def test_parts_are_those_of_torch(images, parts):
    expected = [part.tolist() for part in torch.arange(images).chunk(parts)]
    assert [list(range(images)[part]) for part in slices(images, parts)] == expected


def test_what_is_said():
    assert went_in_parts(8, 2) == "out of memory: a mini-batch of 8 goes through in 2 parts"
