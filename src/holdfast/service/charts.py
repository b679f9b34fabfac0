"""Charts as inline SVG, drawn on the server; each page shows the same numbers in a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta

from markupsafe import Markup

_WIDTH, _HEIGHT = 640, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 44, 14, 40
_COLOURS, _WIDEST_BAR = 6, 60
_DAYS_OF_FORECAST = 7


def gauge(share: float) -> Markup:
    """Return a bar that shows which part of the budget is spent."""
    width = max(0.0, min(1.0, share)) * 596
    level = "high" if share >= 0.9 else "middle" if share >= 0.6 else "low"
    return Markup(
        '<svg class="gauge" viewBox="0 0 600 26" role="img" aria-label="{text} of the budget is '
        'spent" preserveAspectRatio="none">'
        '<rect class="track" x="0" y="0" width="600" height="26" rx="6"/>'
        '<rect class="spent {level}" x="2" y="2" width="{width:.1f}" height="22" rx="5"/></svg>'
    ).format(text=f"{share:.1%}", level=level, width=width)


def forecast(by_day: Mapping[str, float], remaining: float, today: date | None = None) -> str:
    """Return until when the budget lasts at the pace of the last week."""
    now = datetime.now(UTC).date() if today is None else today
    first = (now - timedelta(days=_DAYS_OF_FORECAST - 1)).isoformat()
    recent = sum(loss for day, loss in by_day.items() if day >= first)
    if remaining <= 0.0:
        return "Nothing is left for new answers."
    if recent <= 0.0:
        return "No new answers in the last seven days, so there is no forecast."
    days = remaining / (recent / _DAYS_OF_FORECAST)
    if days > 3650:
        return "At the pace of the last seven days, the budget lasts for more than ten years."
    ends = now + timedelta(days=math.floor(days))
    return (
        f"At the pace of the last seven days, the budget lasts for about {max(1, round(days)):,} "
        f"more days, until {ends:%d %B %Y}."
    )


def spending(days: Sequence[str], by_analyst: Mapping[str, Sequence[float]]) -> Markup:
    """Return stacked bars: what each analyst spent on each day."""
    highest = (
        max((sum(each) for each in zip(*by_analyst.values(), strict=True)), default=0.0) or 1.0
    )
    step = min(_WIDEST_BAR, (_WIDTH - _LEFT - _RIGHT) / max(1, len(days)))
    bars = []
    for place, day in enumerate(days):
        base = 0.0
        for number, (analyst, spent) in enumerate(by_analyst.items()):
            if not spent[place]:
                continue
            top = base + spent[place]
            bars.append(
                Markup(
                    '<rect class="series{number}" x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" '
                    'height="{h:.1f}"><title>{analyst}, {day}: {value}</title></rect>'
                ).format(
                    number=number % _COLOURS,
                    x=_LEFT + (place + 0.1) * step,
                    y=_y(top / highest),
                    w=0.8 * step,
                    h=_y(base / highest) - _y(top / highest),
                    analyst=analyst,
                    day=day,
                    value=f"{spent[place]:.4g}",
                )
            )
            base = top
    labels = [(_LEFT + (place + 0.5) * step, day[5:]) for place, day in enumerate(days)]
    every = max(1, math.ceil(len(labels) / 10))
    return _framed("What was spent on each day", bars, labels[::every], highest)


def curve(
    points: Sequence[tuple[int, float]], marked: tuple[int, float] | None, floor: float
) -> Markup:
    """Return expected accuracy against the number of answers, on a logarithmic scale."""
    low, high = math.log10(points[0][0]), math.log10(points[-1][0])

    def x(count: float) -> float:
        place = (math.log10(count) - low) / ((high - low) or 1.0)
        return _LEFT + min(1.0, max(0.0, place)) * (_WIDTH - _LEFT - _RIGHT)

    line = " ".join(f"{x(count):.1f},{_y(accuracy):.1f}" for count, accuracy in points)
    parts = [
        Markup('<line class="floor" x1="{l}" x2="{r}" y1="{y:.1f}" y2="{y:.1f}"/>').format(
            l=_LEFT, r=_WIDTH - _RIGHT, y=_y(floor)
        ),
        Markup('<polyline class="curve" points="{line}"/>').format(line=line),
    ]
    if marked is not None:
        parts.append(
            Markup(
                '<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="6"><title>{text}</title>'
                "</circle>"
            ).format(
                x=x(marked[0]), y=_y(marked[1]), text=f"{marked[0]:,} answers: {marked[1]:.1%}"
            )
        )
    decades = range(math.ceil(low), math.floor(high) + 1)
    labels = [(x(10**decade), f"{10**decade:,}") for decade in decades]
    return _framed("Expected accuracy by number of answers", parts, labels, 1.0)


def _y(part: float) -> float:
    return _HEIGHT - _BOTTOM - part * (_HEIGHT - _TOP - _BOTTOM)


def _framed(
    title: str, parts: Sequence[Markup], labels: Sequence[tuple[float, str]], highest: float
) -> Markup:
    """Return the parts with axes: five lines across, and labels below."""
    lines = [
        Markup(
            '<line class="grid" x1="{l}" x2="{r}" y1="{y:.1f}" y2="{y:.1f}"/>'
            '<text class="tick end" x="{t}" y="{ty:.1f}">{value}</text>'
        ).format(
            l=_LEFT,
            r=_WIDTH - _RIGHT,
            y=_y(part),
            t=_LEFT - 6,
            ty=_y(part) + 4,
            value=f"{highest * part:.2g}",
        )
        for part in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    below = [
        Markup('<text class="tick middle" x="{x:.1f}" y="{y}">{text}</text>').format(
            x=place, y=_HEIGHT - 12, text=text
        )
        for place, text in labels
    ]
    return Markup(
        '<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{title}">{parts}'
        "</svg>"
    ).format(
        width=_WIDTH, height=_HEIGHT, title=title, parts=Markup("").join([*lines, *parts, *below])
    )
