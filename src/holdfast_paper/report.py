"""The report: one HTML page with all figures, claims and settings, in the paper's order."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from . import (
    depth,
    drusen,
    ensembles,
    heat_map,
    inference_budget,
    sentiment,
    single_model,
    students,
    tightness,
)
from .figure import Figure

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; }
body { max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
img { max-width: 100%; border: 1px solid #ddd; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
td, th { border: 1px solid #ddd; padding: .3rem .5rem; text-align: left; vertical-align: top; }
.yes { color: #06652f; } .no { color: #a11; } .none { color: #777; }
pre { background: #f6f6f6; padding: .7rem; overflow-x: auto; font-size: .8rem; }
nav a { margin-right: 1rem; } .warn { background: #fff3cd; padding: .5rem; }
"""
_VERDICTS = {True: ("yes", "true here"), False: ("no", "not true here"), None: ("none", "not run")}


def build(kept: Mapping[str, Mapping[str, Any]], out: Path, command: str) -> Path:
    """Write report.html from the figures' saved results and pictures."""
    first = next(iter(kept.values()))
    parts = [
        (
            "<!doctype html><html lang='en'><meta charset='utf-8'><title>holdfast: the paper "
            f"reproduced</title><style>{_STYLE}</style>"
        ),
        "<h1>holdfast: the paper reproduced</h1>",
        (
            "<p class='warn'>A quick run on small parts of the data: do not report its numbers.</p>"
            if first["quick"]
            else ""
        ),
        f"<p>Made by <code>{escape(command)}</code>, "
        f"{sum(figure['seconds'] for figure in kept.values()) / 60:.0f} minutes "
        "for what was not in the cache. "
        f"Machine: {escape(_machine_text(first['machine']))}. "
        "Accuracies are computed from private records: they are for the owner, not private.</p>",
        "<nav>" + " ".join(f"<a href='#{name}'>{escape(name)}</a>" for name in kept) + "</nav>",
        "<h2 id='claims'>The paper's claims, one by one</h2>" + _claims(kept),
    ]
    parts += [_section(name, figure, out) for name, figure in kept.items()]
    path = out / "report.html"
    path.write_text("\n".join(parts) + "</html>\n", encoding="utf-8")
    return path


def _claims(kept: Mapping[str, Mapping[str, Any]]) -> str:
    rows = []
    for name, figure in kept.items():
        for claim in figure["claims"]:
            kind, verdict = _VERDICTS[claim["holds"]]
            rows.append(
                f"<tr><td><a href='#{name}'>{escape(name)}</a></td>"
                f"<td>{escape(claim['claim'])}</td>"
                f"<td class='{kind}'>{verdict}</td><td>{escape(claim['found'])}</td></tr>"
            )
    return (
        "<table><tr><th>figure</th><th>claim</th><th>verdict</th><th>found</th></tr>"
        + "".join(rows)
        + "</table>"
    )


def _section(name: str, figure: Mapping[str, Any], out: Path) -> str:
    picture = base64.b64encode((out / f"{name}.png").read_bytes()).decode()
    return (
        f"<h2 id='{name}'>{escape(figure['title'])}</h2>"
        f"<img alt='{escape(figure['title'])}' src='data:image/png;base64,{picture}'>"
        f"<p><b>Differs from the paper:</b> {escape(figure['differs'])} "
        f"({figure['seconds']:.0f} s)</p>"
        f"<details><summary>Settings and numbers ({name}.json)</summary>"
        f"<pre>{escape(_results_text(figure['results']))}</pre></details>"
    )


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
)
FIGURES: dict[str, Figure] = {room.FIGURE.name: room.FIGURE for room in _MODULES}
