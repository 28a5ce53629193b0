import timm
import torch

from models.survival import count, images, made, on_meta, survives
from retinoscope import dissect
from retinoscope.models.families import broadcast_vit
from retinoscope.surgery.operate import operate


def test_these_are_all():
    assert set(broadcast_vit.default_cfgs) == {"micro_vit_cb"}


def test_equals_the_surgery_on_micro_vit_with_the_same_weights():
    model, plain, x = made("micro_vit_cb"), made("micro_vit"), images()
    assert list(model.state_dict()) == list(plain.state_dict())
    plain.load_state_dict(model.state_dict())
    before = plain(x)
    operated = operate(plain, "context_broadcasting").eval()
    torch.testing.assert_close(model(x), operated(x), rtol=1e-5, atol=1e-5)
    assert (model(x) - before).abs().max() > 0.1  # and it mattered


def test_anatomy_and_size_are_those_of_micro_vit():
    anatomy = dissect(on_meta("micro_vit_cb"), 32)
    assert anatomy.sketch == dissect(on_meta("micro_vit"), 32).sketch == "AM" * 6
    assert count(on_meta("micro_vit_cb")) == count(on_meta("micro_vit"))


def test_it_trains_exports_and_survives_a_file(tmp_path):
    survives(made("micro_vit_cb"), timm.create_model("micro_vit_cb"), images(), tmp_path)
