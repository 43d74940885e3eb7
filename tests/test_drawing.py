"""Our training curves beside published ones: what stands in the picture is what the records say, at the place where it should be."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pytest

import ledger_runs
from rl_training.ledger.beside import Line
from rl_training.ledger.drawing import BOTTOM, LEFT, OURS, PANEL_HEIGHT, PANEL_WIDTH, RIGHT, THEIRS, TOP, Spread, curves_beside, spread
from rl_training.ledger.records import Record
from rl_training.ledger.references import Published

PONG = Published(source="dopamine_atari", row="QR-DQN CNN")


def line(*curves: list[list[float]], published: Published = PONG, **more: Any) -> Line:
    raws = [ledger_runs.record(f"qr_dqn__atari_pong__seed{seed}", "qr_dqn", "ALE/Pong-v5") for seed, _ in enumerate(curves, 1)]
    for raw, curve in zip(raws, curves, strict=True):
        raw["config"]["total_timesteps"] = 1_000_000
        raw["training"] = curve
    records = tuple(Record.from_json(raw, source="here") for raw in raws)
    return Line(
        **{"label": "`qr_dqn` <3-step>", "env_id": "ALE/Pong-v5", "steps": 1_000_000, "records": records, "published": published, **more}
    )


def curve(*values: float) -> list[list[float]]:
    return [[250_000 * (place + 1), value, 10] for place, value in enumerate(values)]


def drawn(svg: str, colour: str, shape: str) -> list[list[tuple[float, float]]]:
    """The corners of each shape of that colour."""
    found = [element.attrib for element in ElementTree.fromstring(svg).iter() if element.tag.endswith(shape)]
    points = [each["points"] for each in found if colour in (each.get("stroke"), each.get("fill"))]
    return [[tuple(map(float, point.split(","))) for point in each.split()] for each in points]  # type: ignore[misc]


def test_a_spread_is_of_the_steps_that_all_runs_have() -> None:
    runs = [((1, 4.0), (2, 8.0), (3, 9.0)), ((1, 2.0), (2, 1.0))]
    assert spread(runs, 9) == [Spread(1, 2.0, 3.0, 4.0), Spread(2, 1.0, 4.5, 8.0)]
    assert spread(runs, 1) == [Spread(1, 2.0, 3.0, 4.0)] and spread([], 9) == []


def test_curves_stand_where_their_numbers_are() -> None:
    svg = curves_beside([line(curve(-20, -18, -16, -14), curve(-20, -16, -8, -4))])
    assert svg is not None
    ((*_, last),) = drawn(svg, OURS, "polyline")
    # Dopamine's runs end between 4.9 and 10.2, so the axis reaches from -20 to 20 in tens; the mean of -14 and -4 is -9.
    width, height = PANEL_WIDTH - LEFT - RIGHT, PANEL_HEIGHT - TOP - BOTTOM
    assert last == pytest.approx((LEFT + width, TOP + height * (20 + 9) / 40), abs=0.06)
    ((*_, theirs),) = drawn(svg, THEIRS, "polyline")
    assert theirs[1] == pytest.approx(TOP + height * (20 - 7.362) / 40, abs=0.06)
    (band,) = drawn(svg, OURS, "polygon")
    assert len(band) == 8 and [y for x, y in band if x == last[0]] == pytest.approx(
        [TOP + height * (20 + 4) / 40, TOP + height * (20 + 14) / 40], abs=0.06
    )


def test_a_panel_is_of_what_was_measured_and_can_be_compared() -> None:
    unmeasured = line()
    evaluated = line(curve(1.0), published=Published(source="btr", row="BTR"), steps=5_000_000)
    assert curves_beside([]) is None and curves_beside([unmeasured, evaluated]) is None
    svg = curves_beside([unmeasured, evaluated, *[line(curve(-20, -20, -20, -20))] * 5])
    assert svg is not None and svg.count("<g ") == 5 and "BTR" not in svg and "Dopamine" in svg
    assert re.findall(r"translate\((\d+) (\d+)\)", svg)[3:] == [("690", "24"), ("0", "194")]  # four beside each other, the fifth below
    assert "qr_dqn &lt;3-step&gt;" in svg  # a label is text, whatever it holds
