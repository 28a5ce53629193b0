"""States in the form in which timm's ``forward_intermediates`` gives them out."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


def check_maps(output_fmt: str) -> None:
    """Refuse another form than maps, where a network has nothing else."""
    if output_fmt != "NCHW":
        raise ValueError(f"Intermediates come as maps, output_fmt='NCHW'; got {output_fmt!r}.")


@dataclass(frozen=True)
class IntermediateForm:
    """What a caller of ``forward_intermediates`` wants to see of a state of tokens."""

    output_fmt: str = "NCHW"
    """Maps (N, C, H, W), or tokens without their prefix for ``NLC``."""
    return_prefix_tokens: bool = False
    """Give pairs, the second of which holds the tokens before the grid."""

    def __post_init__(self) -> None:
        if self.output_fmt not in ("NCHW", "NLC"):
            raise ValueError(
                f"Intermediates come as NCHW or NLC; output_fmt={self.output_fmt!r} was asked for."
            )

    def __call__(
        self, tokens: Tensor, prefix: int, grid: tuple[int, int]
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The state (N, ``prefix`` + H · W, C) in this form."""
        before, spatial = tokens[:, :prefix], tokens[:, prefix:]
        if self.output_fmt == "NCHW":
            spatial = spatial.transpose(1, 2).unflatten(2, grid).contiguous()
        return (spatial, before) if self.return_prefix_tokens else spatial
