"""The reference scripts of the scalar rows run as scripts and leave a run that can be evaluated."""

from __future__ import annotations

from pathlib import Path

import pytest

from reference_scripts import run_example, run_script


def test_train_prioritized_dqn_writes_checkpoint_and_metrics(tmp_path: Path) -> None:
    checkpoint = run_script("prioritized_dqn", tmp_path, 1100)
    assert checkpoint.step == 1100 and checkpoint.load_training()["run"]["updates"] > 0


@pytest.mark.parametrize("row", ["dqn", "double_dqn", "dueling_dqn", "noisy_dqn", "n_step_dqn"])
def test_the_other_scripts_run(row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_example(row, tmp_path, 100, monkeypatch, capsys).step == 100
