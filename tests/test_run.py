"""What a run saves, when, and what it lets go of at its end."""

from __future__ import annotations

import json
import multiprocessing
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_training.data import ReplayBuffer
from rl_training.errors import RunError
from rl_training.experiment.checkpoint_store import CheckpointStore
from rl_training.experiment.checkpointing import open_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.runs import RunDirectory
from rl_training.experiment.state_files import split_state
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.reports import Reports
from rl_training.runtime.run import Run
from rl_training.runtime.workflows import resume_training, train
from rl_training.types import EnvStep


def config(output: Path, **changes: Any) -> TrainConfig:
    settings = {"hidden_sizes": [8], "batch_size": 8, "buffer_capacity": 100, "learning_starts": 20}
    values = {"algo": "dqn", "env_id": "CartPole-v1", "seed": 0, "total_timesteps": 150, "output_dir": str(output)}
    intervals = {"log_interval": 0, "eval_interval": 0, "eval_episodes": 1, "checkpoint_interval": 50}
    return TrainConfig(**{**values, **intervals, "algo_kwargs": settings, **changes})


class Diverge(Callback):
    """One parameter becomes infinite after so many steps."""

    def __init__(self, step: int) -> None:
        self.at = step

    def on_step(self, run: Run, step: EnvStep) -> None:
        if run.clock.env_steps == self.at:
            with torch.no_grad():
                next(run.parts.actor.network.parameters()).view(-1)[3] = float("inf")


@pytest.mark.parametrize(
    ("intervals", "step"),
    [
        ({}, 100),  # seen where a checkpoint is due
        ({"eval_interval": 80}, 80),  # an evaluation, whose policy would have become `best`
        ({"log_interval": 90}, 90),  # a record, by its loss
        ({"checkpoint_interval": 60}, 120),
    ],
)
def test_a_network_that_diverged_is_never_saved(intervals: dict[str, int], step: int, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=rf"at step {step}: learning has diverged \(the last checkpoint is .*step_\d+\)$"):
        train(config(tmp_path, **intervals), callbacks=[Diverge(75)])
    (run,) = tmp_path.iterdir()
    for path in (run / "checkpoints").iterdir():
        assert all(torch.isfinite(tensor).all() for tensor in open_checkpoint(path).load_model().values()), path
    assert open_checkpoint(run).step == intervals.get("checkpoint_interval", 50)


def test_a_run_that_diverged_is_not_saved_when_it_is_interrupted(tmp_path: Path) -> None:
    class Both(Diverge):
        def on_step(self, run: Run, step: EnvStep) -> None:
            super().on_step(run, step)
            if run.clock.env_steps == self.at:
                signal.raise_signal(signal.SIGTERM)

    with pytest.raises(RunError, match=r"at step 75: learning has diverged \(the last checkpoint is .*step_50\)$"):
        train(config(tmp_path), callbacks=[Both(75)])


def test_the_replay_is_written_from_its_own_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[Run] = []
    written: list[int] = []
    original = CheckpointStore.save

    def save(self: CheckpointStore, step: int, *, replay: Any, **keywords: Any) -> Path:
        tensors = split_state(replay)[1]
        (rows,) = (tensor for name, tensor in tensors.items() if name.endswith("rows"))
        written.append(rows.data_ptr())
        return original(self, step, replay=replay, **keywords)

    class Keep(Callback):
        def on_start(self, run: Run) -> None:
            runs.append(run)

    monkeypatch.setattr(CheckpointStore, "save", save)
    train(config(tmp_path), callbacks=[Keep()])
    replay = runs[0].parts.replay
    assert isinstance(replay, ReplayBuffer)
    assert set(written) == {replay.state_dict(copy=False)["storage"]["rows"].data_ptr()}


def test_the_end_writes_the_replay_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[str] = []
    original_save, original_rewrite = CheckpointStore.save, CheckpointStore.rewrite

    def save(self: CheckpointStore, step: int, **keywords: Any) -> Path:
        saved.append(f"save {step}")
        return original_save(self, step, **keywords)

    def rewrite(self: CheckpointStore, step: int, **keywords: Any) -> None:
        saved.append(f"rewrite {step}")
        original_rewrite(self, step, **keywords)

    monkeypatch.setattr(CheckpointStore, "save", save)
    monkeypatch.setattr(CheckpointStore, "rewrite", rewrite)

    class Sees(Callback):
        def on_eval(self, run: Run, metrics: Any) -> None:
            saved.append(f"evaluation {run.clock.env_steps}")

    result = train(config(tmp_path, eval_interval=75), callbacks=[Sees()])
    assert saved == ["save 50", "evaluation 75", "save 75", "save 100", "save 150", "evaluation 150", "rewrite 150"]
    saved.clear()
    again = resume_training(result.run_dir)
    assert saved == [] and {**again.metrics, "wall_time_s": 0} == {**result.metrics, "wall_time_s": 0}


class Killed(BaseException):
    """Stands for SIGKILL at one exact place."""


@pytest.mark.parametrize(("owner", "place"), [(Reports, "evaluated"), (Run, "evaluate"), (Run, "_save_records")])
def test_a_kill_after_the_last_checkpoint_leaves_nothing_undone_and_nothing_done_twice(
    owner: Any, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"log_interval": 40, "eval_interval": 50}
    reference = train(config(tmp_path / "a", **changes))
    original = getattr(owner, place)

    def die(self: Any, *arguments: Any) -> Any:
        result = original(self, *arguments)
        if (self.clock if owner is Run else self._clock).env_steps == 150:
            raise Killed
        return result

    with monkeypatch.context() as patch:
        patch.setattr(owner, place, die)
        with pytest.raises(Killed):
            train(config(tmp_path / "b", **changes))
    (run,) = (tmp_path / "b").iterdir()
    resumed = resume_training(run)

    def left(directory: Path) -> Any:
        records = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
        untimed = [{key: value for key, value in record.items() if not key.startswith("time/")} for record in records]
        state = open_checkpoint(directory).manifest["state"]["training"]["run"]
        known = {key: value for key, value in state.items() if key not in ("elapsed", "last_metrics")}
        files = [(directory / "checkpoints/step_150" / f"{name}.safetensors").read_bytes() for name in ("model", "training", "replay")]
        return untimed, known, (directory / "checkpoints/best").readlink(), files

    assert left(resumed.run_dir) == left(reference.run_dir)


class FailsAtTheEnd(Callback):
    def on_end(self, run: Run) -> None:
        raise ZeroDivisionError("mine")


def test_an_on_end_that_raises_leaves_nothing_held(tmp_path: Path) -> None:
    ended: list[str] = []

    class Other(Callback):
        def on_end(self, run: Run) -> None:
            ended.append("other")

    with pytest.raises(ZeroDivisionError, match="mine"):
        train(config(tmp_path, vectorization="async", num_envs=2), callbacks=[FailsAtTheEnd(), Other()])
    (run,) = tmp_path.iterdir()
    assert ended == ["other"] and multiprocessing.active_children() == []
    RunDirectory.open(run).hold()  # nobody else has it
    assert open_checkpoint(run).step == 150


def test_the_real_error_is_told_whatever_fails_at_the_end(tmp_path: Path) -> None:
    class Breaks(Callback):
        def on_step(self, run: Run, step: EnvStep) -> None:
            if run.clock.env_steps == 70:
                raise RunError("the real one")

    warned = pytest.warns(RuntimeWarning, match=r"ZeroDivisionError: mine \(.*test_run\.py, line \d+\), while the run was ending")
    with warned, pytest.raises(RunError, match=r"the real one \(the last checkpoint is .*step_50\)"):
        train(config(tmp_path), callbacks=[Breaks(), FailsAtTheEnd()])
