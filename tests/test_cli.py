"""The command line: what it does, and for everything that goes wrong the exit code, one line on stderr and nothing written."""

from __future__ import annotations

import errno
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from checkpoint_files import edit
from command_line import SMALL, Cli, Outcome
from rl_training import __version__
from rl_training.cli import COMMANDS, load_config
from rl_training.commands.output import say
from rl_training.experiment.config import SHIPPED_CONFIGS
from rl_training.experiment.registry import algorithm_names, get_algorithm_spec
from rl_training.runtime import signals, workflows
from rl_training.runtime.figures import spread

# What it does


def test_train_eval_and_resume(cli: Cli, here: Path) -> None:
    done = cli("train", "--config", "small.yaml", "--seed", "5", "--run-suffix", "mine", "--set", "algo_kwargs.batch_size=16")
    assert done.code == 0, done.err
    assert done.out.startswith("config: small.yaml\n")
    (run,) = (here / "runs").iterdir()
    assert run.name.startswith("dqn__CartPole-v1__seed5__") and run.name.endswith("__mine")
    resolved = load_config(run / "config.yaml")
    assert resolved.seed == 5 and resolved.algo_kwargs["batch_size"] == 16
    assert {"step_50", "step_100", "step_120", "latest", "best"} <= {entry.name for entry in (run / "checkpoints").iterdir()}

    evaluated = cli("eval", "--checkpoint", str(run), "--episodes", "3")
    assert cli("eval", "--checkpoint", str(run), "--num-episodes", "3") == evaluated
    assert evaluated.code == 0, evaluated.err
    assert cli("eval", "--checkpoint", str(run), "--episodes", "3", "--device", "cpu") == evaluated
    for unknown in ("gpu", "meta", "cpu:7"):
        refused = cli("eval", "--checkpoint", str(run), "--device", unknown)
        assert (refused.code, refused.err) == (2, f"error: device '{unknown}' is unknown; use auto, cpu, cuda, cuda:<number> or mps\n")
    as_json = cli("eval", "--checkpoint", str(run), "--episodes", "3", "--json")
    figures = json.loads(as_json.out)
    assert figures["eval_episodes"] == 3 and figures["eval_return_mean"] > 0
    shown = dict(line.split(maxsplit=1) for line in evaluated.out.splitlines())
    assert shown["policy"] == "dqn on CartPole-v1, seed 5, step 120" and shown["episodes"] == "3, greedy"
    assert shown["return"].startswith(spread(figures["eval_return_mean"], figures["eval_return_std"])) and set(shown) == {
        "policy",
        "episodes",
        "return",
        "length",
    }

    resumed = cli("resume", "--checkpoint", str(run / "checkpoints" / "latest"), "--total-timesteps", "150", "--quiet")
    assert resumed.code == 0, resumed.err
    assert resumed.out.strip().endswith(f"{run.name}/checkpoints/step_150")
    # as a shell completes the path: not a copy, which would go on in a new run inside of this one's checkpoints
    resumed = cli("resume", "--checkpoint", f"{run / 'checkpoints'}/", "--total-timesteps", "160", "--quiet")
    assert resumed.out.strip().endswith(f"{run.name}/checkpoints/step_160") and list((here / "runs").iterdir()) == [run]
    assert [entry.name for entry in (here / "runs").iterdir()] == [run.name]


@pytest.mark.parametrize("row", algorithm_names())
def test_every_row_trains_from_its_shipped_config(cli: Cli, row: str) -> None:
    """Few steps: that each config reaches its return is the benchmark's to show."""
    small = {"learning_starts": 20, "batch_size": 4, "train_frequency": 8, "gradient_steps": 1, "buffer_capacity": 500}
    small |= {"num_steps": 4, "minibatch_size": 8}  # on-policy rows
    known = get_algorithm_spec(row).settings.model_fields
    texts = [f"algo_kwargs.{key}={value}" for key, value in small.items() if key in known]
    sets = [part for text in (*texts, "eval_episodes=1") for part in ("--set", text)]
    done = cli("train", "--config", f"configs/{row}/cartpole.yaml", "--total-timesteps", "60", "--num-envs", "2", "--quiet", *sets)
    assert done.code == 0, done.err
    evaluated = cli("eval", "--checkpoint", done.out.strip(), "--episodes", "1")
    assert evaluated.code == 0, evaluated.err


def test_a_shipped_config_is_named_when_it_is_used(cli: Cli) -> None:
    outcome = cli("train", "--config", "dqn/cartpole.yaml", "--total-timesteps", "5", "--num-envs", "2", "--output-dir", "out")
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith(f"config: {SHIPPED_CONFIGS / 'dqn' / 'cartpole.yaml'}\n")
    (run,) = Path("out").iterdir()
    assert load_config(run / "config.yaml").num_envs == 2


def test_quiet_prints_only_where_the_checkpoint_is(cli: Cli) -> None:
    outcome = cli("train", "--config", "small.yaml", "--quiet")
    assert outcome.code == 0
    assert outcome.err == ""
    assert len(outcome.out.splitlines()) == 1 and Path(outcome.out.strip(), "manifest.json").is_file()


def test_a_checkpoint_knows_how_it_was_made(trained: Path) -> None:
    assert "command" in json.loads((trained / "metadata.json").read_text())


def test_algos_fits_the_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = cli("algos").out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[2:] if not line.startswith(" ")] == list(algorithm_names())
    for name in algorithm_names():  # nothing is cut off: every word of every cell stands in the table
        spec = get_algorithm_spec(name)
        assert set(f"{spec.summary} {', '.join(spec.parts)} {spec.paper}".split()) <= set(" ".join(lines).split())


def test_algos_configs_version_and_help(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    algos = cli("algos")
    assert algos.code == 0
    header, _, *rows = algos.out.splitlines()
    assert header.split("  ")[0].strip() == "algo" and [line.split()[0] for line in rows] == list(algorithm_names())
    (rainbow,) = (line for line in rows if line.startswith("rainbow_dqn"))
    assert "categorical head, dueling, noisy, double_q, prioritized, n_step >= 2  arXiv:1710.02298" in rainbow
    assert cli("configs", "list") == cli("configs")
    headings = [line for line in cli("configs").out.splitlines() if line and not line.startswith(" ")]
    # a game stands once, by its id: two have a Breakout, and Pong is one game in every protocol
    assert {"ALE/Pong-v5", "ALE/Breakout-v5", "MinAtar/Breakout-v1"} <= set(headings) and not {"Pong", "Breakout"} & set(headings)
    shown = cli("configs", "show", "configs/dqn/cartpole.yaml")
    assert shown.code == 0 and yaml.safe_load(shown.out)["algo"] == "dqn" and str(SHIPPED_CONFIGS) in shown.out
    assert cli("--version") == Outcome(0, f"rl-training {__version__}\n", "")
    for arguments in ((), ("--help",)):
        helped = cli(*arguments)
        assert helped.code == 0 and all(word in helped.out for word in ("train", "resume", "eval", "predict", "algos", "configs", "doctor"))


def test_load_config_is_here_too() -> None:
    from rl_training.experiment.config import load_config as defined

    assert load_config is defined


def test_python_m_rl_training(here: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "rl_training", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"rl-training {__version__}\n")


# Bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--set", "algo_kwargs.batchsize=64"],
            "--set algo_kwargs.batchsize=64: algo_kwargs.batchsize is not a key of dqn; did you mean batch_size?",
        ),
        (
            ["--set", "algo_kwargs.batch_size='64'"],
            "--set algo_kwargs.batch_size='64': algo_kwargs.batch_size must be an integer, got '64'",
        ),
        (["--set", "algo_kwargs.gamma=2"], "--set algo_kwargs.gamma=2: algo_kwargs.gamma must be <= 1.0, got 2"),
        (["--set", "algo_kwargs.v_min=2"], "--set algo_kwargs.v_min=2: algo_kwargs.v_min needs head: categorical"),
        (["--set", "algo=dqnn"], "--set algo=dqnn: algo 'dqnn' is unknown; did you mean dqn?"),
        (
            ["--set", "learning_rate=1"],
            "--set learning_rate=1: learning_rate is not a key of a config; did you mean algo_kwargs.learning_rate?",
        ),
        (["--set", "batch_size"], "--set batch_size: must be KEY=VALUE, such as algo_kwargs.batch_size=64"),
        (["--set", "seed=[1"], "--set seed=[1: line 1, column 3: expected ',' or ']', but got '<stream end>'"),
        (["--set", "seed.x=1"], "--set seed.x=1: seed holds no keys"),
        (["--seed", "-1"], "--seed -1: seed must be >= 0, got -1"),
        (["--total-timesteps", "0"], "--total-timesteps 0: total_timesteps must be >= 1, got 0"),
        (["--num-envs", "0"], "--num-envs 0: num_envs must be >= 1, got 0"),
        (["--device", "tpu"], "--device tpu: device must be auto, cpu, cuda, cuda:<number> or mps, got 'tpu'"),
        (["--set", "env_id=CartPol-v1"], "did you mean CartPole-v1?"),
        (["--set", "env_id=no_such_module_here:Env-v0"], "no_such_module_here"),
        (["--set", "env_id=Pendulum-v1"], "dqn"),  # a continuous action space: the row and the space are named
        (["--set", "env_kwargs.wrappers=[no_such_wrapper]"], "no_such_wrapper"),
        (["--set", "algo_kwargs.buffer_capacity=1000000000000000"], ""),
        (["--output-dir", "small.yaml"], "output_dir small.yaml: no run can be made there"),
        (["--bogus"], "No such option: --bogus"),
        (["--seed", "x"], "Invalid value for '--seed'"),
        (["--seeds", "1,x"], "--seeds 1,x: must be such as 1,2,3 or 1-5"),
        (["--seeds", "3-1"], "--seeds 3-1: must be such as 1,2,3 or 1-5"),
        (["--seeds", ""], "--seeds : must be such as 1,2,3 or 1-5"),
        (["--seeds", "1-2,2"], "--seeds 1-2,2: names a seed twice"),
        (["--seeds", "0-99999999"], "more than 1000 seeds"),
        (["--seeds", "1,99999999999999999999"], "--seeds 1,99999999999999999999: seed must be < 9223372036854775808"),
        (["--seeds", "1", "--seed", "2"], "--seed and --seeds: give one of them"),
        (["--jobs", "2"], "--jobs: says how many of --seeds run side by side, and there are none"),
        (["--seeds", "1,2", "--jobs", "0"], "Invalid value for '--jobs'"),
        (["--seeds", "1,2", "--set", "algo_kwargs.gamma=2"], "algo_kwargs.gamma must be <= 1.0, got 2"),
        (["--track", "wandbb"], "--track wandbb: trackers has no 'wandbb'; did you mean wandb?"),
        (["--set", "trackers=[{wandb: {projekt: x}}]"], "trackers.wandb.projekt is not an argument of wandb; did you mean project?"),
        (["--set", "trackers=[3]"], "trackers must be a list of names or {name: {arguments}}, got 3"),
        (["--set", "trackers=[mlflow, mlflow]"], "trackers names each tracker once, got mlflow, mlflow"),
        (["--set", "vectorization=threads"], "vectorization must be one of 'auto', 'sync', 'async' or 'native', got 'threads'"),
        (["--set", "vectorization=native", "--set", "env_id=Acrobot-v1"], "Acrobot-v1 has no native vector form"),
        (["stray"], "stray"),
    ],
)
def test_bad_input_to_train(cli: Cli, arguments: Sequence[str], message: str) -> None:
    line = cli.refused("train", "--config", "small.yaml", *arguments)
    assert line.startswith("error: ")
    assert message in line


@pytest.mark.parametrize("change", ["env_id=Nothing-v0", "env_id=Pendulum-v1", "env_kwargs.nothing=1"])
def test_what_is_refused_is_told_alone(cli: Cli, change: str) -> None:
    never_learns = ("--set", "algo_kwargs.learning_starts=1000", "--total-timesteps", "40")
    assert cli.refused("train", "--config", "small.yaml", "--quiet", *never_learns, "--set", change).startswith("error: ")


def test_device_that_is_not_there(cli: Cli) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    for device in ("cuda", *(() if torch.backends.mps.is_available() else ("mps",))):
        assert device in cli.refused("train", "--config", "small.yaml", "--device", device)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("algo: dqn\nalgo: dqn\n", "error: bad.yaml: line 2, column 1: algo is given twice"),
        ("algo: [dqn\n", "error: bad.yaml: line 2, column 1: expected ',' or ']', but got '<stream end>'"),
        ("", "error: bad.yaml: is empty; it must hold keys and values, such as `algo: dqn`"),
        ("algo: dqn\n", "error: bad.yaml: env_id is missing (and 3 more)"),
        (
            yaml.safe_dump({**SMALL, "algo": "double_dqn", "algo_kwargs": {"double_q": False}}),
            "error: bad.yaml: algo_kwargs.double_q is true in every double_dqn (that is what it is), got False",
        ),
    ],
)
def test_bad_files(cli: Cli, text: str, message: str) -> None:
    Path("bad.yaml").write_text(text)
    assert cli.refused("train", "--config", "bad.yaml") == message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "error: what to train is missing (train dqn --env CartPole-v1, or train --config dqn/cartpole)"),
        (["train", "--config", "nothing.yaml"], "error: nothing.yaml: no such config, here or among the shipped ones"),
        (["train", "--config", "."], "error: .: is a folder, not a config"),
        (["bogus"], "error: No such command 'bogus'. (see --help)"),
        (["eval", "--seed", "3"], "error: Missing option '--checkpoint'. (see --help)"),
        (["eval", "runs/mine"], "error: Missing option '--checkpoint'. Did you mean --checkpoint runs/mine? (see --help)"),
        (["--import", "json", "resume", "mine"], "error: Missing option '--checkpoint'. Did you mean --checkpoint mine? (see --help)"),
        (["import-sb3", "model.zip"], "error: Missing option '-o' / '--output'. (see --help)"),
        (["eval", "--checkpoint", "nothing"], "error: nothing: no such checkpoint"),
        (["resume", "--checkpoint", "nothing"], "error: nothing: no such checkpoint"),
        (["eval", "--checkpoint", "small.yaml"], "error: small.yaml: neither a checkpoint nor a run's directory"),
        (["eval", "--checkpoint", ".", "--episodes", "0"], "error: Invalid value for '--episodes'"),
        (["configs", "show", "nothing"], "error: nothing: no such config"),
        (["configs", "bogus"], "error: No such command 'bogus'. (see --help)"),
        (["configs", "copy", "nothing"], "error: nothing: no such config"),
        (["configs", "copy", "small.yaml", "small.yaml"], "error: small.yaml: exists already (--force writes over it)"),
        (["configs", "copy", "small.yaml", "no/such/folder.yaml"], "error: no/such/folder.yaml: cannot be written"),
        (["predict", "--checkpoint", "nothing", "[0]"], "error: nothing: no such checkpoint"),
        (["predict", "--checkpoint", ".", "--input", "small.yaml", "[0]"], "error: --input and observations as arguments: give one"),
        (["doctor", "--seconds", "-1"], "error: Invalid value for '--seconds'"),
        (["--import", "no_such_module_here", "algos"], "error: --import no_such_module_here: No module named 'no_such_module_here'"),
        (["--import", ".", "algos"], "error: --import .: cannot be imported: TypeError"),
        (["--import", "", "algos"], "error: --import : cannot be imported: ValueError: Empty module name"),
    ],
)
def test_bad_commands(cli: Cli, arguments: Sequence[str], message: str) -> None:
    assert cli.refused(*arguments).startswith(message)


def test_bad_checkpoints(cli: Cli, trained: Path) -> None:
    checkpoint = trained / "checkpoints" / "latest"
    whole = (checkpoint / "model.safetensors").read_bytes()
    assert "is absolute" in cli.refused("resume", "--checkpoint", str(trained), "--total-timesteps", "60")
    for command in ("eval", "resume"):
        (checkpoint / "model.safetensors").write_bytes(pickle.dumps({"weight": 1}))
        assert "model.safetensors: is damaged" in cli.refused(command, "--checkpoint", str(trained))
        edit(checkpoint)
        assert "model.safetensors: not a whole safetensors file" in cli.refused(command, "--checkpoint", str(trained))
        (checkpoint / "model.safetensors").write_bytes(whole[:-3])
        edit(checkpoint)
        assert "model.safetensors: not a whole safetensors file" in cli.refused(command, "--checkpoint", str(trained))
        (checkpoint / "model.safetensors").write_bytes(whole)
        edit(checkpoint)
    edit(checkpoint, lambda manifest: manifest.update(algo="double_dqn"))
    assert "algo is 'double_dqn', but its config says otherwise" in cli.refused("eval", "--checkpoint", str(trained))
    edit(checkpoint, lambda manifest: manifest.update(algo="dqn", format_version=9))
    assert "a newer rl_training wrote it" in cli.refused("resume", "--checkpoint", str(trained))
    # A config that asks for another network than the file holds
    edit(checkpoint, lambda manifest: manifest.update(format_version=2))
    edit(checkpoint, lambda manifest: manifest["config"]["algo_kwargs"].update(hidden_sizes=[9]))
    for command in ("eval", "resume"):
        cli.refused(command, "--checkpoint", str(trained))


# Failures and signals

FAILING = """
import gymnasium as gym
import numpy as np

class Failing(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, raises=False):
        self.raises, self.steps = raises, 0

    def reset(self, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps > 70:
            if self.raises:
                raise ZeroDivisionError("the physics broke")
            return np.full(2, np.nan, np.float32), 0.0, False, False, {}
        return np.zeros(2, np.float32), 0.0, self.steps % 10 == 0, False, {}

gym.register("Failing-v0", Failing)
"""


@pytest.mark.parametrize(("raises", "message"), [("false", "not finite"), ("true", "ZeroDivisionError: the physics broke")])
def test_an_environment_that_fails(cli: Cli, monkeypatch: pytest.MonkeyPatch, raises: str, message: str) -> None:
    Path("failing_env.py").write_text(FAILING)
    monkeypatch.syspath_prepend(".")
    arguments = [
        "train",
        "--config",
        "small.yaml",
        "--quiet",
        "--set",
        "env_id=failing_env:Failing-v0",
        "--set",
        f"env_kwargs.raises={raises}",
    ]
    line = cli.refused(*arguments, code=1)
    assert line.startswith("error: environment 0 ")
    assert message in line and "step 1 of its episode 7" in line  # 70 good steps are seven episodes of ten
    (run,) = Path("runs").iterdir()
    from rl_training.experiment.checkpointing import open_checkpoint

    assert open_checkpoint(run).step == 50
    open_checkpoint(run).load_training()


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_then_leaves(here: Path, signum: signal.Signals, code: int) -> None:
    # So many steps would be worth compiling for, which takes longer than the deadline on a busy machine.
    arguments = ["train", "--config", "small.yaml", "--total-timesteps", "100000000", "--set", "compile=false"]
    process = subprocess.Popen(
        [sys.executable, "-m", "rl_training", *arguments], cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not list(here.glob("runs/*/checkpoints/latest")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signum)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert err.splitlines()[-1].startswith("interrupted: ")
    assert "Traceback" not in err
    (latest,) = here.glob("runs/*/checkpoints/latest")
    assert os.readlink(latest) in err.splitlines()[-1]  # the checkpoint it saved is the one it names


def test_a_copy_that_does_not_fit_on_the_disk_leaves_nothing(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert cli.refused("configs", "copy", "dqn/cartpole", "mine.yaml") == "error: mine.yaml: cannot be written (No space left on device)"


def test_a_file_in_the_place_of_the_output_directory_is_said(cli: Cli) -> None:
    line = cli.refused("train", "--config", "small.yaml", "--output-dir", "small.yaml", "--quiet")
    assert line == "error: output_dir small.yaml: no run can be made there (Not a directory)"


def test_the_first_help_has_every_command_in_a_whole_sentence(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    listed = cli().out.split("Commands:\n")[1].splitlines()
    assert len(listed) == len(COMMANDS) + 1 and all(line.endswith(".") and not line.endswith("...") for line in listed)


def test_ctrl_c_outside_of_a_run_is_said(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflows, "train", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    assert cli.refused("train", "--config", "small.yaml", "--quiet", code=130) == "interrupted"
    monkeypatch.setattr("typer.main.get_command", lambda _: signal.raise_signal(signal.SIGINT))  # before there is a command at all
    assert cli.refused("algos", code=130) == "interrupted"


def test_an_interrupt_that_a_library_has_made_of_it_is_said(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:  # as Ray does where it waits: its own handler, its own error
        raise KeyboardInterrupt

    monkeypatch.setattr(workflows, "train", interrupted)
    assert cli.refused("train", "--config", "small.yaml", "--quiet", code=130) == "interrupted"


def test_ctrl_c_again_and_again_while_the_command_is_leaving_changes_nothing(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        with signals.listening():
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                again()

    def again() -> None:
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)

    def say_slowly(*words: Any) -> None:  # what takes time on the way out
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)
        say(*words)

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(workflows, "train", interrupted)
    monkeypatch.setattr("rl_training.cli.say", say_slowly)
    outcome = cli("train", "--config", "small.yaml", "--quiet")
    assert outcome.code == 130
    assert outcome.err.splitlines() == ["interrupted: before anything was changed"]
    assert signal.getsignal(signal.SIGINT) is before
