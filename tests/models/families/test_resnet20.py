import timm
import torch

from retinoscope import dissect, load_model


def test_resnet20_is_that_of_the_paper():
    """0.27 M parameters, three stages of three blocks (He et al., 2016, table 6)."""
    model = timm.create_model("resnet20_cifar").eval()
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 2) == 0.27
    assert dissect(model, 32).sketch == "CCC|C↓CC|C↓CC"
    layers = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d | torch.nn.Linear)]
    assert len([m for m in layers if getattr(m, "kernel_size", None) != (1, 1)]) == 20


def test_speaks_timm():
    features = timm.create_model("resnet20_cifar", features_only=True)
    shapes = [tuple(f.shape[1:]) for f in features(torch.rand(1, 3, 32, 32))]
    assert shapes == [(16, 32, 32), (32, 16, 16), (64, 8, 8)]
    assert features.feature_info.channels() == [16, 32, 64]
    model = timm.create_model("resnet20_cifar", num_classes=7, in_chans=1)
    assert model(torch.rand(2, 1, 32, 32)).shape == (2, 7)
    model.reset_classifier(3)
    assert model(torch.rand(2, 1, 32, 32)).shape == (2, 3)


def test_models_say_how_they_want_their_images():
    small = load_model("resnet20_cifar", pretrained=False).preprocessing
    assert small.size == (32, 32)
    assert small.crop_pct == 1.0
    assert small.mean[0] == 0.4914
    large = load_model("resnet50.a1_in1k", pretrained=False).preprocessing
    assert large.crop_pct == timm.create_model("resnet50.a1_in1k").pretrained_cfg["crop_pct"] != 1
    built = load_model("vit_tiny_patch16_224:img_size=32", pretrained=False).preprocessing
    assert (built.size, built.crop_pct) == ((32, 32), 1.0)
    grey = load_model("resnet18:in_chans=1", pretrained=False).preprocessing
    assert len(grey.mean) == len(grey.std) == 1
    vision = load_model("torchvision:resnet18", pretrained=False)
    assert vision.preprocessing.crop_pct == 224 / 256
    assert vision.classes[0] == "tench"


def test_transformers_preprocessing_is_read_from_its_file(tmp_path):
    import json

    from retinoscope.models.preprocessing import from_transformers

    (tmp_path / "preprocessor_config.json").write_text(
        json.dumps({
            "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.2, 0.2], "resample": 2,
            "do_center_crop": True, "size": {"shortest_edge": 256},
            "crop_size": {"height": 224, "width": 224},
        })
    )  # fmt: skip
    found = from_transformers(str(tmp_path), (3, 224, 224))
    assert found.mean == (0.5, 0.4, 0.3)
    assert found.interpolation == "bilinear"
    assert found.crop_pct == 224 / 256
    assert from_transformers(str(tmp_path / "config.json"), (3, 64, 64)).std == (0.2, 0.2, 0.2)
