"""Our training curves beside published ones, as an SVG of small panels: each a row of ours, with its mean, lowest and highest run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import NamedTuple

from rl_training.ledger.beside import Line
from rl_training.ledger.costs import count
from rl_training.ledger.references import Curve
from rl_training.ledger.text import number

PANEL_WIDTH, PANEL_HEIGHT, COLUMNS = 230, 170, 4
LEFT, RIGHT, TOP, BOTTOM = 38, 12, 24, 22  # of a panel, around its axes
LEGEND_HEIGHT = 24
OURS, THEIRS = "#3f78c4", "#c4713f"


class Spread(NamedTuple):
    """Several runs at one step."""

    step: float
    low: float
    mean: float
    high: float


def spread(runs: Sequence[Curve], until: float) -> list[Spread]:
    """At every step that all runs have, up to `until`."""
    found = [dict(run) for run in runs]
    steps = [step for step in sorted(found[0]) if step <= until and all(step in run for run in found)] if found else []
    values = [(step, [run[step] for run in found]) for step in steps]
    return [Spread(step, min(each), sum(each) / len(each), max(each)) for step, each in values]


def curves_beside(lines: Sequence[Line]) -> str | None:
    """The picture of those lines that have training curves on both sides; None if there is none."""
    lines = [line for line in lines if line.ours and line.published.reference.measure == "training"]
    if not lines:
        return None
    panels = [_panel(line) for line in lines]
    columns, rows = min(COLUMNS, len(panels)), math.ceil(len(panels) / COLUMNS)
    width, height = columns * PANEL_WIDTH, LEGEND_HEIGHT + rows * PANEL_HEIGHT
    titles = ", ".join(dict.fromkeys(line.published.reference.title for line in lines))
    parts = [
        *_key(LEFT, OURS, "ours", dashed=False),
        *_key(LEFT + 70, THEIRS, f"{titles}; bands from the lowest to the highest run", dashed=True),
        *(
            f'<g transform="translate({index % columns * PANEL_WIDTH} {LEGEND_HEIGHT + index // columns * PANEL_HEIGHT})">\n{panel}\n</g>'
            for index, panel in enumerate(panels)
        ),
    ]
    return picture(width, height, parts)


def picture(width: int, height: int, parts: Iterable[str]) -> str:
    """The parts as an SVG file. Text is grey and the ground is left free, so that it shows on light and dark pages alike."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
    return "\n".join([head + 'font-family="sans-serif" font-size="11" fill="#777">', *parts, "</svg>"]) + "\n"


def words(x: float, y: float, said: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(said)}</text>'


def _key(x: float, colour: str, said: str, *, dashed: bool) -> Iterator[str]:
    yield f'<line x1="{x}" x2="{x + 24}" y1="12" y2="12" stroke="{colour}" stroke-width="2"{_dashes(dashed)}/>'
    yield words(x + 30, 16, said, "start")


def _panel(line: Line) -> str:
    ours = spread([tuple((step, value) for step, value, _ in record.training) for record in line.records], line.step)
    theirs = spread(line.published.reference.runs(line.env_id, line.published.row), line.step)
    seen = [value for point in (*ours, *theirs) for value in (point.low, point.high)]
    tick = _nice(max(seen) - min(seen))
    low, high = math.floor(min(seen) / tick) * tick, math.ceil(max(seen) / tick) * tick
    high = max(high, low + tick)

    def at(step: float, value: float) -> str:
        x = LEFT + step / line.step * (PANEL_WIDTH - LEFT - RIGHT)
        y = PANEL_HEIGHT - BOTTOM - (value - low) / (high - low) * (PANEL_HEIGHT - TOP - BOTTOM)
        return f"{x:.1f},{y:.1f}"

    def grid(value: float) -> Iterator[str]:
        y = float(at(0, value).split(",")[1])
        yield f'<line x1="{LEFT}" x2="{PANEL_WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#8884"/>'
        yield words(LEFT - 5, y + 4, number(value), "end")

    def drawn(points: Sequence[Spread], colour: str, *, dashed: bool) -> Iterator[str]:
        around = [at(point.step, point.high) for point in points] + [at(point.step, point.low) for point in reversed(points)]
        yield f'<polygon points="{" ".join(around)}" fill="{colour}" fill-opacity="0.18"/>'
        mean = " ".join(at(point.step, point.mean) for point in points)
        yield f'<polyline points="{mean}" fill="none" stroke="{colour}" stroke-width="2"{_dashes(dashed)}/>'

    parts = [
        words(LEFT, 14, line.label.replace("`", ""), "start"),
        *(part for value in range(round((high - low) / tick) + 1) for part in grid(low + value * tick)),
        words(LEFT, PANEL_HEIGHT - 6, "0", "middle"),
        words(PANEL_WIDTH - RIGHT, PANEL_HEIGHT - 6, f"{count(line.step)} steps", "end"),
        *drawn(theirs, THEIRS, dashed=True),
        *drawn(ours, OURS, dashed=False),
    ]
    return "\n".join(parts)


def _nice(extent: float) -> float:
    """The distance of grid lines: 1, 2 or 5 times a power of ten, of which three to seven fit in."""
    power = 10.0 ** math.floor(math.log10(max(extent, 1e-9) / 3))
    return next(step * power for step in (5, 2, 1) if step * power <= max(extent, 1e-9) / 3 or step == 1)


def _dashes(dashed: bool) -> str:
    return ' stroke-dasharray="5 4"' if dashed else ""
