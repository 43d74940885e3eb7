"""`train --seeds`: one run for each seed, in turn or side by side."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from command_line import SMALL, Cli
from rl_training.errors import UserError
from rl_training.experiment.checkpointing import open_checkpoint
from rl_training.runtime.seeds import parse_seeds


@pytest.mark.parametrize(("text", "seeds"), [("1,2,3", [1, 2, 3]), ("1-3", [1, 2, 3]), ("7", [7]), ("5, 0-2", [5, 0, 1, 2]), ("4-4", [4])])
def test_lists_of_seeds(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", ",", "1,", "a", "-1", "1-", "2-1", "1.5", "1,1", "1-3,2", "0-1000", "²"])
def test_what_is_no_list_of_seeds(text: str) -> None:
    with pytest.raises(UserError, match=r"^--seeds "):
        parse_seeds(text)


def test_in_turn_and_side_by_side_train_the_same(cli: Cli, here: Path) -> None:
    in_turn = cli("train", "--config", "small.yaml", "--seeds", "3,1", "--output-dir", "turn", "--run-suffix", "a b")
    assert in_turn.code == 0, in_turn.err
    assert "(standard deviation) over 2 seeds" in in_turn.out
    beside = cli("train", "--config", "small.yaml", "--seeds", "3,1", "--jobs", "2", "--output-dir", "beside", "--run-suffix", "a b")
    assert beside.code == 0, beside.err
    assert in_turn.out.splitlines()[-3:-1] == beside.out.splitlines()[-3:-1]  # the mean, and what to type next
    for seed in (1, 3):
        runs = [next(Path(folder).glob(f"dqn__CartPole-v1__seed{seed}__*__a-b")) for folder in ("turn", "beside")]
        one, other = (run / "checkpoints" / "latest" / "model.safetensors" for run in runs)
        assert one.read_bytes() == other.read_bytes()
    assert len(list(Path("turn").iterdir())) == len(list(Path("beside").iterdir())) == 2


def test_quiet_prints_a_checkpoint_for_each_seed(cli: Cli) -> None:
    done = cli("train", "--config", "small.yaml", "--seeds", "1-2", "--quiet", "--total-timesteps", "30")
    assert done.code == 0 and done.err == ""
    assert [open_checkpoint(line).config.seed for line in done.out.splitlines()] == [1, 2]


def test_a_seed_that_fails_is_named_and_its_exit_code_kept(cli: Cli) -> None:
    done = cli("train", "--config", "small.yaml", "--seeds", "1", "--jobs", "2", "--set", "env_id=CartPol-v1")
    assert done.code == 2
    assert done.err.startswith("seed 1: error: no environment is registered as 'CartPol-v1'; did you mean CartPole-v1?")
    assert not Path("runs").exists()


def test_an_interrupt_reaches_every_run_once_and_all_save(here: Path) -> None:
    (here / "small.yaml").write_text(yaml.safe_dump({**SMALL, "total_timesteps": 100_000_000, "compile": False}))
    command = [sys.executable, "-m", "rl_training", "train", "--config", "small.yaml", "--seeds", "1-3", "--jobs", "2"]
    process = subprocess.Popen(command, cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while len(list(here.glob("runs/*/checkpoints/latest"))) < 2 and process.poll() is None:
        assert time.monotonic() < deadline, "no checkpoint appeared"
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, (out, err)
    assert "seed 1: interrupted: at step" in err and "seed 2: interrupted" in err and "seed 3: was not started" in err
    for run in (here / "runs").iterdir():
        step = open_checkpoint(run).step
        assert step >= 50 and open_checkpoint(run).load_replay() is not None
