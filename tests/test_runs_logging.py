"""Run directories and metric sinks."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rl_training.errors import ConfigError, RunError, UserError
from rl_training.experiment import runs
from rl_training.experiment.config import TrainConfig, load_config
from rl_training.experiment.logging import JsonlSink, Sinks, TensorBoardSink
from rl_training.experiment.runs import RunDirectory, versions


def config_in(folder: Path, **changes: Any) -> TrainConfig:
    values = {"algo": "dqn", "env_id": "CartPole-v1", "seed": 3, "total_timesteps": 100, "output_dir": str(folder)}
    return TrainConfig(**{**values, **changes})


def test_a_run_is_named_after_what_it_is(tmp_path: Path) -> None:
    run = RunDirectory.create(config_in(tmp_path))
    assert re.fullmatch(r"dqn__CartPole-v1__seed3__\d{8}-\d{6}", run.path.name)
    other = RunDirectory.create(config_in(tmp_path, env_id="module:ALE/Pong v5"), "first try/2")
    assert re.fullmatch(r"dqn__module-ALE-Pong-v5__seed3__\d{8}-\d{6}__first-try-2", other.path.name)


def test_runs_of_the_same_second_do_not_meet(tmp_path: Path) -> None:
    assert len({RunDirectory.create(config_in(tmp_path)).path for _ in range(5)}) == 5


def test_what_a_run_says_of_itself(tmp_path: Path) -> None:
    run = RunDirectory.create(config_in(tmp_path, algo_kwargs={"batch_size": 8}), command=["rl-training", "train"])
    assert load_config(run.path / "config.yaml").settings == run.config.settings
    assert run.metadata["command"] == ["rl-training", "train"]
    assert run.metadata["versions"] == versions()
    assert run.metadata["versions"]["torch"] == torch.__version__
    assert run.metadata["hardware"]["cpu_cores"] == os.cpu_count()
    assert {"created", "git"} <= run.metadata.keys()
    run.update_metadata(resume="exact")
    assert run.metadata["resume"] == "exact" and run.metadata["command"] == ["rl-training", "train"]


def test_a_run_is_found_from_anywhere_inside_it(tmp_path: Path) -> None:
    run = RunDirectory.create(config_in(tmp_path))
    inside = run.checkpoints / "step_5"
    inside.mkdir(parents=True)
    for place in (run.path, inside, run.path / "config.yaml"):
        assert RunDirectory.open(place).path == run.path
    with pytest.raises(UserError, match="not a run's directory"):
        RunDirectory.open(tmp_path)


def test_a_run_takes_a_new_config(tmp_path: Path) -> None:
    run = RunDirectory.create(config_in(tmp_path))
    run.save_config(run.config.replace(total_timesteps=500))
    assert RunDirectory.open(run.path).config.total_timesteps == 500


def test_a_place_where_no_run_can_be_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match=r"output_dir .*file: no run can be made there"):
        RunDirectory.create(config_in(tmp_path / "file"))


def test_a_full_disk_is_a_failure_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(runs, "_new_directory", full)
    with pytest.raises(RunError, match="No space left"):
        RunDirectory.create(config_in(tmp_path))


# Metrics


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_records_are_lines_and_go_on_in_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for step in (100, 200):
        with Sinks([JsonlSink(path)]) as sinks:
            sinks.write(step, {"train/loss": 0.5, "nan": float("nan"), "inf": float("inf")})
            assert len(records(path)) == step // 100  # readable while the run goes on
    assert records(path) == [{"step": step, "train/loss": 0.5, "nan": None, "inf": None} for step in (100, 200)]


def test_cut_after_drops_later_records_and_a_broken_last_line(tmp_path: Path) -> None:
    run = RunDirectory.create(config_in(tmp_path))
    run.cut_after(0)  # nothing written yet: nothing to cut
    run.metrics.write_text('{"step": 100}\n{"step": 200}\n{"step": 300}\n{"step": 150}\n{"step": 2')
    run.cut_after(200)
    assert [record["step"] for record in records(run.metrics)] == [100, 200, 150]
    run.metrics.write_text('{"step": 100}\n{"step": 20}')  # whole JSON, but the process died before the end of the line
    run.cut_after(200)
    assert [record["step"] for record in records(run.metrics)] == [100]


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    reader = EventAccumulator(str(folder))
    reader.Reload()
    return [(event.step, event.value) for event in reader.Scalars(tag)]


def test_tensorboard_shows_what_was_written_and_forgets_what_was_cut(tmp_path: Path) -> None:
    first = TensorBoardSink(tmp_path)
    for step in (100, 200, 300):
        first.write(step, {"train/loss": step / 100, "eval/mean_reward": 1.0})
    first.close()
    assert scalars(tmp_path, "train/loss") == [(100, 1.0), (200, 2.0), (300, 3.0)]
    resumed = TensorBoardSink(tmp_path, purge_step=201)
    resumed.write(300, {"train/loss": 7.0})
    resumed.close()
    assert scalars(tmp_path, "train/loss") == [(100, 1.0), (200, 2.0), (300, 7.0)]


@pytest.mark.parametrize("kind", [JsonlSink, TensorBoardSink])
def test_a_metric_that_cannot_be_written_fails_the_run_once(kind: Any, tmp_path: Path) -> None:
    """Files end at 512 bytes here: the write fails with what the system says, and closing does not fail again."""
    sink = kind(tmp_path / "metrics.jsonl" if kind is JsonlSink else tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, hard))
    try:
        with pytest.raises(RunError, match=r"cannot be written \(File too large\)"), Sinks([sink]) as sinks:
            for step in range(100):
                sinks.write(step, {"a": 1.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_every_sink_is_closed_even_where_one_fails() -> None:
    closed: list[str] = []

    class Sink:
        def __init__(self, name: str) -> None:
            self.name = name

        def write(self, step: int, values: Any) -> None: ...

        def close(self) -> None:
            closed.append(self.name)
            if self.name == "b":
                raise RunError("b")

    with pytest.raises(RunError, match="b"), Sinks([Sink("a"), Sink("b"), Sink("c")]):
        pass
    assert sorted(closed) == ["a", "b", "c"]


def test_a_file_of_records_is_cut_line_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a stranger has made it: neither the file nor one of its lines is read at once."""
    monkeypatch.setattr("rl_training.experiment.files.LONGEST_LINE", 64)
    directory = RunDirectory.create(config_in(tmp_path))
    records = [f'{{"step": {step}}}\n' for step in (1, 2, 3)]
    directory.metrics.write_text(records[0] + "\0" * 200 + "\n" + records[1] + records[2] + '{"step": 2')
    assert directory.cut_after(2) == 2
    assert directory.metrics.read_text() == records[0] + records[1]
    assert directory.cut_after(2, records=1) == 1
    assert directory.metrics.read_text() == records[0]
