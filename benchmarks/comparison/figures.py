"""Figures, and whether the machine was calm while they were taken."""

from __future__ import annotations

import statistics


class Disturbed(float):
    """A figure that has not one calm window behind it: it counts only where there is no better."""


def ratio(above: float | None, below: float | None) -> float | None:
    """Disturbed if one of the two is; None if one is missing."""
    if not above or not below:
        return None
    return as_calm_as(above / below, above, below)


def as_calm_as(value: float, *sources: float) -> float:
    """`value` as a Disturbed if one of the figures that it came from is."""
    return Disturbed(value) if any(isinstance(source, Disturbed) for source in sources) else value


def spread(values: list) -> dict:
    """Median, least and most."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def summary(values: list) -> dict:
    """Median, min and max of the calm figures, of all where none is ("disturbed"), and what they are of."""
    calm = [value for value in values if not isinstance(value, Disturbed)]
    used = calm or values
    return {**spread(used), "values": list(used), "disturbed": not calm}
