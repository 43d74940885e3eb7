"""Checkpoints: whole or not at all, nothing unpickled, equal states give equal bytes, and every hostile file is refused in one line."""

from __future__ import annotations

import errno
import json
import os
import pickle
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from checkpoint_files import edit
from rl_training.errors import CheckpointError, RunError
from rl_training.experiment import checkpoint_store, checkpointing, files, state_files
from rl_training.experiment.checkpoint_copy import copy_checkpoint
from rl_training.experiment.checkpoint_store import CheckpointStore
from rl_training.experiment.checkpointing import MissingCheckpoint, open_checkpoint, with_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.files import remove
from rl_training.experiment.manifest import manifest_of
from rl_training.experiment.runs import RunDirectory
from rl_training.experiment.state_files import join_state, read_tensors, split_state, write_tensors

State = dict[str, Any]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(TrainConfig(algo="dqn", env_id="CartPole-v1", seed=0, total_timesteps=100, output_dir=str(tmp_path)))


def states(step: int) -> dict[str, Any]:
    flat = torch.arange(6.0) + step
    return {
        "model": {"weight": flat[:4].view(2, 2), "bias": flat[4:]},  # views of one tensor, as the networks' parameters are
        "training": {"target": {"weight": flat}, "best": float("-inf"), "updates": step},
        "replay": {"obs": torch.zeros(step + 1, 4), "rng": {"state": 2**100, "name": "PCG64"}},
    }


def save(store: CheckpointStore, run: RunDirectory, step: int, **changes: Any) -> Path:
    return store.save(step, **{**states(step), "manifest": manifest_of(run.config), **changes})


@pytest.fixture
def store(run: RunDirectory) -> CheckpointStore:
    return CheckpointStore(run.checkpoints, keep=2)


def names(run: RunDirectory) -> set[str]:
    return {entry.name for entry in run.checkpoints.iterdir()}


# States as two halves


def test_every_kind_of_value_survives(tmp_path: Path) -> None:
    flat = torch.arange(12.0)
    state: State = {
        "view": flat[:4].view(2, 2),
        "transposed": flat.view(3, 4).T,
        "same": [flat, flat],
        "empty": torch.zeros(0, 3),
        "zero_dim": torch.tensor(3),
        "bool": torch.tensor([True, False]),
        "bytes": torch.arange(4, dtype=torch.uint8),
        "half": torch.ones(2, dtype=torch.bfloat16),
        "array": np.arange(3, dtype=np.int64),
        "array_zero_dim": np.array(5.0),
        "reversed": np.arange(6.0).reshape(2, 3)[::-1],
        "nested": {"list": [1, {"t": torch.ones(1)}, None], "text": "a/b"},
        "scalars": [np.float32(0.1), np.int64(7), np.bool_(True), True, 1e-300, 2**127, -1],
        "strange": [float("nan"), float("inf"), float("-inf")],
        "nothing": {},
    }
    tree, tensors = split_state(state)
    write_tensors(tmp_path / "x.safetensors", tensors)
    back = join_state(json.loads(json.dumps(tree, allow_nan=False)), read_tensors(tmp_path / "x.safetensors"), source="x")
    assert back.keys() == state.keys()
    for key in ("view", "transposed", "empty", "zero_dim", "bool", "bytes", "half"):
        assert torch.equal(back[key], state[key]) and back[key].dtype == state[key].dtype and back[key].shape == state[key].shape
    for key in ("array", "array_zero_dim", "reversed"):
        assert isinstance(back[key], torch.Tensor) and back[key].shape == state[key].shape
        np.testing.assert_array_equal(back[key].numpy(), state[key])
    assert torch.equal(back["same"][0], flat) and torch.equal(back["same"][1], flat)
    assert (
        back["nested"]["list"][0] == 1 and torch.equal(back["nested"]["list"][1]["t"], torch.ones(1)) and back["nested"]["list"][2] is None
    )
    assert back["nested"]["text"] == "a/b" and back["nothing"] == {}
    assert back["scalars"] == [float(np.float32(0.1)), 7, True, True, 1e-300, 2**127, -1]
    assert np.isnan(back["strange"][0]) and back["strange"][1:] == [float("inf"), float("-inf")]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc.$", min_size=1, max_size=3), inner, max_size=3),
        max_leaves=12,
    )
)
def test_plain_values_survive_exactly(value: Any) -> None:
    tree, tensors = split_state({"x": value})
    assert not tensors
    assert join_state(json.loads(json.dumps(tree, allow_nan=False)), {}, source="x") == {"x": value}


@pytest.mark.parametrize("key", [1, "", "a/b", "$tensor", "$float"])
def test_a_key_that_could_not_be_told_apart_is_refused(key: object) -> None:
    with pytest.raises(TypeError, match="cannot be a key"):
        split_state({"a": {key: 1}})


def test_what_only_pickle_could_save_is_refused() -> None:
    with pytest.raises(TypeError, match="state a/b: a set cannot be saved"):
        split_state({"a": {"b": {1, 2}}})


def test_saving_does_not_tie_the_file_to_the_live_tensor(tmp_path: Path) -> None:
    live = torch.zeros(3)
    _, tensors = split_state({"w": live})
    write_tensors(tmp_path / "x.safetensors", tensors)
    live += 1
    assert torch.equal(read_tensors(tmp_path / "x.safetensors")["w"], torch.zeros(3))


def test_a_file_is_written_in_pieces_with_its_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read back by safetensors itself; no piece is larger than it may be, and the digest is that of the file."""
    monkeypatch.setattr(state_files, "PIECE", 64)
    flat = torch.arange(100, dtype=torch.float32)
    state = {"view": flat[10:90].view(8, 10), "also": flat[50:], "odd": torch.arange(7, dtype=torch.uint8), "none": torch.zeros(0, 3)}
    state |= {"brain": torch.ones(5, dtype=torch.bfloat16), "yes": torch.tensor([True, False]), "wide": np.arange(5)}
    _, tensors = split_state(state)
    assert tensors["view"].untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()  # no copy was made
    pieces = [len(piece) for tensor in tensors.values() for piece in state_files._pieces(tensor)]
    assert max(pieces) == 64 and sum(pieces) == sum(tensor.nbytes for tensor in tensors.values())
    file = tmp_path / "x.safetensors"
    assert write_tensors(file, tensors) == files.digest(file)
    back = load_file(file)
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(back[name], tensor) and back[name].dtype == tensor.dtype


# The store


def test_what_is_saved_is_loaded(run: RunDirectory, store: CheckpointStore) -> None:
    path = save(store, run, 40)
    assert path == run.checkpoints / "step_40"
    opened = open_checkpoint(path)
    assert (opened.path, opened.step, opened.run_dir) == (path, 40, run.path)
    assert opened.config.to_dict() == run.config.to_dict()
    assert opened.manifest["algo"] == "dqn" and opened.manifest["env_id"] == "CartPole-v1" and "torch" in opened.manifest["versions"]
    assert torch.equal(opened.load_model()["weight"], torch.tensor([[40.0, 41.0], [42.0, 43.0]]))
    training = opened.load_training()
    assert training["best"] == float("-inf") and training["updates"] == 40
    replay = opened.load_replay()
    assert replay is not None and replay["obs"].shape == (41, 4) and replay["rng"]["state"] == 2**100


def test_equal_states_give_equal_bytes(run: RunDirectory, store: CheckpointStore, tmp_path: Path) -> None:
    first = save(store, run, 40)
    second = CheckpointStore(tmp_path / "other", keep=1).save(40, **states(40), manifest={**manifest_of(run.config), "elapsed": 3.5})
    for name in ("model", "training", "replay"):
        assert (first / f"{name}.safetensors").read_bytes() == (second / f"{name}.safetensors").read_bytes()


def test_files_are_as_readable_as_the_umask_says(run: RunDirectory, store: CheckpointStore) -> None:
    path = save(store, run, 1)
    modes = {entry.name: entry.stat().st_mode & 0o777 for entry in path.iterdir()}
    assert set(modes.values()) == {modes["manifest.json"]}


def test_a_manifest_may_hold_numbers_that_json_cannot(run: RunDirectory, store: CheckpointStore) -> None:
    path = save(store, run, 1, manifest={**manifest_of(run.config), "mean": float("inf")})
    assert "Infinity" not in (path / "manifest.json").read_text()
    assert open_checkpoint(path).manifest["mean"] == float("inf")


def test_rotation_spares_latest_and_best_and_keeps_one_replay(run: RunDirectory, store: CheckpointStore) -> None:
    for step in (10, 20, 30, 40, 50):
        save(store, run, step)
        if step == 20:
            store.mark_best(20)
    assert names(run) == {"step_20", "step_40", "step_50", "latest", "best"}
    assert os.readlink(run.checkpoints / "latest") == "step_50"  # relative: the run can be moved
    assert os.readlink(run.checkpoints / "best") == "step_20"
    with_replay = {path.parent.name for path in run.checkpoints.glob("step_*/replay.safetensors")}
    assert with_replay == {"step_50"}
    assert open_checkpoint(run.checkpoints / "best").load_replay() is None
    store.mark_best(50)
    assert names(run) == {"step_40", "step_50", "latest", "best"}


def test_a_checkpoint_for_best_only_leaves_latest_and_its_replay_alone(run: RunDirectory, store: CheckpointStore) -> None:
    save(store, run, 10)
    save(store, run, 15, replay=None, link_latest=False)
    store.mark_best(15)
    assert open_checkpoint(run.path).step == 10
    assert open_checkpoint(run.path).load_replay() is not None
    assert open_checkpoint(run.checkpoints / "best").step == 15


def test_saving_a_step_again_replaces_it(run: RunDirectory, store: CheckpointStore) -> None:
    save(store, run, 10)
    save(store, run, 10, model={"weight": torch.ones(1)})
    assert torch.equal(open_checkpoint(run.path).load_model()["weight"], torch.ones(1))
    assert names(run) == {"step_10", "latest"}


def test_cut_after_forgets_the_future_but_not_the_best(run: RunDirectory) -> None:
    store = CheckpointStore(run.checkpoints, keep=9)
    for step in (10, 20, 30, 40):
        save(store, run, step)
    store.mark_best(30)
    save(store, run, 30)  # gives the best one a replay again
    store.cut_after(20)
    assert names(run) == {"step_10", "step_20", "step_30", "latest", "best"}
    assert open_checkpoint(run.path).step == 20
    assert open_checkpoint(run.checkpoints / "best").load_replay() is None
    store.cut_after(0)
    assert names(run) == {"step_30", "best"}


def test_the_future_best_does_not_take_the_place_or_the_replay_of_what_is_saved_now(run: RunDirectory) -> None:
    store = CheckpointStore(run.checkpoints, keep=1)
    save(store, run, 10)
    save(store, run, 30)
    store.mark_best(30)
    store.cut_after(10)
    save(store, run, 20)
    assert open_checkpoint(run.path).step == 20
    assert open_checkpoint(run.path).load_replay() is not None


# Finding one


def test_every_way_to_name_a_checkpoint(run: RunDirectory, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    save(store, run, 10)
    path = save(store, run, 20)
    store.mark_best(10)
    for given_path in (path, path / "manifest.json", path / "model.safetensors", run.path, run.path / "config.yaml", run.checkpoints):
        assert open_checkpoint(given_path).step == 20
    assert open_checkpoint(run.checkpoints / "latest").path == path
    assert open_checkpoint(run.checkpoints / "best" / "model.safetensors").step == 10
    monkeypatch.chdir(path)
    assert open_checkpoint(".").run_dir == run.path
    (tmp_path / "mine").symlink_to(path)
    assert open_checkpoint(tmp_path / "mine").run_dir == run.path


def test_a_copy_stands_in_no_run(run: RunDirectory, store: CheckpointStore, tmp_path: Path) -> None:
    path = save(store, run, 20)
    copied = copy_checkpoint(run.path, tmp_path / "deep" / "copy")
    assert open_checkpoint(copied).run_dir is None
    assert {entry.name: entry.read_bytes() for entry in copied.iterdir()} == {entry.name: entry.read_bytes() for entry in path.iterdir()}
    save(store, run, 30)
    assert open_checkpoint(copy_checkpoint(run.path, copied)).step == 30  # an older copy is replaced
    assert [entry.name for entry in copied.parent.iterdir()] == ["copy"]


def _a_checkpoint_with(file: str) -> Callable[[Path], Any]:
    return lambda folder: [shutil.copytree(folder.parent / "good", folder, dirs_exist_ok=True), (folder / file).write_text("x")]


@pytest.mark.parametrize(
    "fill",
    [
        lambda folder: (folder / "thesis.tex").write_text("x"),
        lambda folder: (folder / "manifest.json").write_text('{"manifest_version": 3, "name": "a web extension"}'),
        lambda folder: (folder / "manifest.json").write_text("{}"),
        lambda folder: (folder / "manifest.json").symlink_to(folder.parent / "good" / "manifest.json") or (folder / "x").touch(),
        _a_checkpoint_with("notes.txt"),
    ],
)
def test_only_a_checkpoint_of_ours_is_replaced(
    run: RunDirectory, store: CheckpointStore, tmp_path: Path, fill: Callable[[Path], Any]
) -> None:
    save(store, run, 20)
    copy_checkpoint(run.path, tmp_path / "good")
    (tmp_path / "theirs").mkdir()
    fill(tmp_path / "theirs")
    before = {entry.name: entry.read_bytes() for entry in (tmp_path / "theirs").iterdir()}
    with pytest.raises(CheckpointError, match="exists and is no checkpoint"):
        copy_checkpoint(run.path, tmp_path / "theirs")
    assert {entry.name: entry.read_bytes() for entry in (tmp_path / "theirs").iterdir()} == before
    (tmp_path / "link").symlink_to(tmp_path / "good")
    with pytest.raises(CheckpointError, match="is a link, so nothing is written over it"):
        copy_checkpoint(run.path, tmp_path / "link")


CHANGES = ("open", "rename", "replace", "symlink", "unlink", "rmdir", "mkdir", "fsync")


def die_before_change(moment: int) -> None:
    """Makes this process die as by SIGKILL before its n-th change of the file system: an exception would run every `finally`."""
    left = iter(range(moment))

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        def one(*arguments: Any, **keywords: Any) -> Any:
            if next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **keywords)

        return one

    for name in CHANGES:
        setattr(os, name, dying(getattr(os, name)))
    files._exchange = dying(files._exchange)


def killed_at_every_moment(action: Callable[[], object], check: Callable[[], None], reset: Callable[[], None]) -> int:
    """Has a process of its own do `action` and die before its n-th change, for every n, each time from a `reset` on; then `check`s."""
    for moment in range(1000):
        reset()
        child = os.fork()
        if child == 0:
            die_before_change(moment)
            action()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        check()
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            return moment
        assert os.WTERMSIG(status) == signal.SIGKILL
    raise AssertionError("it never ended")


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_copy_killed_at_any_moment_leaves_the_old_or_the_new_one(
    run: RunDirectory, store: CheckpointStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanges: bool
) -> None:
    if not exchanges:
        monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    save(store, run, 10)
    target = tmp_path / "copy"
    first = copy_checkpoint(run.path, tmp_path / "first")
    save(store, run, 20)
    found = set()

    def reset() -> None:
        copy_checkpoint(first, target)

    def check() -> None:
        opened = open_checkpoint(target)
        opened.load_model(), opened.load_training(), opened.load_replay()
        found.add(opened.step)
        if exchanges:
            assert target.is_dir()

    moments = killed_at_every_moment(lambda: copy_checkpoint(run.path, target), check, reset)
    assert moments > 10 and found == {10, 20}
    reset()
    assert not [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")]  # what the killed ones left is cleared


def test_a_run_without_checkpoint_says_so(run: RunDirectory, store: CheckpointStore, tmp_path: Path) -> None:
    with pytest.raises(MissingCheckpoint, match="has no checkpoint yet") as caught:
        open_checkpoint(run.path)
    assert caught.value.run_dir == run.path
    for nowhere in (tmp_path / "nothing", tmp_path):
        with pytest.raises(MissingCheckpoint) as caught:
            open_checkpoint(nowhere)
        assert caught.value.run_dir is None


def test_a_dangling_latest_falls_back_to_the_newest(run: RunDirectory, store: CheckpointStore) -> None:
    save(store, run, 10)
    shutil.rmtree(save(store, run, 20))
    assert open_checkpoint(run.path).step == 10


def test_what_a_killed_process_left_is_cleared(run: RunDirectory, store: CheckpointStore) -> None:
    save(store, run, 10)
    save(store, run, 20)
    (run.checkpoints / ".new-step_30").mkdir()
    (run.checkpoints / ".link-latest-step_30").symlink_to("step_30")
    (run.checkpoints / "step_20").rename(run.checkpoints / ".old-step_20")  # killed between the two renames of a replacement
    CheckpointStore(run.checkpoints, keep=2)
    assert names(run) == {"step_10", "step_20", "latest"}
    assert open_checkpoint(run.path).step == 20


def test_saving_rotating_and_cutting_killed_at_any_moment_leave_whole_checkpoints(run: RunDirectory, tmp_path: Path) -> None:
    spare = CheckpointStore(tmp_path / "spare", keep=9)
    for step in (10, 20, 30):
        save(spare, run, step)
    spare.mark_best(20)
    found = set()

    def reset() -> None:
        remove(run.checkpoints)
        shutil.copytree(spare.directory, run.checkpoints, symlinks=True)

    def save_and_rotate() -> None:
        save(CheckpointStore(run.checkpoints, keep=1), run, 40)

    def cut() -> None:
        CheckpointStore(run.checkpoints, keep=9).cut_after(10)

    def check() -> None:
        opened = open_checkpoint(run.path)
        opened.load_model(), opened.load_training()
        found.add(opened.step)
        for listed in run.checkpoints.glob("step_*"):
            assert open_checkpoint(listed).load_model()

    assert killed_at_every_moment(save_and_rotate, check, reset) > 10
    assert found == {30, 40}
    found.clear()
    assert killed_at_every_moment(cut, check, reset) > 5
    assert found == {30, 10}


def test_a_reader_looks_once_more_where_rotation_was_faster(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(run.checkpoints, keep=1)
    save(store, run, 10)
    meanwhile = iter((20, 30))

    def read(checkpoint: checkpointing.Checkpoint) -> Any:
        step = next(meanwhile, None)
        if step is not None:
            save(store, run, step)  # which rotates away what is being read
        return checkpoint.load_model()["weight"][0, 0].item()

    assert with_checkpoint(run.path, read) == 30
    damaged = run.checkpoints / "step_30" / "model.safetensors"
    damaged.write_bytes(b"x")
    with pytest.raises(CheckpointError, match="is damaged"):  # which is there, and so not looked for again
        with_checkpoint(run.path, read)


# Hostile, truncated, foreign


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        opened = open_checkpoint(path)
        opened.load_model()
        opened.load_training()
        opened.load_replay()
    message = str(caught.value)
    assert "\n" not in message
    return message


class Bomb:
    """Unpickling it leaves a mark."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("exploded",)


@pytest.mark.parametrize("name", ["model", "training", "replay"])
def test_a_pickle_is_refused_and_not_run(
    run: RunDirectory, store: CheckpointStore, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(store, run, 1)
    monkeypatch.chdir(tmp_path)
    (path / f"{name}.safetensors").write_bytes(pickle.dumps(Bomb()))
    edit(path)
    assert f"{name}.safetensors: not a whole safetensors file" in refusal(path)
    torch.save({"weight": torch.ones(1)}, path / f"{name}.safetensors")
    edit(path)
    assert f"{name}.safetensors: not a whole safetensors file" in refusal(path)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("name", ["model", "training", "replay"])
@pytest.mark.parametrize("cut", [0, 4, 30, -1])
def test_a_truncated_file_is_refused(run: RunDirectory, store: CheckpointStore, name: str, cut: int) -> None:
    file = save(store, run, 1) / f"{name}.safetensors"
    file.write_bytes(file.read_bytes()[:cut])
    assert f"{name}.safetensors: is damaged" in refusal(file)
    edit(file.parent)
    assert f"{name}.safetensors: not a whole safetensors file" in refusal(file)


@pytest.mark.parametrize("name", ["manifest.json", "model.safetensors", "training.safetensors", "replay.safetensors"])
def test_a_flipped_bit_is_found(run: RunDirectory, store: CheckpointStore, name: str) -> None:
    path = save(store, run, 1)
    whole = (path / name).read_bytes()
    places = range(len(whole) - 40, len(whole) - 4, 7) if name.endswith("tensors") else (whole.index(b'"updates": 1') + 11,)
    for place in places:  # in the tensors' own bytes, or in a number that any value would do for
        damaged = bytearray(whole)
        damaged[place] ^= 2
        (path / name).write_bytes(bytes(damaged))
        assert f"{name}: is damaged" in refusal(path)
    (path / name).write_bytes(whole)
    assert open_checkpoint(path).load_training()["updates"] == 1


def test_an_older_format_is_read_but_not_resumed(run: RunDirectory, store: CheckpointStore) -> None:
    path = save(store, run, 1)
    old = json.loads((path / "manifest.json").read_text())
    del old["digest"], old["files"]
    (path / "manifest.json").write_text(json.dumps({**old, "format_version": 1}))
    opened = open_checkpoint(run.path)
    assert torch.equal(opened.load_model()["weight"], states(1)["model"]["weight"])
    with pytest.raises(CheckpointError, match="has format 1, which eval and predict read but resume does not: resume it with the version"):
        opened.require_for_resume()


@pytest.mark.parametrize("name", ["manifest.json", "model.safetensors"])
def test_what_is_no_regular_file_is_not_opened(run: RunDirectory, store: CheckpointStore, name: str) -> None:
    path = save(store, run, 1)
    for make in (os.mkfifo, lambda place: os.symlink("/dev/zero", place), os.mkdir):
        (path / name).unlink()
        make(path / name)
        assert f"{name}: " in refusal(path)
        remove(path / name)
        (path / name).touch()


def test_a_manifest_is_not_read_where_it_is_too_large(run: RunDirectory, store: CheckpointStore) -> None:
    path = save(store, run, 1)
    with (path / "manifest.json").open("r+b") as file:
        file.truncate(10 << 30)  # a sparse file: it takes no room, but reading it would
    assert "is larger than" in refusal(path)


@pytest.mark.parametrize("name", ["model", "training"])
def test_a_missing_file_is_refused(run: RunDirectory, store: CheckpointStore, name: str) -> None:
    path = save(store, run, 1)
    (path / f"{name}.safetensors").unlink()
    assert refusal(path).endswith(f"{name}.safetensors: is missing")


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"weight": torch.zeros(3, 3), "bias": torch.zeros(2)}, "weight is float32[3,3], but the manifest says 'float32[2,2]'"),
        ({"weight": torch.zeros(2, 2, dtype=torch.int64), "bias": torch.zeros(2)}, "weight is int64[2,2], but"),
        ({"weight": torch.zeros(2, 2)}, "bias is missing"),
        ({"weight": torch.zeros(2, 2), "bias": torch.zeros(2), "more": torch.zeros(1)}, "holds 'more', which the manifest does not know"),
    ],
)
def test_tensors_of_another_network_are_refused(
    run: RunDirectory, store: CheckpointStore, tensors: dict[str, torch.Tensor], message: str
) -> None:
    path = save(store, run, 1)
    save_file(tensors, path / "model.safetensors")
    edit(path)
    assert message in refusal(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(format_version=3), "has format 3, and this version reads formats 1 and 2; a newer rl_training wrote it"),
        (lambda m: m.update(format_version="1"), "not the manifest of a checkpoint"),
        (lambda m: m.update(algo="alpha_zero"), "algorithm 'alpha_zero' is not known here"),
        (lambda m: m.update(algo="double_dqn"), "algo is 'double_dqn', but its config says otherwise"),
        (lambda m: m.update(env_id="Acrobot-v1"), "env_id is 'Acrobot-v1', but its config says otherwise"),
        (lambda m: m.update(step=-1), "step is -1"),
        (lambda m: m.update(step="1"), "step is missing or no int"),
        (lambda m: m.pop("config"), "config is missing or no dict"),
        (lambda m: m["config"].update(seed="x"), "config: seed must be an integer, got 'x'"),
        (lambda m: m["config"]["algo_kwargs"].update(zzz=1), "config: algo_kwargs.zzz is not a key of dqn"),
        (lambda m: m["files"].pop("model.safetensors"), "model.safetensors: is damaged"),
        (lambda m: m["files"].update({"../../x": "0" * 64}), "'../../x' in files is no digest"),
        (lambda m: m["files"].update({"model.safetensors": None}), "'model.safetensors' in files is no digest"),
        (lambda m: m["state"].pop("model"), "model.safetensors: the manifest does not describe it"),
        (lambda m: m["state"].update(model=[1]), "model.safetensors: the manifest does not describe it"),
        # What points outside: tensors are found by their place alone, so a path means nothing
        (lambda m: m["state"]["model"].update(weight={"$tensor": "../../../etc/passwd"}), "but the manifest says '../../../etc/passwd'"),
        (lambda m: m["state"]["model"].update({"../../x": {"$tensor": "float32[2]"}}), "../../x is missing"),
        (lambda m: m["state"]["training"].update(best={"$float": "__import__"}), "best is no number in the manifest"),
        (lambda m: m.update(mean={"$tensor": "float32[2]"}), "mean is missing"),
    ],
)
def test_a_manifest_that_lies_is_refused(
    run: RunDirectory, store: CheckpointStore, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    path = save(store, run, 1)
    edit(path, change)
    assert message in refusal(path)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"format_version": NaN}', "[" * 100_000, '{"format_version": 1' + "0" * 5000 + "}", "\x80"]
)
def test_a_manifest_that_is_none_is_refused(run: RunDirectory, store: CheckpointStore, text: str) -> None:
    path = save(store, run, 1)
    (path / "manifest.json").write_bytes(text.encode("latin-1"))
    assert "manifest.json: " in refusal(path)


@pytest.mark.parametrize("target", ["../../elsewhere", "/etc", "step_1/..", "step_01", "."])
def test_a_link_that_leaves_the_folder_is_refused(run: RunDirectory, store: CheckpointStore, target: str) -> None:
    save(store, run, 1)
    (run.checkpoints / "latest").unlink()
    (run.checkpoints / "latest").symlink_to(target)
    assert "which is no checkpoint beside it" in refusal(run.path)
    assert "which is no checkpoint beside it" in refusal(run.checkpoints / "latest")


def test_a_best_that_is_gone_is_refused(run: RunDirectory, store: CheckpointStore) -> None:
    save(store, run, 1)
    (run.checkpoints / "best").symlink_to("step_9")
    assert "points at a checkpoint that is gone" in refusal(run.checkpoints / "best")


# A full disk


@pytest.fixture
def small_files() -> Iterator[None]:
    """Files end at 64 KiB: the disk is really refused, below safetensors as below Python."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def check_that_the_last_one_stayed(run: RunDirectory, store: CheckpointStore, **too_much: Any) -> None:
    before = names(run)
    with pytest.raises(RunError, match="cannot be written") as caught:
        save(store, run, 20, **too_much)
    assert "\n" not in str(caught.value)
    assert names(run) == before  # no half of the new one, no temporary folder
    opened = open_checkpoint(run.path)
    assert opened.step == 10
    opened.load_model()
    opened.load_training()
    assert opened.load_replay() is not None


def test_a_full_disk_leaves_the_last_checkpoint(run: RunDirectory, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    save(store, run, 10)
    store.mark_best(10)
    with monkeypatch.context() as patch:

        def full(*_: Any, **__: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(checkpoint_store, "write_json", full)
        check_that_the_last_one_stayed(run, store)
    save(store, run, 20)
    assert open_checkpoint(run.path).step == 20


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize("name", ["model", "training", "replay"])
def test_a_write_that_the_system_refuses_leaves_the_last_checkpoint(run: RunDirectory, store: CheckpointStore, name: str) -> None:
    save(store, run, 10)
    check_that_the_last_one_stayed(run, store, **{name: {"big": torch.zeros(100_000)}})


def test_a_failure_that_is_a_bug_leaves_no_temporary_folder(
    run: RunDirectory, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(store, run, 10)
    with pytest.raises(TypeError):
        save(store, run, 20, training={"x": {1, 2}})
    monkeypatch.setattr(state_files, "sync", lambda path: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        save(store, run, 20)
    assert names(run) == {"step_10", "latest"}


def test_a_file_that_vanishes_while_it_is_opened_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As rotation can do to a reader; safetensors then says it as a RuntimeError."""

    def gone(path: Path) -> None:
        raise RuntimeError(f"unable to open file <{path}>")

    (tmp_path / "model.safetensors").write_bytes(b"")
    monkeypatch.setattr("rl_training.experiment.state_files.load_file", gone)
    with pytest.raises(CheckpointError, match="unable to open"):
        read_tensors(tmp_path / "model.safetensors")
