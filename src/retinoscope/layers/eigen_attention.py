"""Attention whose value and output maps are parametrised by the eigenvalues of their product.

Dovonon et al., 2024, "Setting the Record Straight on Transformer Oversmoothing", arXiv:2401.04301.
Whether a layer X + A X W_V W_proj smooths or sharpens depends on the eigenvalues of H = W_V W_proj.
Here H = V Λ Vᵀ, with V the orthogonal factor of a matrix Θ and Λ = ±diag(ψ²): for any parameters,
the eigenvalues are all ≥ 0 (ViT⁺) or all ≤ 0 (ViT⁻).
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Sign = Literal["+", "-"]
Form = Literal["symmetric", "authors"]


class EigenValues(nn.Module):
    """Value and projection weights (dim, dim) whose product H has eigenvalues of one sign.

    With multiplication from the right, and heads along the shared axis, the two forms are

    ============= ============= ================= =================== ============================
    form          values        output            H of a single head  H of head h (its channels P)
    ============= ============= ================= =================== ============================
    ``symmetric`` ``v = x V``   ``out = y Λ Vᵀ``  V Λ Vᵀ              V P Λ Vᵀ
    ``authors``   ``v = x Vᵀ``  ``out = y V Λ``   Λ: V cancels        Vᵀ P V Λ, not symmetric
    ============= ============= ================= =================== ============================

    The second form is that of the authors' code. Its eigenvalues are real and of one sign too.
    Nothing bounds ψ, so eigenvalues may leave [−1, 1] in training.

    V is computed at least in float32, and its gradient needs a Θ of full rank, as a random Θ has.

    Args:
        dim: Width d of the tokens; d² + d parameters.
        sign: ``+`` for eigenvalues ≥ 0, ``-`` for eigenvalues ≤ 0.
        form: See above.
        device: Device of the parameters.
        dtype: Type of the parameters, and of the weights.
    """

    def __init__(
        self,
        dim: int,
        sign: Sign,
        form: Form = "symmetric",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if sign not in get_args(Sign):
            raise ValueError(f"sign must be '+' (eigenvalues ≥ 0) or '-' (≤ 0); got {sign!r}.")
        if form not in get_args(Form):
            raise ValueError(f"form is one of {get_args(Form)}; got {form!r}.")
        self.dim, self.sign, self.form = dim, sign, form
        self.theta = nn.Parameter(torch.empty(dim, dim, device=device, dtype=dtype))
        self.psi = nn.Parameter(torch.empty(dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise Θ like the weight of a linear layer in torch, and ψ between 0 and ±1."""
        nn.init.kaiming_uniform_(self.theta, a=math.sqrt(5))
        nn.init.uniform_(self.psi, *((0.0, 1.0) if self.sign == "+" else (-1.0, 0.0)))

    def vectors(self) -> Tensor:
        """The orthogonal V (dim, dim), at least in float32."""
        theta = self.theta.to(_wide(self.theta.dtype))
        # V does not depend on the scale of Θ; with Θ normalised, squares inside the QR cannot
        # overflow.
        scale = theta.detach().abs().amax().clamp_min(torch.finfo(theta.dtype).tiny)
        return torch.linalg.qr(theta / scale).Q

    def eigenvalues(self) -> Tensor:
        """The diagonal of Λ (dim,): ±ψ², at least in float32."""
        squares = self.psi.to(_wide(self.psi.dtype)).square()
        return squares if self.sign == "+" else -squares

    def weights(self) -> tuple[Tensor, Tensor]:
        """The weights of the value and output maps, each (dim, dim) as in ``nn.Linear``."""
        value, output = self._maps()
        return value.mT.to(self.theta.dtype), output.mT.to(self.theta.dtype)

    def matrix(self) -> Tensor:
        """H (dim, dim) of a single head, for multiplication from the right, at least in float32."""
        if self.form == "authors":
            return torch.diag(self.eigenvalues())
        vectors = self.vectors()
        product = (vectors * self.eigenvalues()) @ vectors.mT
        return (product + product.mT) / 2  # symmetric to the last bit

    def head_matrices(self, heads: int) -> Tensor:
        """H of each of ``heads`` heads (heads, dim, dim); they sum to :meth:`matrix`."""
        _check_heads(self.dim, heads)
        value, output = self._maps()
        per_head = value.reshape(self.dim, heads, -1).transpose(0, 1)
        return per_head @ output.reshape(heads, -1, self.dim)

    def extra_repr(self) -> str:
        """The settings, for printing."""
        return f"{self.dim}, sign={self.sign!r}, form={self.form!r}"

    def _maps(self) -> tuple[Tensor, Tensor]:
        """The matrices that values and output are multiplied by from the right."""
        vectors, eigenvalues = self.vectors(), self.eigenvalues()
        if self.form == "authors":
            return vectors.mT, vectors * eigenvalues
        return vectors, (vectors * eigenvalues).mT


class EigenAttention(nn.Module):
    """Multi-head attention on tokens (N, L, dim) with :class:`EigenValues`; 3·dim² + dim weights.

    A replacement for timm's ``Attention`` with the same call signature. There is no bias.

    Args:
        dim: Width of the tokens.
        num_heads: Number of heads; must divide ``dim``.
        sign: ``+`` for eigenvalues ≥ 0, ``-`` for eigenvalues ≤ 0.
        form: See :class:`EigenValues`.
        attn_drop: Dropout of the attention weights.
        proj_drop: Dropout after the output.
        device: Device of the weights.
        dtype: Type of the weights.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        sign: Sign,
        form: Form = "symmetric",
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        _check_heads(dim, num_heads)
        self.num_heads, self.head_dim = num_heads, dim // num_heads
        self.qk = nn.Linear(dim, 2 * dim, bias=False, device=device, dtype=dtype)
        self.values = EigenValues(dim, sign, form, device, dtype)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """The branch's tokens (N, L, dim).

        Args:
            x: Tokens (N, L, dim).
            attn_mask: Added to the logits, or, if boolean, true where a query may see a key; (L, L)
                or broadcastable to it.
            is_causal: Whether each token sees only itself and the tokens before it.
        """
        batch, length, dim = x.shape
        heads = (self.num_heads, self.head_dim)
        value_weight, output_weight = self.values.weights()
        query, key = self.qk(x).reshape(batch, length, 2, *heads).permute(2, 0, 3, 1, 4).unbind(0)
        value = F.linear(x, value_weight).reshape(batch, length, *heads).transpose(1, 2)
        dropout = self.attn_drop.p if self.training else 0.0
        mixed = F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout, is_causal=is_causal
        )
        mixed = mixed.transpose(1, 2).reshape(batch, length, dim)
        return self.proj_drop(F.linear(mixed, output_weight))


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _check_heads(dim: int, heads: int) -> None:
    if heads < 1 or dim % heads:
        raise ValueError(f"A width of {dim} cannot be divided equally among {heads} heads.")
