"""The DRQN reference script runs as a script and leaves a run that can be evaluated."""

from __future__ import annotations

from pathlib import Path

import pytest

from reference_scripts import run_example


def test_the_script_learns_and_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = run_example("drqn", tmp_path, 1_080, monkeypatch, capsys)
    assert checkpoint.step == 1_080 and checkpoint.config.algo == "drqn"
    assert checkpoint.load_training()["run"]["updates"] == 21  # multiples of 4 from learning_starts 1,000 to 1,080
