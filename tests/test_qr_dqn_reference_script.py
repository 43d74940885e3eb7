"""The reference scripts of the distributional rows run as scripts and leave a run that can be evaluated."""

from __future__ import annotations

from pathlib import Path

import pytest

from reference_scripts import run_example, run_script
from rl_training.experiment.config import load_config
from rl_training.runtime.workflows import evaluate_checkpoint


def test_train_qr_dqn_writes_checkpoint_and_metrics(tmp_path: Path) -> None:
    checkpoint = run_script("qr_dqn", tmp_path, 1100)
    # A round of updates at every multiple of the frequency from the first step that learns on.
    settings = load_config("configs/qr_dqn/cartpole.yaml").settings
    rounds = 1100 // settings.train_frequency - (settings.learning_starts - 1) // settings.train_frequency
    assert checkpoint.step == 1100
    assert checkpoint.load_training()["run"]["updates"] == rounds * settings.gradient_steps > 0
    assert evaluate_checkpoint(checkpoint.path, num_episodes=2)["eval_episodes"] == 2


@pytest.mark.parametrize("row", ["c51_dqn", "iqn", "rainbow_dqn"])
def test_the_other_scripts_run(row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_example(row, tmp_path, 100, monkeypatch, capsys).step == 100
