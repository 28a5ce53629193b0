import pytest

from retinoscope.models.families.intermediates import check_maps


def test_maps_pass_and_other_forms_are_refused():
    check_maps("NCHW")
    with pytest.raises(ValueError, match="come as maps, output_fmt='NCHW'; got 'NLC'"):
        check_maps("NLC")
