"""How the stack's sublayers are numbered: 2i is the attention of layer i, 2i+1 its MLP. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable


def first_sublayer(layer: int) -> int:
    """Number of a layer's attention, its first sublayer."""
    return 2 * layer


def layer_sublayers(start: int, stop: int) -> range:
    """The sublayers of whole layers ``start`` to ``stop - 1``."""
    return range(first_sublayer(start), first_sublayer(stop))


def split_sublayer(index: int) -> tuple[int, bool]:
    """(layer, whether it is the layer's MLP) of a sublayer."""
    layer, is_mlp = divmod(index, 2)
    return layer, bool(is_mlp)


def attention_layers(sublayers: Iterable[int]) -> tuple[int, ...]:
    """Layers whose attention is among ``sublayers``."""
    return tuple(layer for layer, is_mlp in map(split_sublayer, sublayers) if not is_mlp)


def mlp_layers(sublayers: Iterable[int]) -> tuple[int, ...]:
    """Layers whose MLP is among ``sublayers``."""
    return tuple(layer for layer, is_mlp in map(split_sublayer, sublayers) if is_mlp)
