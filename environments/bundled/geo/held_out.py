"""Which countries are held out: everything about them and their cities is only asked in eval."""

from __future__ import annotations

from collections.abc import Mapping

from vf.environments.bundled.geo.facts import World
from vf.environments.environment import Split
from vf.runtime.seeding import derive_seed

_REGION = 12  # countries in one region that is held out as a whole
_SHARE = 4  # one country in four is held out


def split_by_country(world: World) -> Mapping[str, Split]:
    """Return the split of every country's code; the same whatever the seed of the questions.

    Whole regions are held out, grown breadth first from neighbour to neighbour, so that questions
    about neighbours can be asked on either side: those whose every neighbour is on that side.
    Countries without land borders are held out one by one.
    """
    ranked = sorted(world.countries, key=lambda code: derive_seed("geo-qa", "held out", code))
    inland = [code for code in ranked if world.countries[code].neighbours]
    islands = [code for code in ranked if not world.countries[code].neighbours]
    held_out: set[str] = set(islands[::_SHARE])
    room = len(inland) // _SHARE
    for code in inland:
        if code not in held_out and room:
            region = _region(world, code, held_out, min(_REGION, room))
            held_out.update(region)
            room -= len(region)
    return {code: "eval" if code in held_out else "train" for code in world.countries}


def _region(world: World, start: str, taken: set[str], size: int) -> list[str]:
    """Return up to ``size`` countries, breadth first from ``start``, none of them taken."""
    region = [start]
    for code in region:
        for neighbour in world.countries[code].neighbours:
            if len(region) < size and neighbour not in taken and neighbour not in region:
                region.append(neighbour)
    return region
