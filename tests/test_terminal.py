"""What a terminal shows, at 80 and 120 columns: lines that fit, the time left, a line per run, and what to type next."""

from __future__ import annotations

import io
import json
import math
import os
import pickle
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from rich.console import Console

from command_line import Cli
from rl_training.commands.following import after_training, to_go_on
from rl_training.commands.side_by_side import SideBySide
from rl_training.errors import Interrupted
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import algorithm_names
from rl_training.ledger.display import Display
from rl_training.runtime import workflows
from rl_training.runtime.figures import evaluated, figure, spread
from rl_training.runtime.progress import Progress, ProgressFile
from rl_training.runtime.progress_line import duration, fitted
from rl_training.runtime.run import TrainResult
from rl_training.runtime.seeds import SeedRun
from test_dqn_trainer_smoke import smoke_config

FULL: dict[str, Any] = {"name": "seed 12", "rate": 12_345.6, "return": "-123.4", "epsilon": "0.05", "evaluation": "-500.0 ± 123.4"}
LARGE = 123_456_789, 1_000_000_000


def terminal(width: int) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None, legacy_windows=False)


def written(console: Console) -> list[str]:
    file = console.file
    assert isinstance(file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue()).replace("\r", "\n").split("\n")


@pytest.mark.parametrize(("seconds", "shown"), [(0.2, "0:00"), (59.6, "1:00"), (754, "12:34"), (3_600, "1:00:00"), (90_061, "25:01:01")])
def test_durations(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 120, 200])
@pytest.mark.parametrize("done_of", [(0, 100), (1_234, 50_000), LARGE, (7, 7)])
def test_a_line_fits_and_says_what_is_left(width: int, done_of: tuple[int, int]) -> None:
    line = fitted(*done_of, FULL, width).plain
    assert len(line) <= width
    assert line.endswith(" left" if done_of[0] < done_of[1] else "done")


def test_what_matters_least_goes_first() -> None:
    whole = fitted(1_234, 50_000, FULL, 200).plain
    assert whole == f"seed 12  {'━' * 24}  1,234/50,000  12,346/s  return -123.4  ε 0.05  eval -500.0 ± 123.4  0:04 left"
    narrow = fitted(1_234, 50_000, FULL, 80).plain
    assert [word for word in ("ε", "/s", "eval", "return", "seed") if word in narrow] == ["eval", "return", "seed"]
    assert fitted(1_234, 50_000, FULL, 31).plain == "━━━━━━  1,234/50,000  0:04 left"
    assert fitted(10, 100, {}, 80).plain.endswith("10/100  -:-- left")  # no rate yet


@pytest.mark.parametrize("width", [80, 120])
def test_the_bar_of_a_run_fits_and_shows_the_time_left(width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    console = terminal(width)
    monkeypatch.setattr("rl_training.runtime.progress.REFRESH_SECONDS", 0.0)
    config = smoke_config(tmp_path, total_timesteps=120, eval_interval=50)
    workflows.train(config, callbacks=[Progress(console)])
    lines = written(console)
    bars = [line for line in lines if "━" in line]
    assert bars and all(len(line) <= width for line in bars)
    assert all(line.rstrip().endswith((" left", "done")) for line in bars)
    assert any("eval" in line and "return" in line for line in bars)
    resumed = terminal(width)
    workflows.resume_training(next(tmp_path.iterdir()), total_timesteps=1_200, callbacks=[Progress(resumed)])
    assert written(resumed)[0].startswith("dqn on CartPole-v1, seed 5, steps 120 to 1,200 on cpu")


@pytest.mark.parametrize(
    "kind", [{"force_terminal": False}, {"force_terminal": True, "_environ": {"TERM": "dumb"}}], ids=["a pipe", "a dumb terminal"]
)
def test_plain_lines_fit_80_columns(tmp_path: Path, kind: dict[str, Any]) -> None:
    """Where no line can be written again in its place, a bar would be shown once, at the end."""
    console = Console(file=io.StringIO(), width=80, **kind)
    workflows.train(smoke_config(tmp_path, total_timesteps=120, log_interval=50), callbacks=[Progress(console)])
    lines = [line for line in written(console) if line.startswith("step") and "/s" in line]
    assert lines and all(re.fullmatch(r"step [\d,]+/120  .*\d+:\d\d left", line) and len(line) <= 80 for line in lines)


@pytest.mark.parametrize(("chosen", "told"), [({}, True), ({"torso": "minatar"}, False)], ids=["auto", "as configured"])
def test_a_torso_that_the_images_size_chose_is_told(tmp_path: Path, chosen: dict[str, Any], told: bool) -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=False)
    config = smoke_config(tmp_path, env_id="MinAtar/Breakout-v1", total_timesteps=20, algo_kwargs=chosen)
    workflows.train(config.replace(eval_max_steps=5, eval_interval=0), callbacks=[Progress(console)])
    assert any(line.startswith("torso: minatar (") for line in written(console)) == told


def test_a_suite_says_how_many_runs_and_how_long() -> None:
    console = terminal(80)
    plan: Any = type("Plan", (), {"name": "dqn__cartpole__seed1", "config": type("C", (), {"total_timesteps": 50_000})})
    with Display(20, 1_000_000, console=console) as display:
        display.started(plan)
        display.stepped(plan, 1_000)
    bars = [line for line in written(console) if "━" in line]
    assert bars and all(len(line) <= 80 and line.rstrip().endswith("left") and "0/20 runs" in line for line in bars)


# Side by side


def test_each_run_has_a_line_while_it_is_under_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    console = terminal(80)
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 9, "eval/mean_reward": 0.125}) + "\n")
    with SideBySide(quiet=False, console=console) as shown:
        for seed in (1, 2):
            shown.started(seed)
        for done in (10, 20):
            shown.stepped(1, {"completed": done, "total": 50_000, "return": "12.5", "epsilon": "1.00"})
        shown._lines.refresh()
        frame = [line for line in written(console) if line.startswith("seed")][-2:]
        shown.ended(SeedRun(1, 0, tmp_path / "checkpoints" / "step_9", ""))
        shown._lines.refresh()
    assert frame[0].startswith("seed 1  ") and "20/50,000" in frame[0] and "return 12.5" in frame[0] and frame[0].rstrip().endswith("left")
    assert frame[1].startswith("seed 2  ") and max(map(len, frame)) <= 80
    assert capsys.readouterr().out == f"seed 1: greedy return 0.125, {tmp_path / 'checkpoints' / 'step_9'}\n"


def test_a_run_tells_how_far_it_is_through_a_file(tmp_path: Path) -> None:
    file = tmp_path / "progress.json"
    workflows.train(smoke_config(tmp_path, total_timesteps=60), callbacks=[ProgressFile(file)])
    told = json.loads(file.read_text())
    assert told["total"] == 60 and 1 <= told["completed"] <= 60 and told["epsilon"] == "1.00"


# Tables


@pytest.mark.parametrize("columns", [80, 120])
def test_tables_fit(columns: int, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for command in (["algos"], ["configs"], ["doctor", "--seconds", "0"]):
        lines = cli(*command).out.splitlines()
        assert len(lines) > 5 and max(map(len, lines)) <= columns, max(lines, key=len)


# What to type next


def test_after_training_it_says_what_to_type_next(cli: Cli) -> None:
    done = cli("train", "--config", "small.yaml", "--run-suffix", "it's")
    assert done.code == 0
    following = done.out.split("next:\n")[1].splitlines()
    assert [line.split()[:2] for line in following] == [["rl-training", "eval"], ["rl-training", "eval"], ["rl-training", "resume"]]
    assert cli(*shlex.split(following[0])[1:], "--episodes", "1").code == 0
    assert cli(*shlex.split(following[2])[1:], "--quiet").out.strip().endswith("step_240")
    assert "next:" not in cli("train", "--config", "small.yaml", "--quiet").out


def test_what_it_says_to_type_next_says_what_that_needs(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)  # as after `make train`, which installs no extra
    following = cli("train", "--config", "small.yaml").out.split("next:\n")[1].splitlines()
    assert [line.partition("  # ")[2] for line in following] == ["", "first: pip install 'rl-training[video]'", ""]


def ended(run: Path, *, at: int, **changes: Any) -> TrainResult:
    values = {"algo": "dqn", "env_id": "CartPole-v1", "seed": 1, "total_timesteps": 100, "output_dir": "runs", **changes}
    (run / "config.yaml").write_text(json.dumps(values))
    return TrainResult(run, run / "checkpoints" / f"step_{at}", {"global_step": at})


@pytest.mark.parametrize(
    ("changes", "imports", "evaluate", "resume"),
    [
        ({}, [], "rl-training eval", "rl-training resume"),
        ({"env_id": "popgym:popgym-RepeatPreviousEasy-v0"}, [], "rl-training eval", "rl-training resume"),
        ({"env_id": "mine:My-v0"}, [], "rl-training --import mine eval", "rl-training --import mine resume"),
        ({"env_id": "mine:My-v0"}, ["rows", "mine"], *(f"rl-training --import rows --import mine {name}" for name in ("eval", "resume"))),
        ({"actors": 2, "ray_address": "gpu-host:6379"}, [], "rl-training eval", "rl-training resume --ray-address gpu-host:6379"),
    ],
)
def test_a_command_to_type_says_what_a_file_does_not_decide(
    changes: dict[str, Any], imports: list[str], evaluate: str, resume: str, tmp_path: Path
) -> None:
    lines = after_training(ended(tmp_path, at=50, **changes), imports)
    assert [line.partition(" --checkpoint ")[0] for line in (lines[0], lines[-1])] == [evaluate, resume]
    assert to_go_on(tmp_path, imports) == f"{resume} --checkpoint {tmp_path}"


class Wrapped(gym.Wrapper[Any, Any, Any, Any]):
    """Registered itself: a class without metadata of its own."""


class Silent(gym.Env[Any, Any]):
    metadata = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("env_id", "recorded"),
    [
        ("CartPole-v1", True),
        ("rl_training/Chain-v0", False),
        ("rl_training/TMaze-v0", False),
        ("Gone-v0", False),
        ("Made-v0", True),
        ("Wrapped-v0", False),
        ("Silent-v0", False),
    ],
)
def test_only_what_can_be_seen_is_to_be_recorded(env_id: str, recorded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = gym.envs.registration.EnvSpec("Made-v0", entry_point=lambda **_: gym.make("CartPole-v1"))  # which says nothing of itself
    monkeypatch.setitem(gym.registry, "Made-v0", made)
    for kind in (Wrapped, Silent):
        spec = gym.envs.registration.EnvSpec(f"{kind.__name__}-v0", entry_point=kind)  # type: ignore[arg-type]
        monkeypatch.setitem(gym.registry, spec.id, spec)
    lines = after_training(ended(tmp_path, at=50, env_id=env_id), [])
    assert [("--record" in line) for line in lines] == ([False, True, False] if recorded else [False, False])


@pytest.mark.parametrize(
    ("at", "changes", "more"),
    [
        (50_004, {"total_timesteps": 50_000}, ["--total-timesteps", "100000"]),  # 8 environments went over by 4
        (40_960, {"total_timesteps": 40_960}, ["--total-timesteps", "82000"]),
        (7, {"total_timesteps": 7}, ["--total-timesteps", "14"]),
        (30_000, {"total_timesteps": 100_000}, []),  # a callback ended it: on to its own total
        (600, {"total_timesteps": 600, "schedule_timesteps": 1_000}, []),  # resumed to a nearer end than the one it began with
        (
            100,
            {"algo_kwargs": {"lr_schedule": "linear"}},
            ["--total-timesteps", "200", "--extend-schedule"],
        ),  # else nothing is learned
    ],
)
def test_what_trains_on_is_a_round_longer_total_or_the_runs_own(at: int, changes: dict[str, Any], more: list[str], tmp_path: Path) -> None:
    resume = after_training(ended(tmp_path, at=at, **changes), [])[-1]
    assert shlex.split(resume) == ["rl-training", "resume", "--checkpoint", str(tmp_path), *more]


def test_after_several_seeds_the_next_thing_is_to_compare_them(cli: Cli) -> None:
    done = cli("train", "--config", "small.yaml", "--seeds", "1,2", "--output-dir", "two seeds")
    assert done.out.count("checkpoint: ") == 2 and done.out.count("next:\n") == 1
    assert done.out.endswith("over 2 seeds\nnext:\n  rl-training report 'two seeds' -o report.html\n")
    assert cli(*shlex.split(done.out.splitlines()[-1])[1:]).out.startswith("report.html: 2 runs")
    assert "rl-training resume" in cli("train", "--config", "small.yaml", "--seeds", "3").out  # of one it says the same as without --seeds


def test_an_interrupt_says_which_seeds_were_not_started(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    train = workflows.train

    def leave(config: TrainConfig, **options: Any) -> Any:
        if config.seed == 2:
            raise Interrupted("interrupted at step 9", signum=2)
        return train(config, **options)

    monkeypatch.setattr(workflows, "train", leave)
    outcome = cli("train", "--config", "small.yaml", "--seeds", "1-4", "--quiet")
    assert outcome.code == 130 and outcome.out.endswith("step_120\n")
    assert outcome.err.splitlines() == ["seed 3: was not started", "seed 4: was not started", "interrupted: at step 9"]


def test_modules_that_a_command_imports_are_imported_by_the_next(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and environments that they register are not there in a new shell."""
    Path("my_rows.py").write_text("")
    done = cli("--import", "my_rows", "train", "--config", "small.yaml")
    following = [shlex.split(line) for line in done.out.split("next:\n")[1].splitlines()]
    assert [line[:4] for line in following] == [["rl-training", "--import", "my_rows", name] for name in ("eval", "eval", "resume")]
    assert cli(*following[2][1:], "--quiet").code == 0


def test_after_an_interrupt_it_says_how_to_go_on(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(config: TrainConfig, **_: Any) -> Any:
        raise Interrupted("interrupted at step 9; saved x", signum=2, run_dir=Path("runs/a b"))

    monkeypatch.setattr(workflows, "train", leave)
    outcome = cli("train", "--config", "small.yaml")
    assert outcome.code == 130
    assert "go on with: rl-training --import json resume --checkpoint" in cli("--import", "json", "train", "--config", "small.yaml").err
    assert outcome.err == "interrupted: at step 9; saved x; go on with: rl-training resume --checkpoint 'runs/a b'\n"
    error = pickle.loads(pickle.dumps(Interrupted("x", signum=15, run_dir=Path("r"))))  # ours, between our processes
    assert (error.signum, error.run_dir) == (15, Path("r"))


@pytest.mark.parametrize(
    ("value", "shown"),
    [(500.0, "500.0"), (0.98765, "0.988"), (-83.21, "-83.2"), (0.0, "0.0"), (1.0, "1.0"), (9.4, "9.4"), (math.nan, "nan")],
)
def test_figures(value: float, shown: str) -> None:
    assert figure(value) == shown


@pytest.mark.parametrize(
    ("mean", "deviation", "shown"),
    [
        (500.0, 0.0, "500.0 ± 0.0"),
        (58.0, 7.17, "58.0 ± 7.2"),
        (9.2, 0.748, "9.20 ± 0.75"),
        (0.931, 0.0138, "0.931 ± 0.014"),
        (0.5, 12.0, "0.5 ± 12.0"),
        (1.0, 0.0, "1.0 ± 0.0"),
        (math.nan, math.nan, "nan ± nan"),
    ],
)
def test_a_figure_and_its_spread_have_the_same_decimals(mean: float, deviation: float, shown: str) -> None:
    assert spread(mean, deviation) == shown
    measured = {"eval_return_mean": mean, "eval_return_std": deviation}
    assert evaluated({**measured, "eval_episodes": 20}) == f"{shown} over 20 episodes"
    assert evaluated({**measured, "eval_episodes": 1}) == f"{shown} over 1 episode"


# Shells


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("train --config dqn/cartp", ["dqn/cartpole", "dqn/cartpole_velocity_free", "dqn/cartpole_velocity_free_frame_stack"]),
        ("train --config smal", ["small.yaml"]),
        ("train rainb", [name for name in algorithm_names() if name.startswith("rainb")]),
        ("configs show ppo/pend", ["ppo/pendulum"]),
        ("eva", ["eval"]),
    ],
)
def test_a_shell_completes_what_there_is(words: str, offered: list[str], here: Path) -> None:
    count = len(words.split())
    asked = {"_RL_TRAINING_COMPLETE": "complete_bash", "COMP_WORDS": f"rl-training {words}", "COMP_CWORD": str(count)}
    command = [sys.executable, "-m", "rl_training"]
    answer = subprocess.run(command, env={**os.environ, **asked}, capture_output=True, text=True, cwd=here, check=True)
    assert answer.stdout.split() == offered
