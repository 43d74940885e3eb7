"""A command line to call inside a test: exit code, stdout, stderr. conftest.py makes the fixtures `here`, `cli` and `trained` of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

SMALL: dict[str, Any] = {
    "algo": "dqn",
    "env_id": "CartPole-v1",
    "seed": 1,
    "total_timesteps": 120,
    "output_dir": "runs",
    "eval_interval": 0,
    "eval_episodes": 2,
    "checkpoint_interval": 50,
    "algo_kwargs": {"learning_starts": 20, "batch_size": 8, "hidden_sizes": [8], "buffer_capacity": 200},
}


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


class Cli:
    """Runs a command in this process: starting Python and torch anew would take seconds."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Outcome:
        from rl_training.cli import main

        self._capsys.readouterr()
        code = main(arguments)
        return Outcome(code, *self._capsys.readouterr())

    def refused(self, *arguments: str, code: int = 2) -> str:
        """The one line on stderr of a command that fails."""
        before = set(Path().rglob("*"))
        outcome = self(*arguments)
        assert outcome.code == code, outcome
        lines = outcome.err.splitlines()
        assert len(lines) == 1, outcome.err
        if code == 2:
            assert set(Path().rglob("*")) == before  # nothing written
        return lines[0]
