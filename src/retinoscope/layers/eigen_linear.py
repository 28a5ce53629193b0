"""Replacements for the two linear layers of an attention that compute its values and its output.

Dovonon et al., 2024, "Setting the Record Straight on Transformer Oversmoothing", arXiv:2401.04301.
Both share one :class:`EigenValues`, and neither has a bias for these outputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from retinoscope.layers.eigen_attention import EigenValues, Form, Sign


class EigenValueLinear(nn.Module):
    """A linear layer whose values come from :class:`EigenValues`; its other outputs are unchanged.

    Args:
        linear: The original layer; its remaining weights are copied.
        rows: Indices of the outputs that are values, in the order in which the output layer reads
            them; as many as there are inputs.
        sign: ``+`` for eigenvalues ≥ 0, ``-`` for eigenvalues ≤ 0.
        form: See :class:`EigenValues`.
    """

    order: Tensor

    def __init__(
        self, linear: nn.Linear, rows: Sequence[int], sign: Sign, form: Form = "symmetric"
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        if len(set(rows)) != len(rows) or len(rows) != self.in_features:
            raise ValueError(
                f"{self.in_features} inputs need as many values, all different; got {len(rows)} "
                f"rows, {len(set(rows))} of them different."
            )
        weight, bias = linear.weight, linear.bias
        kept = sorted(set(range(self.out_features)) - set(rows))
        self.kept_weight = _part(weight, kept)
        self.kept_bias = _part(bias, kept) if bias is not None else None
        self.values = EigenValues(self.in_features, sign, form, weight.device, weight.dtype)
        stacked = [*kept, *rows]
        order = sorted(range(self.out_features), key=stacked.__getitem__)
        self.register_buffer("order", torch.tensor(order, device=weight.device), persistent=False)
        self.in_order = order == list(range(self.out_features))

    @property
    def weight(self) -> Tensor:
        """All rows (outputs, inputs) in order, in the layout of ``nn.Linear``."""
        value, _ = self.values.weights()
        rows = value if self.kept_weight is None else torch.cat((self.kept_weight, value))
        return rows if self.in_order else rows[self.order]

    @property
    def bias(self) -> Tensor | None:
        """The bias of the remaining outputs; values have none."""
        if self.kept_bias is None:
            return None
        rows = F.pad(self.kept_bias, (0, self.in_features))
        return rows if self.in_order else rows[self.order]

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (…, outputs) for inputs (…, inputs)."""
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        """The settings, for printing."""
        return f"in_features={self.in_features}, out_features={self.out_features}"


class EigenOutputLinear(nn.Module):
    """The output layer (…, dim) → (…, dim) that belongs to an :class:`EigenValueLinear`.

    It only refers to ``values``; state dicts, optimisers and ``.to()`` find them in their owner.
    """

    def __init__(self, values: EigenValues) -> None:
        super().__init__()
        self._values = (values,)  # in a tuple, so that it is not registered here too

    @property
    def weight(self) -> Tensor:
        """(dim, dim), in the layout of ``nn.Linear``."""
        return self._values[0].weights()[1]

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (…, dim) for mixed values (…, dim)."""
        return F.linear(x, self.weight)


def _part(parameter: Tensor, rows: Sequence[int]) -> nn.Parameter | None:
    """Some rows of a parameter as a new parameter."""
    if not rows:
        return None
    taken = parameter.detach()[list(rows)].clone()
    return nn.Parameter(taken, requires_grad=parameter.requires_grad)
