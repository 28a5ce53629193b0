import numpy as np

from retinoscope.core.coverage import covered
from retinoscope.models.anatomy import anatomy_of
from retinoscope.probes.variance import VarianceResult
from retinoscope.workflows.advise import plan


def result(anatomy, levels: dict[str, float]) -> VarianceResult:
    units = [unit for unit in anatomy if unit.stage]
    zeros = np.zeros(len(units))
    return VarianceResult(
        coverage=covered(anatomy, [unit.name for unit in units]),
        images=1,
        variance=np.array([levels[unit.name] for unit in units]),
        variance_error=zeros,
        step=zeros,
        step_error=zeros,
    )


def test_advice_is_the_papers_where_variance_peaks_at_the_end_of_every_stage():
    """ResNet-50: 4 attention units for CIFAR (0, 1, 1, 2), 6 for ImageNet (0, 1, 3, 2)."""
    anatomy = anatomy_of("resnet50", (64, 64))
    rising = {unit.name: float(unit.depth) for unit in anatomy}
    for msas, expected in ((1, (0, 0, 0, 1)), (4, (0, 1, 1, 2)), (6, (0, 1, 3, 2))):
        advice = plan(anatomy, result(anatomy, rising), msas, True)
        assert advice.surgery.msa_per_stage == expected
        assert advice.surgery.grow == (expected[3] == 2)
    assert advice.stages[0].reason.startswith("it is the first stage")
    assert advice.stages[3].peak == "layer4.2"


def test_advice_follows_what_was_measured():
    """Where the variance of stage 3 falls, stage 3 gets nothing; where all fall, nobody does."""
    anatomy = anatomy_of("resnet50", (64, 64))
    levels = {u.name: -float(u.depth) if u.stage == 3 else float(u.depth) for u in anatomy}
    advice = plan(anatomy, result(anatomy, levels), 4, True)
    assert advice.surgery.msa_per_stage == (0, 2, 0, 2)
    assert "does not rise" in advice.stages[2].reason
    falling = {unit.name: -float(unit.depth) for unit in anatomy}
    advice = plan(anatomy, result(anatomy, falling), 4, True)
    assert advice.surgery is None
    assert advice.written is None
