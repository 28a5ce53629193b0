"""CoaT-Lite for images of 32 × 32 pixels (Xu et al., 2021, arXiv:2104.06399); the class is timm's.

Four stages of factorised attention with convolutional position encodings. timm's class assumes
patches of 4 × 4 pixels, which would leave a single position of a small image in the last stage.
Here every pixel is a token (in the micro size, 2 × 2 pixels), as in Swin and Twins on CIFAR.
"""

from __future__ import annotations

from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.coat import CoaT
from torch import Tensor

from retinoscope.models.families.configuration import cifar_cfg


class CifarCoat(CoaT):
    """CoaT-Lite with patches of any size.

    All blocks of a stage share their convolutions. The state dict contains each of them once, under
    the name of the stage, because safetensors refuses to store a tensor twice. State dicts of
    timm's class, which repeat them in every block, can be loaded as well.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("parallel_depth") or kwargs.get("return_interm_layers"):
            raise ValueError(
                "CoaT-Lite has serial stages only; for parallel_depth or return_interm_layers take "
                "timm's coat_* models. Intermediates come from forward_intermediates."
            )
        super().__init__(*args, **kwargs)
        self.feature_info = []
        grid, reduction = self.patch_embed1.grid_size, self.patch_embed1.feat_ratio()
        for stage, width in enumerate(self.embed_dims, 1):
            if stage > 1:
                embed = getattr(self, f"patch_embed{stage}")
                embed.set_input_size(grid)
                grid, reduction = embed.grid_size, reduction * embed.feat_ratio()
            module = f"serial_blocks{stage}"
            self.feature_info.append({"num_chs": width, "reduction": reduction, "module": module})
        self.register_state_dict_post_hook(_leave_out_shared)
        self.register_load_state_dict_pre_hook(_repeat_shared)


def _shared(model: CifarCoat) -> dict[str, str]:
    """The paths of shared modules inside blocks, each with its path in the stage."""
    return {
        f"serial_blocks{stage}.{block}.{inside}.": f"{own}{stage}."
        for stage in range(1, len(model.embed_dims) + 1)
        for block in range(len(getattr(model, f"serial_blocks{stage}") or ()))  # None if pruned
        for inside, own in (("cpe", "cpe"), ("factoratt_crpe.crpe", "crpe"))
    }


def _leave_out_shared(model: CifarCoat, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    for path in _shared(model):
        for key in [key for key in state if key.startswith(prefix + path)]:
            del state[key]


def _repeat_shared(model: CifarCoat, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    for path, own in _shared(model).items():
        for key in [key for key in state if key.startswith(prefix + own)]:
            state.setdefault(prefix + path + key.removeprefix(prefix + own), state[key])


default_cfgs = generate_default_cfgs(
    {
        "coat_lite_tiny_cifar": cifar_cfg("patch_embed1.proj", "head", fixed_input_size=True),
        "micro_coat_lite": cifar_cfg(
            "patch_embed1.proj", "head", classes=10, fixed_input_size=True
        ),
    }
)


def _coat(variant: str, pretrained: bool, settings: dict[str, Any]) -> CifarCoat:
    out_indices = settings.pop("out_indices", (0, 1, 2, 3))
    feature_cfg = {"out_indices": out_indices, "feature_cls": "getter"}
    return build_model_with_cfg(CifarCoat, variant, pretrained, feature_cfg=feature_cfg, **settings)


@register_model
def coat_lite_tiny_cifar(pretrained: bool = False, **kwargs: Any) -> CifarCoat:
    """5.43 M parameters; grids of 32 × 32 down to 4 × 4."""
    settings = {
        "patch_size": 1, "embed_dims": (64, 128, 256, 320), "serial_depths": (2, 2, 2, 2),
        "num_heads": 8, "mlp_ratios": (8, 8, 4, 4),
    }  # fmt: skip
    return _coat("coat_lite_tiny_cifar", pretrained, settings | kwargs)


@register_model
def micro_coat_lite(pretrained: bool = False, **kwargs: Any) -> CifarCoat:
    """0.15 M parameters; grids of 16 × 16 down to 2 × 2, four heads."""
    settings = {
        "patch_size": 2, "embed_dims": (16, 24, 40, 48), "serial_depths": (2, 2, 2, 2),
        "num_heads": 4, "mlp_ratios": (8, 8, 4, 4), "crpe_window": {3: 1, 5: 1, 7: 2},
    }  # fmt: skip
    return _coat("micro_coat_lite", pretrained, settings | kwargs)
