"""Which block graphs run for which sublayers. Pure: units may overlap, and the fewest that fit are taken."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from ..models.manifest import Manifest, Unit
from ..models.sublayers import layer_sublayers


class NoRouteError(ValueError):
    """No units make up the sublayers; ``sublayer`` is the first that none of the ways to begin gets past."""

    def __init__(self, sublayer: int) -> None:
        super().__init__(f"sublayer {sublayer} cannot run alone")
        self.sublayer = sublayer


def fewest_units(units: Iterable[Unit], wanted: Sequence[int]) -> tuple[Unit, ...]:
    """Disjoint units, ascending, that together are exactly the sublayers ``wanted``, and as few as can be.

    Raises:
        NoRouteError: there are none.
    """
    order = sorted(set(wanted))
    starting = defaultdict[int, list[Unit]](list)
    for unit in units:
        starting[unit.start].append(unit)
    ways: dict[int, tuple[int, Unit | None]] = {0: (0, None)}  # sublayers covered → (units that takes, the last one)
    for covered, sublayer in enumerate(order):
        if covered not in ways:
            continue
        for unit in starting[sublayer]:
            end = covered + len(unit.sublayers)
            fits = end <= len(order) and order[end - 1] == unit.stop - 1
            if fits and (end not in ways or ways[covered][0] + 1 < ways[end][0]):
                ways[end] = (ways[covered][0] + 1, unit)
    if len(order) not in ways:
        raise NoRouteError(order[max(ways)])
    route, covered = list[Unit](), len(order)
    while (last := ways[covered][1]) is not None:
        route.append(last)
        covered -= len(last.sublayers)
    return tuple(reversed(route))


def usual_units(manifest: Manifest) -> tuple[Unit, ...]:
    """Units of the full pass, and of drafts that leave at an exit layer and are verified from there; each once."""
    layers = manifest.model.num_layers
    spans = [(0, layers), *((0, k) for k in manifest.exit_layers), *((k, layers) for k in manifest.exit_layers)]
    routes = (fewest_units(manifest.units, layer_sublayers(start, stop)) for start, stop in spans)
    return tuple(dict.fromkeys(unit for route in routes for unit in route))
