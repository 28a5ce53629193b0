from retinoscope.report.words import protocol_lines


def images(**protocol):
    return dict(protocol_lines({"images": 64, "of": 400, "size": "32×32"} | protocol))["images"]


def test_images_are_called_balanced_only_where_they_are():
    said = "from 64 of 400 classes, 1 each"
    assert images(balanced=False, choice=said) == f"64 of 400, {said}, 32×32"
    assert images(balanced=False, choice="") == "64 of 400, 32×32"
    assert (
        images(balanced=True) == "64 of 400, approximately balanced over classes, 32×32"
    )  # of old
