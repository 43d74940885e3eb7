"""docs/performance.md: made from records, claiming nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import performance


def test_the_published_page_is_what_the_records_say() -> None:
    for path, text in performance.pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is not what the records say: make performance"


def result(case: str, **medians: float) -> dict[str, Any]:
    named = {name.replace("_", ", "): value for name, value in medians.items()}
    return {"case": case, "unit": "updates/s", "medians": named, "ratios": {"ours": 2.0, "ours, compiled": 5.0}}


def test_when_compiling_pays() -> None:
    # 10 s of compiling; 1/1000 − 1/5000 = 0.8 ms saved an update: 12,500 updates. Slower when compiled: never.
    record = {"compile_seconds": {"DQN": 10.0, "slow": 10.0}, "results": [result("DQN, batch 64", ours=1e3, ours_compiled=5e3)]}
    record["results"].append(result("slow", ours=1e3, ours_compiled=9e2))
    rows = performance.break_even(record)[2:]
    assert rows == ["| DQN, batch 64 | 10 | 1,000 | 5,000 | 12,500 updates |", "| slow | 10 | 1,000 | 900 | never |"]
    assert performance.break_even({"results": record["results"]}) == []  # nothing was compiled


def test_compiling_is_charged_to_the_case_that_was_compiled() -> None:
    # "DQN" stands in both other names, and the second begins the third
    costs = {"DQN": 1.0, "QR-DQN, 51": 2.0, "QR-DQN, 51, double": 3.0}
    record = {"compile_seconds": costs, "results": [result(f"{case}, batch 64", ours=1e3, ours_compiled=5e3) for case in costs]}
    assert [row.split(" | ")[1] for row in performance.break_even(record)[2:]] == ["1", "2", "3"]


def test_a_table_says_what_it_was_made_with() -> None:
    record = {"options": {"rounds": 5, "only": "(64, 64)", "json": "there", "threads": 1, "no_compile": False}}
    assert performance.command("throughput", record) == "`python -m benchmarks.throughput --rounds 5 --only '(64, 64)'`"


def test_threads_that_nobody_set_are_the_default() -> None:
    machine = {"time": "2026-01-02T", "cores": 2, "cpu": "X", "threads": 0, "python": "3.12", "versions": {"torch": "2"}}
    assert performance.where({"machine": machine}) == "2026-01-02, 2 × X, default torch threads; Python 3.12, torch 2."
    assert ", 1 torch thread;" in performance.where({"machine": {**machine, "threads": 1}})


def test_a_missing_record_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(performance, "RESULTS", tmp_path)
    page = performance.pages()[performance.PAGE]
    named = "throughput, minatar_cpu, learner, recurrent, replay, ablation, ablation_minatar, ablation_pqn, ablation_gpu, gpu, gpu_pixels"
    assert f"Not measured yet: {named}" in page
    machine = {"time": "2026-01-02T", "cores": 2, "cpu": "X", "threads": 1, "python": "3.12", "versions": {"torch": "2"}}
    (tmp_path / "learner.json").write_text(
        json.dumps({"about": "On a Sunday.", "machine": machine, "results": [result("DQN", ours=10, peer=5)]})
    )
    page = performance.pages()[performance.PAGE]
    assert "\n\nOn a Sunday.\n\n| case " in page
    assert "| DQN (updates/s) | 10 | 5 | 2.0×, 5.0× (compiled) |" in page
    assert "Not measured yet: throughput, minatar_cpu, recurrent" in page


def test_a_chart_has_a_point_for_every_measurement() -> None:
    svg = performance.chart([(1, 10), (10, 100), (100, 1000)], x="environments", y="steps/s")
    assert svg.count("<circle") == 3
    assert svg.startswith("<svg") and "steps/s" in svg
