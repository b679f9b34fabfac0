"""The report: one HTML page with all figures, claims and settings, in the paper's order."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import (
    best_way,
    depth,
    drusen,
    ensembles,
    head_defaults,
    heat_map,
    inference_budget,
    linear_heads,
    patients,
    release,
    sentiment,
    single_model,
    students,
    tightness,
)
from .figure import Figure

_VERDICTS = {True: ("yes", "true here"), False: ("no", "not true here"), None: ("none", "not run")}
_TEMPLATE = "report.html.j2"


def build(kept: Mapping[str, Mapping[str, Any]], out: Path, command: str) -> Path:
    """Write report.html from the figures' saved results and pictures."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(__package__, "."), autoescape=True, undefined=StrictUndefined
    )
    first = next(iter(kept.values()))
    page = environment.get_template(_TEMPLATE).render(
        quick=first["quick"],
        command=command,
        minutes=sum(figure["seconds"] for figure in kept.values()) / 60,
        machine=_machine_text(first["machine"]),
        figures=[_section(name, figure, out) for name, figure in kept.items()],
    )
    path = out / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def _section(name: str, figure: Mapping[str, Any], out: Path) -> dict[str, Any]:
    claims = []
    for claim in figure["claims"]:
        kind, verdict = _VERDICTS[claim["holds"]]
        claims.append({**claim, "kind": kind, "verdict": verdict})
    return {
        "name": name,
        "title": figure["title"],
        "differs": figure["differs"],
        "seconds": figure["seconds"],
        "claims": claims,
        "picture": base64.b64encode((out / f"{name}.png").read_bytes()).decode(),
        "results": _results_text(figure["results"]),
    }


def _results_text(results: Any) -> str:
    """Return the results as JSON text, without the heat map's pixels."""
    kept = json.loads(json.dumps(results))
    for panel in kept.get("panels", {}).values():
        for pixels in ("labels", "distances"):
            if isinstance(panel, dict) and isinstance(panel.get(pixels), list):
                panel[pixels] = f"{len(panel[pixels])} rows, in the JSON file"
    return json.dumps(kept, indent=1)


def _machine_text(machine: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in machine.items())


_MODULES = (
    heat_map,
    single_model,
    ensembles,
    inference_budget,
    students,
    tightness,
    drusen,
    sentiment,
    depth,
    linear_heads,
    head_defaults,
    release,
    best_way,
    patients,
)
FIGURES: dict[str, Figure] = {module.FIGURE.name: module.FIGURE for module in _MODULES}
