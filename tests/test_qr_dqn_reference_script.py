"""The reference scripts of the distributional rows run as scripts, from any folder, and leave a run that can be evaluated."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from rl_training.experiment.checkpointing import Checkpoint, open_checkpoint
from rl_training.experiment.config import load_config
from rl_training.runtime.workflows import evaluate_checkpoint

EXAMPLES = Path(__file__).parent.parent / "examples"


def arguments(folder: Path, steps: int) -> list[str]:
    return ["--total-timesteps", str(steps), "--eval-episodes", "2", "--output-dir", str(folder / "out"), "--seed", "7"]


def check(row: str, folder: Path, steps: int, printed: str) -> Checkpoint:
    (run,) = (folder / "out").iterdir()
    assert run.name.startswith(f"{row}__CartPole-v1__seed7__")
    checkpoint = open_checkpoint(run)
    assert checkpoint.step == steps and checkpoint.config.algo == row
    assert "over 2 episodes" in printed and str(run) in printed
    return checkpoint


def test_the_qr_dqn_script_learns_and_reports(tmp_path: Path) -> None:
    script = EXAMPLES / "qr_dqn_cartpole_reference.py"
    done = subprocess.run(
        [sys.executable, str(script), *arguments(tmp_path, 1100)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    checkpoint = check("qr_dqn", tmp_path, 1100, done.stdout)
    # A round of updates at every multiple of the frequency from the first step that learns on.
    settings = load_config("configs/qr_dqn/cartpole.yaml").settings
    rounds = 1100 // settings.train_frequency - (settings.learning_starts - 1) // settings.train_frequency
    assert checkpoint.load_training()["run"]["updates"] == rounds * settings.gradient_steps > 0
    assert evaluate_checkpoint(checkpoint.path, num_episodes=2)["eval_episodes"] == 2


@pytest.mark.parametrize("row", ["c51_dqn", "iqn", "rainbow_dqn"])
def test_the_other_scripts_run(row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In this process: starting Python and torch anew would take most of the time."""
    script = str(EXAMPLES / f"{row}_cartpole_reference.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [script, *arguments(tmp_path, 100)])
    runpy.run_path(script, run_name="__main__")
    check(row, tmp_path, 100, capsys.readouterr().out)
