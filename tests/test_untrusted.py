"""What a stranger's checkpoint or run can do: be refused in one line, with nothing written, imported or followed."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from checkpoint_files import edit
from command_line import Cli
from rl_training import DQN
from rl_training.errors import UserError
from rl_training.experiment.checkpoint_copy import copy_checkpoint
from rl_training.experiment.checkpointing import open_checkpoint
from rl_training.experiment.runs import RunDirectory
from rl_training.runtime.workflows import evaluate_checkpoint, resume_training


def snapshot(folder: Path) -> dict[str, bytes | str | None]:
    """Everything below `folder`, by path: contents, links' targets."""
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def refused(cli: Cli, *arguments: str) -> str:
    before = snapshot(Path())
    line = cli.refused(*arguments)
    assert snapshot(Path()) == before
    return line


def resume(cli: Cli, run: Path) -> str:
    return refused(cli, "resume", "--checkpoint", str(run), "--total-timesteps", "200")


# Code

MODULE = """
import gymnasium, pathlib
pathlib.Path("imported").touch()
gymnasium.register("Strange-v0", entry_point="gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=20)
"""


def test_a_checkpoint_imports_nothing_that_its_reader_did_not_allow(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("strange_module.py").write_text(MODULE)
    monkeypatch.delitem(sys.modules, "strange_module", raising=False)
    done = cli("train", "--config", "small.yaml", "--quiet", "--set", "env_id=strange_module:Strange-v0")
    assert done.code == 0, done.err  # whoever writes a config names their own modules
    Path("imported").unlink()
    run = Path(done.out.strip()).parent.parent
    copy_checkpoint(run, "bare")
    for path in (run, Path("bare")):
        for command in (["eval", "--episodes", "1"], ["resume", "--total-timesteps", "200"]):
            monkeypatch.delitem(sys.modules, "strange_module", raising=False)  # as in a process of its own
            line = refused(cli, command[0], "--checkpoint", str(path), *command[1:])
            assert "would import the module 'strange_module', and so run its code" in line and "--import strange_module" in line
            assert not Path("imported").exists()
    shutil.rmtree(run / "checkpoints")  # nor does a run that starts over
    assert "would import the module 'strange_module'" in resume(cli, run)
    assert cli("--import", "strange_module", "eval", "--checkpoint", "bare", "--episodes", "1").code == 0
    assert evaluate_checkpoint("bare", num_episodes=1)["eval_episodes"] == 1  # imported already


# Links and places


@pytest.mark.parametrize(
    ("name", "dangling"),
    [
        *((name, True) for name in ("metrics.jsonl", "metadata.json", "checkpoints", "wandb")),
        *((name, False) for name in ("metrics.jsonl", "metadata.json", "checkpoints", "wandb", "config.yaml")),
    ],
)
def test_nothing_is_written_through_a_link(cli: Cli, trained: Path, name: str, dangling: bool) -> None:
    victim, place = Path("victim").absolute(), trained / name
    if place.exists() and not dangling:
        shutil.move(place, victim)
    elif not dangling:
        victim.mkdir()
    elif place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
    place.symlink_to(victim)
    before = snapshot(Path())
    outcome = cli("resume", "--checkpoint", str(trained), "--total-timesteps", "200")
    assert outcome.code == 2 and len(outcome.err.splitlines()) == 1, outcome
    assert snapshot(Path()) == before


def test_a_planted_temporary_name_is_not_followed(cli: Cli, trained: Path) -> None:
    Path("victim").write_text("precious")
    for name in ("config.yaml", "metadata.json", "metrics.jsonl"):
        (trained / f".new-{name}").symlink_to(Path("victim").absolute())
    assert cli("resume", "--checkpoint", str(trained), "--total-timesteps", "140", "--quiet").code == 0
    assert Path("victim").read_text() == "precious"
    assert not list(trained.glob(".new-*"))


def test_a_checkpoint_that_is_a_link_is_not_pruned_elsewhere(cli: Cli, trained: Path) -> None:
    elsewhere = Path("elsewhere").absolute()
    shutil.copytree(open_checkpoint(trained).path, elsewhere / "step_999")
    (trained / "checkpoints" / "step_999").symlink_to(elsewhere / "step_999")
    (trained / "checkpoints" / "best").unlink()
    (trained / "checkpoints" / "best").symlink_to("step_999")
    before = snapshot(elsewhere)
    assert cli("resume", "--checkpoint", str(trained), "--total-timesteps", "140", "--quiet").code == 0
    assert snapshot(elsewhere) == before


def test_a_bare_checkpoint_goes_on_beside_itself_or_where_it_is_told(cli: Cli, trained: Path) -> None:
    Path("folder").mkdir()
    bare = copy_checkpoint(trained, "folder/bare")
    edit(bare, lambda manifest: manifest["config"].update(output_dir=str(Path("planted").absolute())))
    assert resume_training(bare, total_timesteps=140).run_dir.parent == Path("folder").absolute()
    outcome = cli("resume", "--checkpoint", str(bare), "--total-timesteps", "140", "--output-dir", "told", "--quiet")
    assert outcome.code == 0 and Path(outcome.out.strip()).is_relative_to("told")
    assert DQN.load(bare).learn(20).run_dir.parent == Path("folder").absolute()
    assert DQN.load(trained).learn(20).run_dir.parent == trained.parent.absolute()
    assert not Path("planted").exists()
    assert "belongs to the run" in refused(cli, "resume", "--checkpoint", str(trained), "--output-dir", "elsewhere")


# Read and checked before anything is written


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"trackers": 3}', '{"a": NaN}', "[" * 100_000, "\x00"])
def test_a_damaged_metadata_is_refused_before_anything_is_cut(cli: Cli, trained: Path, text: str) -> None:
    (trained / "metadata.json").write_text(text)
    assert "metadata.json: " in refused(cli, "resume", "--checkpoint", str(trained / "checkpoints" / "step_50"))


def test_a_run_killed_before_its_metadata_can_be_resumed(cli: Cli, trained: Path) -> None:
    (trained / "metadata.json").unlink()
    shutil.rmtree(trained / "checkpoints")
    (trained / "metrics.jsonl").unlink()
    assert cli("resume", "--checkpoint", str(trained), "--quiet").code == 0
    assert json.loads((trained / "metadata.json").read_text())["resume"] == "exact on the CPU"
    assert open_checkpoint(trained).step == 120


@pytest.mark.parametrize(
    "change",
    [
        {"recent": [["a", "b", "c"]]},
        {"recent": [[1, 2.0]]},
        {"recent": 3},
        {"best_mean": "high"},
        {"env_steps": 7},
        {"last_evaluation": [1]},
        {"last_metrics": {"loss": "x"}},
        {"elapsed": -1.0},
        {"logged_steps": None},
    ],
)
def test_a_damaged_memory_of_the_run_is_refused(cli: Cli, trained: Path, change: dict[str, object]) -> None:
    edit(open_checkpoint(trained).path, lambda manifest: manifest["state"]["training"]["run"].update(change))
    assert "run." in resume(cli, trained)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"obs_shape": [10**12]}, "spaces.obs_shape.0 must be <="),
        ({"obs_shape": [10**5, 10**5]}, "spaces.obs_shape must have at most"),
        ({"obs_shape": "x"}, "spaces.obs_shape must be a list"),
        ({"obs_shape": [3]}, "does not fit the network of its config"),
        ({"obs_dtype": "object"}, "spaces.obs_dtype must be one of"),
        ({"num_actions": 10**9}, "spaces.num_actions must be <="),
        ({"num_actions": 3}, "spaces.num_actions is 3, but action.n is 2"),
        ({"action": {"kind": "discrete"}}, "spaces.action n is missing"),
        ({"action": {"kind": "box", "shape": [2], "low": [1.0], "high": [2.0]}}, "as many values as shape says"),
        ({"action": None}, "spaces.action"),
    ],
)
def test_damaged_spaces_are_refused(cli: Cli, trained: Path, change: dict[str, object], message: str) -> None:
    edit(open_checkpoint(trained).path, lambda manifest: manifest["spaces"].update(change))
    for command in (["eval"], ["predict", "[0, 0, 0, 0]"]):
        assert message in refused(cli, command[0], "--checkpoint", str(trained), *command[1:])


def test_an_answer_that_is_no_number_is_none(cli: Cli, trained: Path) -> None:
    file = open_checkpoint(trained).path / "model.safetensors"
    tensors = load_file(file)
    save_file({name: torch.full_like(tensor, torch.nan) for name, tensor in tensors.items()}, file)
    edit(file.parent)
    line = refused(cli, "predict", "--checkpoint", str(trained), "[0, 0, 0, 0]")
    assert "observation 1 has no answer: what the network gives for it is not finite" in line


def test_a_network_that_does_not_fit_is_refused_before_anything_is_written(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_training.resources.available_memory", lambda device="cpu": 1 << 29)
    wide = "algo_kwargs.hidden_sizes=[16384, 16384]"
    line = refused(cli, "train", "--config", "small.yaml", "--set", wide)
    assert "training a network of 1 GiB needs 5.002 GiB on cpu, but only 512 MiB is available: make its layers smaller" in line
    long = ["--set", "algo=ppo", "--set", "algo_kwargs={num_steps: 1000000}", "--num-envs", "99", "--total-timesteps", "1000000000"]
    line = refused(cli, "train", "--config", "small.yaml", *long)
    # 99 million steps of two observations (16 bytes each), an action (8), a reward (4) and four flags: 48 bytes
    assert "a rollout of 1,000,000 steps of 99 environments needs 4.426 GiB on cpu, but only 512 MiB is available: lower num_steps" in line


# One at a time


def test_the_lock_comes_before_the_checkpoint_is_read(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = RunDirectory.held(trained)
    monkeypatch.setattr("rl_training.runtime.workflows.open_checkpoint", lambda path: pytest.fail("read before it was locked"))
    with pytest.raises(UserError, match="another process is training in this run"):
        resume_training(trained)
    held.release()
    with pytest.raises(pytest.fail.Exception, match="read before"):
        resume_training(trained)
    RunDirectory.held(trained).release()  # and whoever fails lets go


def test_a_run_that_is_refused_is_not_held_by_its_error(trained: Path) -> None:
    metadata = trained / "metadata.json"
    good = metadata.read_text()
    metadata.write_text("[]")
    with pytest.raises(UserError, match="does not hold keys and values") as kept:
        RunDirectory.held(trained)
    metadata.write_text(good)
    RunDirectory.held(trained).release()
    assert kept.tb is not None  # as a notebook keeps the last one


def test_a_forked_worker_does_not_keep_the_lock(trained: Path) -> None:
    held = RunDirectory.held(trained)
    reader, writer = os.pipe()
    started, starting = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.write(starting, b"x")
        os.read(reader, 1)  # until the parent is done
        os._exit(0)
    os.read(started, 1)
    held.release()  # as its end would
    try:
        RunDirectory.held(trained).release()
    finally:
        os.close(writer)
        os.waitpid(child, 0)
        for end in (reader, started, starting):
            os.close(end)
