"""Callbacks of the managed API: stopping, saving, and hooks of one's own."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rl_training import DQN, Callback, CheckpointEvery, SaveBest, StopAtReturn
from rl_training.errors import RunError, UserError
from rl_training.experiment.checkpointing import open_checkpoint
from rl_training.runtime.run import Run
from rl_training.types import EnvStep, UpdateResult

SMALL: dict[str, Any] = {
    "hidden_sizes": [8],
    "batch_size": 8,
    "buffer_capacity": 300,
    "learning_starts": 20,
    "eval_episodes": 1,
    "eval_interval": 50,
    "log_interval": 50,
    "checkpoint_interval": 0,
}


def agent(tmp_path: Path, **keywords: Any) -> DQN:
    return DQN("CartPole-v1", output_dir=tmp_path, **{**SMALL, "total_timesteps": 200, **keywords})


class Returns(Callback):
    """Puts these figures in place of the evaluations', one after another: which one is best is then known."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *means: float) -> None:
        self._means = iter(means)
        self._monkeypatch = monkeypatch

    def on_start(self, run: Run) -> None:
        real, means = run.parts.evaluate, self._means

        class Fixed:
            def metrics(self) -> dict[str, float]:
                return {**real(1, lambda: False).metrics(), "eval_return_mean": next(means)}

        self._monkeypatch.setattr(run.parts, "evaluate", lambda num_episodes, asked: Fixed())


def test_a_run_stops_when_an_evaluation_reaches_the_return(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = agent(tmp_path)
    result = learner.learn(callbacks=[Returns(monkeypatch, 10.0, 30.0, 99.0), StopAtReturn(30)])
    assert result.metrics["global_step"] == 100  # the second evaluation
    assert result.stop_reason == "the evaluation return 30 reached 30"
    assert json.loads((result.run_dir / "metadata.json").read_text())["stopped"] == result.stop_reason
    assert open_checkpoint(result.checkpoint_path).load_replay() is not None  # ended in good order
    # and goes on to its total where it stopped
    rest = learner.learn()
    assert rest.metrics["global_step"] == 200 and rest.stop_reason is None
    assert json.loads((rest.run_dir / "metadata.json").read_text())["stopped"] is None


def test_a_return_reached_at_the_very_end_stopped_nothing(tmp_path: Path) -> None:
    assert agent(tmp_path, eval_interval=0).learn(callbacks=[StopAtReturn(0)]).stop_reason is None


def test_a_run_stops_when_training_returns_reach_it(tmp_path: Path) -> None:
    # A hundred episodes first, whatever they return: CartPole's shortest last 8 steps, so no sooner than step 800.
    result = agent(tmp_path, total_timesteps=100_000, eval_interval=0).learn(callbacks=[StopAtReturn(1, of="training")])
    assert result.metrics["num_episodes"] == 100 and 800 <= result.metrics["global_step"] < 100_000
    assert result.stop_reason is not None and result.stop_reason.startswith("the training return ")


def test_save_best_keeps_a_copy_of_the_best_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # evaluations at 50, 100, 150, 200: the best is at 100; the tie at 200 comes later
    result = agent(tmp_path).learn(callbacks=[Returns(monkeypatch, 10.0, 30.0, 20.0, 30.0), SaveBest(tmp_path / "best")])
    kept = open_checkpoint(tmp_path / "best")
    assert kept.step == result.metrics["best_step"] == 100
    best = result.run_dir / "checkpoints" / "best" / "model.safetensors"
    assert (kept.path / "model.safetensors").read_bytes() == best.read_bytes()
    assert DQN.load(tmp_path / "best").predict([0.0, 0.0, 0.0, 0.0])[0] in (0, 1)


def test_the_best_at_the_end_is_kept_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent(tmp_path).learn(callbacks=[Returns(monkeypatch, 1.0, 2.0, 3.0, 4.0), SaveBest(tmp_path / "best")])
    assert open_checkpoint(tmp_path / "best").step == 200


def test_save_best_says_at_once_that_it_cannot_save_there(tmp_path: Path) -> None:
    (tmp_path / "extension").mkdir()
    (tmp_path / "extension" / "manifest.json").write_text('{"manifest_version": 3}')
    with pytest.raises(RunError, match="exists and is no checkpoint of ours"):
        agent(tmp_path).learn(callbacks=[SaveBest(tmp_path / "extension")])
    assert [path.name for path in (tmp_path / "extension").iterdir()] == ["manifest.json"]


def test_checkpoints_every_so_many_steps(tmp_path: Path) -> None:
    seen: list[int] = []

    class Watch(Callback):
        def on_checkpoint(self, run: Run, path: Path) -> None:
            seen.append(open_checkpoint(path).step)

    # three environments: steps 3, 6, 9, ...; the first at or past each multiple of 40
    agent(tmp_path, num_envs=3, keep_checkpoints=10).learn(callbacks=[CheckpointEvery(steps=40), Watch()])
    assert seen == [42, 81, 120, 162, 201]


def test_a_checkpoint_a_callback_asked_for_resumes_exactly(tmp_path: Path) -> None:
    """It is taken when all that is due at its step is done: records, evaluation and the rest of the run come out the same."""
    plain = {**SMALL, "total_timesteps": 200, "seed": 3}
    whole = DQN("CartPole-v1", output_dir=tmp_path / "whole", **plain).learn()

    class Stop(Callback):
        def on_checkpoint(self, run: Run, path: Path) -> None:
            raise KeyboardInterrupt  # killed right after the checkpoint

    stopped = DQN("CartPole-v1", output_dir=tmp_path / "stopped", **plain)
    with pytest.raises(KeyboardInterrupt):
        stopped.learn(callbacks=[CheckpointEvery(steps=100), Stop()])
    resumed = stopped.learn()
    for name in ("model.safetensors", "training.safetensors", "replay.safetensors"):
        assert (whole.checkpoint_path / name).read_bytes() == (resumed.checkpoint_path / name).read_bytes()
    records = [[json.loads(line)["step"] for line in (run.run_dir / "metrics.jsonl").read_text().splitlines()] for run in (whole, resumed)]
    assert records[0] == records[1]


def test_checkpoints_every_so_many_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    now = {"time": 0.0}
    monkeypatch.setattr("rl_training.runtime.callbacks.time.monotonic", lambda: now["time"])

    class Watch(Callback):
        def on_step(self, run: Run, step: EnvStep) -> None:
            now["time"] += 1.0

        def on_checkpoint(self, run: Run, path: Path) -> None:
            seen.append(run.clock.env_steps)

    agent(tmp_path, total_timesteps=100).learn(callbacks=[Watch(), CheckpointEvery(seconds=40)])
    assert seen == [40, 80, 100]  # a second a step; the last one is the end's


def test_hooks_of_ones_own(tmp_path: Path) -> None:
    calls: Counter[str] = Counter()
    losses: list[float] = []

    class Mine(Callback):
        def on_start(self, run: Run) -> None:
            calls["start"] += 1

        def on_step(self, run: Run, step: EnvStep) -> None:
            calls["step"] += 1
            assert step.rewards.tolist() == [1.0]

        def on_update(self, run: Run, result: UpdateResult) -> None:
            calls["update"] += 1
            losses.append(float(result.metrics["loss"]))

        def on_log(self, run: Run, record: Mapping[str, float]) -> None:
            calls["log"] += 1

        def on_eval(self, run: Run, metrics: Mapping[str, float]) -> None:
            calls["eval"] += 1
            assert metrics["eval_episodes"] == 1

        def on_end(self, run: Run) -> None:
            calls["end"] += 1

    agent(tmp_path).learn(callbacks=[Mine()])
    # updates at the multiples of 4 from 20 to 200; records and evaluations at 50, 100, 150, 200
    assert calls == {"start": 1, "step": 200, "update": 46, "log": 4, "eval": 4, "end": 1}
    assert all(loss >= 0 for loss in losses) and len(set(losses)) > 1


def test_a_callback_that_cannot_start_leaves_nothing_open(tmp_path: Path) -> None:
    ended: list[bool] = []

    class Wrong(Callback):
        def on_start(self, run: Run) -> None:
            raise ZeroDivisionError("mine")

        def on_end(self, run: Run) -> None:
            ended.append(True)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ZeroDivisionError, match="mine"):
        agent(tmp_path).learn(callbacks=[Wrong()])
    assert signal.getsignal(signal.SIGTERM) is before and ended == [True]


@pytest.mark.parametrize("keywords", [{}, {"steps": 1, "seconds": 1.0}, {"steps": 0}, {"seconds": -1.0}])
def test_checkpoint_every_takes_one_positive_interval(keywords: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="CheckpointEvery"):
        CheckpointEvery(**keywords)


def test_stop_at_return_names_what_it_takes() -> None:
    with pytest.raises(UserError, match="of must be evaluation or training, got 'eval'"):
        StopAtReturn(1, of="eval")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ([StopAtReturn], r"or functions, got the class StopAtReturn: make one, StopAtReturn\(...\)"),
        ([3], r"or functions \(run, step\), got 3"),
        (3, r"or functions \(run, step\), got 3"),
        ("abc", r"or functions \(run, step\), got 'a'"),
    ],
)
def test_what_is_no_callback_is_named(tmp_path: Path, given: Any, named: str) -> None:
    with pytest.raises(UserError, match=f"callbacks must be Callback objects {named}"):
        DQN("CartPole-v1", output_dir=tmp_path / "runs").learn(10, callbacks=given)
    assert not list(tmp_path.iterdir())


def test_one_callback_or_a_plain_function_will_do(tmp_path: Path) -> None:
    seen: list[int] = []

    def until_twelve(run: Any, step: Any) -> bool:
        seen.append(run.clock.env_steps)
        return run.clock.env_steps < 12

    result = DQN("CartPole-v1", output_dir=tmp_path, hidden_sizes=(8,), eval_episodes=1).learn(40, callbacks=until_twelve)
    assert seen == list(range(1, 13)) and result.metrics["global_step"] == 12
    agent = DQN("CartPole-v1", output_dir=tmp_path, hidden_sizes=(8,), eval_episodes=1, eval_interval=10)
    assert agent.learn(40, callbacks=StopAtReturn(-1.0)).metrics["global_step"] == 10
    assert agent.learn(5, callbacks=[lambda run, step: None, StopAtReturn(1e9)]).metrics["global_step"] == 15
