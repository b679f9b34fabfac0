"""All figures and the table, in the paper's order."""

from __future__ import annotations

from . import depth, drusen, ensembles, heat_map, inference_budget, sentiment, single_model, students, tightness
from .figure import Figure

_ROOMS = (heat_map, single_model, ensembles, inference_budget, students, tightness, drusen, sentiment, depth)
FIGURES: dict[str, Figure] = {room.FIGURE.name: room.FIGURE for room in _ROOMS}
