"""SIGINT and SIGTERM in every phase of a run. The environment raises the signal itself, so that it comes at an exact moment."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from rl_training.errors import Interrupted
from rl_training.experiment.checkpointing import open_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.signals import held_back, listening
from rl_training.runtime.workflows import resume_training, train

FILES = ("model.safetensors", "training.safetensors", "replay.safetensors")


class Signalling(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole that raises signals when its `number`-th environment (1 trains, 2 and later ones evaluate) does something the n-th time."""

    made = 0
    moment: tuple[int, str, int] | None = None
    signals: tuple[signal.Signals, ...] = (signal.SIGTERM,)

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))
        type(self).made += 1
        self.number, self.done = type(self).made, {"reset": 0, "step": 0}
        self._tell("made", 1)

    def _tell(self, what: str, times: int) -> None:
        if (self.number, what, times) == self.moment:
            for signum in self.signals:
                signal.raise_signal(signum)

    def reset(self, **keywords: Any) -> Any:
        self.done["reset"] += 1
        self._tell("reset", self.done["reset"])
        return super().reset(**keywords)

    def step(self, action: Any) -> Any:
        self.done["step"] += 1
        self._tell("step", self.done["step"])
        return super().step(action)


def at(moment: tuple[int, str, int] | None, *signals: signal.Signals) -> Any:
    """An environment that raises these at that moment, counting from now."""
    return type("Now", (Signalling,), {"made": 0, "moment": moment, "signals": signals or (signal.SIGTERM,)})


def config(output: Path, **changes: Any) -> TrainConfig:
    settings = {"hidden_sizes": [8], "batch_size": 8, "buffer_capacity": 100, "learning_starts": 20}
    values = {
        "algo": "dqn",
        "env_id": "callable:Now",
        "seed": 0,
        "total_timesteps": 150,
        "output_dir": str(output),
        "algo_kwargs": settings,
    }
    intervals = {"log_interval": 40, "eval_interval": 50, "eval_episodes": 1, "checkpoint_interval": 60}
    return TrainConfig(**{**values, **intervals, "algo_kwargs": settings, **changes})


def left(run: Path, step: int = 150) -> tuple[Any, ...]:
    """What a run ends with, times left out."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    untimed = [{key: value for key, value in record.items() if not key.startswith("time/")} for record in records]
    checkpoint = open_checkpoint(run)
    assert checkpoint.step == step
    state = checkpoint.manifest["state"]["training"]["run"]
    return (
        untimed,
        (run / "checkpoints" / "best").readlink(),
        *((checkpoint.path / name).read_bytes() for name in FILES),
        {key: value for key, value in state.items() if key not in ("elapsed", "last_metrics")},
    )


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    return left(train(config(tmp_path_factory.mktemp("reference")), env=at(None)).run_dir)


@pytest.mark.parametrize(
    ("moment", "step"),
    [
        ((1, "step", 73), 73),  # training
        ((1, "reset", 3), None),  # an autoreset
        ((2, "made", 1), 50),  # an evaluation during training: its environments are made, reset and stepped
        ((2, "reset", 1), 50),
        ((3, "step", 5), 100),
        ((4, "step", 1), 150),  # the final evaluation
    ],
)
def test_a_signal_saves_and_the_resumed_run_ends_as_if_there_had_been_none(
    moment: tuple[int, str, int], step: int | None, tmp_path: Path, reference: tuple[Any, ...]
) -> None:
    with pytest.raises(Interrupted, match=r"interrupted at step \d+; saved .*step_\d+$") as interrupted:
        train(config(tmp_path), env=at(moment, signal.SIGTERM))
    assert interrupted.value.signum == signal.SIGTERM
    (run,) = tmp_path.iterdir()
    saved = open_checkpoint(run)
    assert str(saved.path) in str(interrupted.value) and step in (None, saved.step)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert left(resume_training(run, env=at(None)).run_dir) == reference


@pytest.mark.parametrize("moment", [(1, "made", 1), (1, "reset", 1)])
def test_before_the_run_has_begun_nothing_is_written(moment: tuple[int, str, int], tmp_path: Path) -> None:
    with pytest.raises(Interrupted, match="before anything was changed") as interrupted:
        train(config(tmp_path), env=at(moment, signal.SIGINT))
    assert interrupted.value.signum == signal.SIGINT and list(tmp_path.iterdir()) == []


def test_while_episodes_are_played_again_nothing_is_changed(tmp_path: Path, reference: tuple[Any, ...]) -> None:
    with pytest.raises(Interrupted):
        train(config(tmp_path), env=at((1, "step", 73)))
    (run,) = tmp_path.iterdir()
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(Interrupted, match="before anything was changed"):
        resume_training(run, env=at((1, "step", 1)))
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert left(resume_training(run, env=at(None)).run_dir) == reference


@pytest.mark.parametrize("moment", [(1, "step", 73), (3, "step", 5), (4, "step", 1)])
def test_asked_twice_it_leaves_at_once_and_says_what_is_kept(
    moment: tuple[int, str, int], tmp_path: Path, reference: tuple[Any, ...]
) -> None:
    with pytest.raises(Interrupted, match=r"left at once without saving \(the last checkpoint is .*step_\d+\)") as interrupted:
        train(config(tmp_path), env=at(moment, signal.SIGINT, signal.SIGTERM))
    assert interrupted.value.signum == signal.SIGINT
    (run,) = tmp_path.iterdir()
    assert left(resume_training(run, env=at(None)).run_dir) == reference


def test_a_signal_that_is_sent_on_as_well_is_one_request(tmp_path: Path) -> None:
    with pytest.raises(Interrupted, match=r"interrupted at step 73; saved .*step_73$"):
        train(config(tmp_path), env=at((1, "step", 73), *[signal.SIGTERM] * 3))  # as `timeout` does: its child, then the group


class Closing(Signalling):
    """Raises the signals in its `close`, which takes a while where processes are ended."""

    closed = False

    def close(self) -> None:
        self._tell("close", 1)
        super().close()
        type(self).closed = self.closed or self.number == 1


def test_a_signal_while_the_environments_are_closed_waits_until_they_are(tmp_path: Path, reference: tuple[Any, ...]) -> None:
    env = type("Now", (Closing,), {"made": 0, "moment": (1, "close", 1)})
    with pytest.raises(Interrupted, match=r"^interrupted at its end \(the last checkpoint is .*step_150\)$") as interrupted:
        train(config(tmp_path), env=env)
    assert interrupted.value.signum == signal.SIGTERM and env.closed
    (run,) = tmp_path.iterdir()
    assert left(run) == reference


class Library:
    """Sets a handler of its own while it starts, as Ray does."""

    def __init__(self) -> None:
        self.started = False
        self.handled: list[int] = []

    def start(self, *signals: signal.Signals) -> None:
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, lambda number, frame: self.handled.append(number))
        for signum in signals:
            signal.raise_signal(signum)
        self.started = True


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_is_held_back_ends_what_comes_after(signum: signal.Signals) -> None:
    library, went_on = Library(), False
    with pytest.raises(Interrupted) as interrupted, listening():
        with held_back():
            library.start(signum)
        went_on = True
    assert interrupted.value.signum == signum
    assert library.started and not went_on and library.handled == []


def test_a_signal_that_a_library_turns_into_an_interrupt_of_its_own_is_told() -> None:
    """Ray's `get` raises a plain KeyboardInterrupt where our handler raised: the command ended without a word."""
    with pytest.raises(Interrupted, match="before anything was changed") as interrupted, listening():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise KeyboardInterrupt from None
    assert interrupted.value.signum == signal.SIGINT
    with pytest.raises(KeyboardInterrupt), listening():
        raise KeyboardInterrupt  # no signal: not ours to tell


def test_a_second_signal_is_not_held_back() -> None:
    library = Library()
    with pytest.raises(Interrupted) as interrupted, listening(), held_back():
        library.start(signal.SIGTERM, signal.SIGINT)
    assert interrupted.value.signum == signal.SIGTERM and not library.started


def test_a_signal_sent_twice_at_once_is_held_back_as_one() -> None:
    """`timeout` signals its child and then the whole group."""
    done = False
    with pytest.raises(Interrupted) as interrupted, listening() as signals, held_back():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        done = True
    assert done and not signals.came_twice and interrupted.value.signum == signal.SIGTERM


def test_handlers_are_as_before_when_nothing_was_held_back() -> None:
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    set_handler = signal.signal
    with held_back():
        Library().start()
        assert signal.signal(signal.SIGUSR1, signal.SIG_IGN) is before[signal.SIGUSR1]  # others are set as ever
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    assert signal.signal is set_handler
    signal.signal(signal.SIGUSR1, before[signal.SIGUSR1])
    assert {signum: signal.getsignal(signum) for signum in before} == before


HUNG = """
import os, signal, time
import gymnasium as gym

class Hung(gym.Wrapper):
    def __init__(self):
        super().__init__(gym.make("CartPole-v1"))
        self.steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps == 70:
            try:
                os.close(os.open("once", os.O_CREAT | os.O_EXCL))
            except FileExistsError:  # the other one
                time.sleep(3600)
            os.killpg(os.getpgid(0), signal.SIGINT)  # as a terminal's Ctrl-C: every process of the group
            time.sleep(0.2)
            os.killpg(os.getpgid(0), signal.SIGTERM)
            time.sleep(3600)
        return super().step(action)

gym.register("Hung-v0", Hung)
"""


def test_a_hung_worker_does_not_outlive_the_second_signal(here: Path) -> None:
    (here / "hung_env.py").write_text(HUNG)
    changes = ["--set", "env_id=hung_env:Hung-v0", "--set", "vectorization=async", "--set", "num_envs=2", "--set", "compile=false"]
    done = subprocess.run(
        [sys.executable, "-m", "rl_training", "train", "--config", "small.yaml", "--quiet", "--total-timesteps", "1000", *changes],
        cwd=here,
        capture_output=True,  # ends only when no process holds the pipes any more
        text=True,
        timeout=120,
        start_new_session=True,
        check=False,
    )
    assert done.returncode == 130, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("interrupted: asked twice, left at once without saving (the last checkpoint is ") and "step_100" in line


@pytest.mark.filterwarnings("ignore:could not compile:RuntimeWarning")
def test_a_signal_while_compiling_ends_it_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any) -> None:
        raise RuntimeError("no compiler")

    def is_interrupted(*arguments: Any) -> None:
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError("it went on")

    for place in ("accelerate", "workflows"):
        monkeypatch.setattr(f"rl_training.runtime.{place}.missing_toolchain", lambda: None)
    monkeypatch.setattr("rl_training.speed.ahead_of_time.compile_learner", fails)
    expected = left(train(config(tmp_path / "a", compile=True), env=at(None)).run_dir)
    monkeypatch.setattr("rl_training.speed.ahead_of_time.compile_learner", is_interrupted)
    with pytest.raises(Interrupted, match=r"interrupted while compiling \(the last checkpoint is .*step_19\)") as interrupted:
        train(config(tmp_path / "b", compile=True), env=at(None))
    assert interrupted.value.signum == signal.SIGTERM
    monkeypatch.setattr("rl_training.speed.ahead_of_time.compile_learner", fails)
    (run,) = (tmp_path / "b").iterdir()
    assert left(resume_training(run, env=at(None)).run_dir) == expected


@pytest.mark.filterwarnings("ignore:could not compile:RuntimeWarning")
def test_only_the_step_that_compiles_is_saved_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any) -> None:
        raise RuntimeError("no compiler")

    saved: list[int] = []

    class Saved(Callback):
        def on_checkpoint(self, run: Any, path: Path) -> None:
            saved.append(run.clock.env_steps)

    monkeypatch.setattr("rl_training.runtime.accelerate.missing_toolchain", lambda: None)
    monkeypatch.setattr("rl_training.speed.ahead_of_time.compile_learner", fails)
    rarely = {"hidden_sizes": [8], "batch_size": 8, "buffer_capacity": 100, "learning_starts": 20, "train_frequency": 40}
    seldom = {"algo_kwargs": rarely, "total_timesteps": 100, "eval_interval": 0, "checkpoint_interval": 0}
    train(config(tmp_path, compile=True, **seldom), env=at(None), callbacks=[Saved()])
    assert saved == [39, 100]  # learning may start at 20, and the first round is at 40


def test_a_signal_inside_a_finaliser_is_noted_and_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python can raise nothing out of `__del__`: it tells the hook, by default with a traceback on stderr. Other errors still go there."""
    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: told.append(what.exc_type))

    class Last:
        def __init__(self, end: Any) -> None:
            self.end = end

        def __del__(self) -> None:
            self.end()

    with listening() as signals:
        Last(lambda: signal.raise_signal(signal.SIGTERM))
        assert signals.signum == signal.SIGTERM and told == []
        Last(lambda: 1 // 0)
    assert told == [ZeroDivisionError]


def test_an_interrupt_while_numpy_is_imported_ends_the_command(tmp_path: Path) -> None:
    """torch imports NumPy by itself where nobody has, and takes what is raised there for a NumPy that does not work."""
    done = interrupted_while_importing("numpy.matrixlib", "train", "dqn", "--env", "CartPole-v1", "--output-dir", str(tmp_path / "runs"))
    assert (done.returncode, done.stderr) == (130, "interrupted\n") and not (tmp_path / "runs").exists()


MODULE = 'runpy.run_module("rl_training", run_name="__main__")'  # python -m rl_training
SCRIPT = "from rl_training.__main__ import main; sys.exit(main())"  # what an installer makes of [project.scripts]


@pytest.mark.parametrize(
    ("module", "start"),
    [
        ("rl_training.interrupts", MODULE),
        ("rl_training.interrupts", SCRIPT),
        ("typer", SCRIPT),
        ("rl_training.commands.train", MODULE),
        ("rl_training.experiment.config", MODULE),
        ("torch._C", MODULE),
        ("torch.autograd", SCRIPT),
    ],
)
def test_an_interrupt_inside_any_import_is_one_line(tmp_path: Path, module: str, start: str) -> None:
    """Before the command line is there, inside it, and inside torch, whose import fails in several ways where something is raised."""
    command = "train", "dqn", "--env", "CartPole-v1", "--output-dir", str(tmp_path / "runs")
    done = interrupted_while_importing(module, *command, start=start)
    assert (done.returncode, done.stderr) == (130, "interrupted\n") and not (tmp_path / "runs").exists()


def test_the_console_script_starts_where_an_interrupt_is_answered() -> None:
    project = (Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert 'rl-training = "rl_training.__main__:main"' in project


def interrupted_while_importing(module: str, *arguments: str, start: str = MODULE) -> subprocess.CompletedProcess[str]:
    code = f"""
import runpy, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # as Python starts at a terminal; in the background it may be deaf to Ctrl-C
sys.meta_path.insert(0, Interrupting())
sys.argv = ["rl-training", *sys.argv[1:]]
{start}
"""
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120, check=False)
