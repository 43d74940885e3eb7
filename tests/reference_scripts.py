"""Runs `examples/<row>_cartpole_reference.py`, from a folder that is not the repository, and checks the run it leaves."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from rl_training.experiment.checkpointing import Checkpoint, open_checkpoint

EXAMPLES = Path(__file__).parent.parent / "examples"


def run_script(row: str, folder: Path, steps: int) -> Checkpoint:
    """As users do, in an interpreter of its own. Metrics of training are among the records."""
    command = [sys.executable, *_command(row, folder, steps)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    checkpoint = _check(row, folder, steps, done.stdout)
    records = [json.loads(line) for line in (checkpoint.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["step"] == steps and any("eval/mean_reward" in record for record in records)
    assert any({"train/loss", "train/q_value_mean", "time/fps"} <= set(record) for record in records)
    return checkpoint


def run_example(row: str, folder: Path, steps: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Checkpoint:
    """In this process: starting Python and torch anew would take most of the time."""
    command = _command(row, folder, steps)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", command)
    runpy.run_path(command[0], run_name="__main__")
    return _check(row, folder, steps, capsys.readouterr().out)


def _command(row: str, folder: Path, steps: int) -> list[str]:
    script = EXAMPLES / f"{row}_cartpole_reference.py"
    options = {"--total-timesteps": str(steps), "--eval-episodes": "2", "--output-dir": str(folder / "out"), "--seed": "7"}
    return [str(script), *(part for option in options.items() for part in option)]


def _check(row: str, folder: Path, steps: int, printed: str) -> Checkpoint:
    (run,) = (folder / "out").iterdir()
    assert run.name.startswith(f"{row}__CartPole-v1__seed7__")
    assert "over 2 episodes" in printed and str(run) in printed
    assert [entry.name for entry in folder.iterdir()] == ["out"]
    checkpoint = open_checkpoint(run)
    assert checkpoint.step >= steps and checkpoint.config.algo == row
    return checkpoint
