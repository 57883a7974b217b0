"""Makes functions of the linear layers of a model's head: packed, compiled, or the same bits for any batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from decoding.model.decoder_weights import WeightPlace
from decoding.model.invariant_products import multiply_rows
from decoding.model.packed_products import multiply, pack_weight

Head = Callable[[Tensor], Tensor]
LinearFactory = Callable[[Tensor, Tensor | None], Head]
"""Makes a function of hidden states from a weight `[out, in]` and a bias."""


def make_linear_layer(weight: Tensor, bias: Tensor | None) -> Head:
    """Returns a linear layer in the layout that is fastest on this device."""
    packed = pack_weight(weight.t())
    return lambda hidden: multiply(hidden, packed, bias)


def compile_linear_layer(weight: Tensor, bias: Tensor | None, *, dtype: torch.dtype) -> Head:
    """Returns a linear layer as one compiled call, for hidden states of `dtype`."""
    # here: it needs Numba, which may be absent
    from decoding.model.compiled_decoder import CompiledHead

    return CompiledHead(weight, bias, dtype)


def make_invariant_layer(weight: Tensor, bias: Tensor | None) -> Head:
    """Returns a linear layer whose rows have the same bits in any batch, in float32."""
    return lambda hidden: multiply_rows(hidden, weight.t(), bias, in_float32=True)


def make_head(
    linear: Any | None,
    place: WeightPlace,
    tied: Tensor | None,
    make_linear: LinearFactory,
    outputs: Sequence[int] | None,
) -> Head:
    """Returns a linear layer as a function of hidden states; without a layer the identity.

    tied     the embedding, where it is the layer's weight too
    outputs  the outputs of the layer that are computed; None: all
    """
    if linear is None:
        return lambda hidden: hidden
    # the tensors alone: the layer's model would keep its unfused matrices in memory
    weight, bias = place.move(linear.weight) if tied is None else tied, place.move_or_none(linear.bias)
    if outputs is not None:
        rows = torch.tensor(outputs, device=weight.device)
        weight, bias = weight[rows], None if bias is None else bias[rows]
    return make_linear(weight, bias)


class _LinearModule(torch.nn.Module):
    """A linear layer of a head that runs as a function; its results have the type of the hidden states."""

    def __init__(self, linear: torch.nn.Linear, make_linear: LinearFactory) -> None:
        super().__init__()
        self._run = make_linear(linear.weight.detach(), None if linear.bias is None else linear.bias.detach())

    def forward(self, hidden: Tensor) -> Tensor:
        return self._run(hidden).to(hidden.dtype)


def replace_linears(head: Head, make_linear: LinearFactory, *, must: bool) -> Head:
    """Returns a head in which other functions run the linear layers. *Mutates* it.

    Heads and parts with weights whose products are not known stay as they are, unless they `must` be replaced. Raises:
    ValueError then.
    """
    if isinstance(head, torch.nn.Linear):
        return _LinearModule(head, make_linear)
    if not isinstance(head, torch.nn.Sequential):
        if not must:
            return head
        raise ValueError(
            f"numerics=invariant cannot run a head of the type {type(head).__name__}: its products are not known; set "
            "numerics=fast"
        )
    for index, layer in enumerate(head):
        if next(layer.parameters(), None) is not None:
            head[index] = cast(torch.nn.Module, replace_linears(layer, make_linear, must=must))
    return head
