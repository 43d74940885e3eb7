"""Checkpoints: directories `step_<n>/` of safetensors and JSON, written whole or not at all.

    checkpoints/step_1000/manifest.json  model.safetensors  training.safetensors  replay.safetensors
    checkpoints/latest -> step_1000      checkpoints/best -> step_500

A checkpoint is written beside its final name, synced, then renamed, and removed by renaming it first: a reader sees a whole one or none.
What is read back is checked as if a stranger had written it (manifest.py).
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from rl_training.errors import CheckpointError, ConfigError, UserError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.files import (
    HIDDEN,
    Lock,
    beside,
    failing_as_run_error,
    is_real_directory,
    is_regular,
    present,
    reason,
    remove,
    replace_directory,
    sync,
    write_json,
)
from rl_training.experiment.manifest import FILES, FORMAT_VERSION, MANIFEST, REPLAY_FILE, is_file_name, manifest_of, read_manifest, seal
from rl_training.experiment.runs import is_run_directory
from rl_training.experiment.saved_spaces import require_saved_spaces
from rl_training.experiment.state_files import join_state, read_tensors, split_state, write_tensors
from rl_training.types import State

__all__ = ["Checkpoint", "CheckpointStore", "MissingCheckpoint", "copy_checkpoint", "manifest_of", "open_checkpoint", "with_checkpoint"]

_STEP = re.compile(r"step_(0|[1-9]\d{0,17})")
_LOOKS = 5  # rotation may take away what a reader has just found, but hardly again and again
T = TypeVar("T")


class MissingCheckpoint(CheckpointError):
    """There is no checkpoint here (yet): `run_dir` is the run's directory where the path is one."""

    def __init__(self, message: str, run_dir: Path | None = None) -> None:
        super().__init__(message)
        self.run_dir = run_dir


class Checkpoint:
    """One checkpoint, its manifest read and checked; the states are read when asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = read_manifest(path)
        self.step: int = self.manifest["step"]
        try:
            self.config = TrainConfig.from_dict(self.manifest["config"], source="config")
        except ConfigError as error:
            raise CheckpointError(f"{path / MANIFEST}: {error}") from None
        for key in ("algo", "env_id"):
            if getattr(self.config, key) != self.manifest[key]:
                raise CheckpointError(f"{path / MANIFEST}: {key} is {self.manifest[key]!r:.60}, but its config says otherwise")

    @property
    def run_dir(self) -> Path | None:
        """The run this checkpoint stands in, if it does."""
        return run_of(self.path)

    @property
    def spaces(self) -> dict[str, Any]:
        """What the network was built by, checked."""
        return require_saved_spaces(self.manifest.get("spaces"), source=str(self.path / MANIFEST))

    def require_for_resume(self) -> None:
        """Raises CheckpointError where a run cannot go on from here."""
        if "imported_from" in self.manifest:
            raise CheckpointError(
                f"{self.path}: holds weights alone ({self.manifest['imported_from']!s:.60}): there is no training to resume"
            )
        version = self.manifest["format_version"]
        if version != FORMAT_VERSION:
            raise CheckpointError(
                f"{self.path}: has format {version}, which eval and predict read but resume does not: "
                "resume it with the version of rl_training that wrote it, or train anew"
            )
        named = _STEP.fullmatch(self.path.name.removeprefix(".old-"))
        if self.run_dir is not None and (named is None or int(named[1]) != self.step):
            raise CheckpointError(f"{self.path}: is not named after its step, which is {self.step}")

    def _load(self, name: str) -> State:
        file = self.path / f"{name}.safetensors"
        expected = None if self.manifest["format_version"] == 1 else self.manifest["files"].get(file.name, "none")
        return join_state(self.manifest["state"].get(name), read_tensors(file, expected), source=str(file))

    def load_model(self) -> State:
        return self._load("model")

    def load_training(self) -> State:
        return self._load("training")

    def load_replay(self) -> State | None:
        """The replay's state, or None where this checkpoint has none (rotated away, or `checkpoint_replay: false`)."""
        return self._load("replay") if os.path.lexists(self.path / "replay.safetensors") else None

    @property
    def shard_files(self) -> dict[str, tuple[State, str]]:
        """Of a replay in shards, by name without suffix: what the manifest says of each file, and its digest."""
        names = [file.removesuffix(".safetensors") for file in self.manifest["files"] if file not in FILES]
        return {name: (self.manifest["state"].get(name), self.manifest["files"][f"{name}.safetensors"]) for name in names}


# Finding one


def run_of(checkpoint: Path) -> Path | None:
    """The run in whose `checkpoints/` the directory `checkpoint` lies."""
    path = Path(os.path.realpath(checkpoint) if checkpoint.is_symlink() else os.path.abspath(checkpoint))
    run = path.parent.parent
    return run if path.parent.name == "checkpoints" and is_run_directory(run) else None


def _linked(directory: Path, link: str) -> Path | None:
    """Where `checkpoints/<link>` points, which must be a checkpoint beside it; None where it points at nothing."""
    try:
        target = os.readlink(directory / link)
    except OSError:
        return None
    if not _STEP.fullmatch(target):
        raise CheckpointError(f"{directory / link}: points at {target!r:.60}, which is no checkpoint beside it")
    return present(directory / target)


def _steps(directory: Path) -> list[int]:
    names = (entry.name for entry in directory.iterdir() if is_real_directory(entry)) if directory.is_dir() else ()
    return sorted(int(match[1]) for name in names if (match := _STEP.fullmatch(name)))


class _Found:
    """What a path means: the checkpoint's directory, or the run that has none yet."""

    def __init__(self, given: Path) -> None:
        self.given = given
        self.checkpoint: Path | None = None
        self.run: Path | None = None
        place = given.parent if given.is_file() else given
        if place.is_symlink() and place.name in ("latest", "best"):
            self.run = run_of(place.parent / "any")
            self.checkpoint = _linked(place.parent, place.name)
            if self.checkpoint is None:
                raise CheckpointError(f"{given}: points at a checkpoint that is gone")
            return
        if not os.path.lexists(place):
            self.checkpoint = present(place)  # one that was being replaced when its writer died
            if self.checkpoint is None:
                raise MissingCheckpoint(f"{given}: no such checkpoint")
        elif os.path.lexists(place / MANIFEST):
            self.checkpoint = place
        if self.checkpoint is not None:
            self.run = run_of(self.checkpoint)
            return
        if is_run_directory(place):
            self.run = place
        store = place / "checkpoints" if self.run is not None or (place / "checkpoints").is_dir() else place
        # A process killed while it replaced a checkpoint can leave `latest` pointing at nothing: the newest whole one is next best.
        steps = _steps(store)
        self.checkpoint = _linked(store, "latest") or (store / f"step_{steps[-1]}" if steps else None)


def find_run(path: str | Path) -> Path | None:
    """The run's directory that a path to a checkpoint, a link, a file in one or the run itself means, without reading a checkpoint."""
    return _looking(path, lambda found: found.run)


def open_checkpoint(path: str | Path) -> Checkpoint:
    """The checkpoint at `path`: its directory, a file in it, `latest` or `best`, or a run's directory (its latest)."""
    return with_checkpoint(path, lambda checkpoint: checkpoint)


def with_checkpoint(path: str | Path, read: Callable[[Checkpoint], T]) -> T:
    """What `read` makes of the checkpoint at `path`; where rotation takes that away meanwhile, of the one that is there then."""

    def look(found: _Found) -> T:
        if found.checkpoint is not None:
            return read(Checkpoint(found.checkpoint))
        if found.run is not None:
            raise MissingCheckpoint(f"{found.given}: this run has no checkpoint yet", run_dir=found.run)
        raise MissingCheckpoint(f"{found.given}: neither a checkpoint nor a run's directory")

    return _looking(path, look)


def _looking(path: str | Path, look: Callable[[_Found], T]) -> T:
    for looks_left in reversed(range(_LOOKS)):
        found = None
        try:
            found = _Found(Path(path))
            return look(found)
        except CheckpointError:
            still_there = found is not None and (found.checkpoint is None or os.path.lexists(found.checkpoint / MANIFEST))
            if still_there or not looks_left:
                raise
        except ValueError as error:
            if isinstance(error, UserError):
                raise
            raise MissingCheckpoint(f"{str(path)!r:.60}: no such checkpoint ({error})") from None  # a NUL in the name
    raise AssertionError("the last look has returned or raised")


# Copying one


def copy_checkpoint(source: str | Path, destination: str | Path) -> Path:
    """A copy of the checkpoint at `source`, whole or not at all. An older checkpoint at `destination` is replaced, anything else is not."""
    final = Path(destination)
    require_replaceable(final)
    return with_checkpoint(source, lambda checkpoint: _copied(checkpoint, final))


def _copied(checkpoint: Checkpoint, final: Path) -> Path:
    opened = checkpoint.path.resolve()
    if final.resolve() == opened:
        return final
    with failing_as_run_error(final):
        final.parent.mkdir(parents=True, exist_ok=True)
        _sweep(final)
        temporary = beside(final, ".new-")
        try:
            temporary.mkdir()
            lock = Lock.of(temporary)
            for name in (MANIFEST, *FILES, *(f"{name}.safetensors" for name in checkpoint.shard_files)):
                _copy_file(opened / name, temporary / name, needed=name == MANIFEST)
            sync(temporary)
            replace_directory(temporary, final)
            if lock is not None:
                lock.release()
        finally:
            remove(temporary)
    return final


def _copy_file(source: Path, copy: Path, *, needed: bool) -> None:
    if not os.path.lexists(source):
        if needed:
            raise CheckpointError(f"{source}: is missing")
        return
    if not is_regular(source):
        raise CheckpointError(f"{source}: is not a regular file")
    try:
        shutil.copyfile(source, copy)
    except FileNotFoundError:
        raise CheckpointError(f"{source}: is missing") from None
    sync(copy)


def _sweep(final: Path) -> None:
    """Removes what processes that were killed while they copied here left behind: nobody has the lock of those."""
    for prefix in HIDDEN:
        for left in final.parent.glob(f"{_escaped(prefix + final.name)}.*"):
            if is_real_directory(left) and (lock := Lock.of(left)) is not None:
                remove(left)
                lock.release()


def _escaped(name: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", name)


def require_replaceable(final: Path) -> None:
    """Raises CheckpointError unless a checkpoint may be put at `final`: nothing is there, an empty folder, or a checkpoint of ours."""
    if not os.path.lexists(final):
        return
    refusal = "so nothing is written over it"
    if not is_real_directory(final):
        raise CheckpointError(f"{final}: is {'a link' if final.is_symlink() else 'no folder'}, {refusal}")
    try:
        names = sorted(entry.name for entry in final.iterdir())
    except OSError as error:
        raise CheckpointError(f"{final}: cannot be read ({reason(error)}), {refusal}") from None
    if not names:
        return
    foreign = [name for name in names if name != MANIFEST and not is_file_name(name)]
    if MANIFEST not in names or foreign:
        also = f" (it holds {foreign[0]!r:.60})" if foreign else ""
        raise CheckpointError(f"{final}: exists and is no checkpoint{also}, {refusal}")
    try:
        read_manifest(final)
    except CheckpointError as error:
        raise CheckpointError(f"{final}: exists and is no checkpoint of ours ({error}), {refusal}") from None


# The store


class CheckpointStore:
    """The `checkpoints/` of one run: saves, links, rotates. One process writes at a time."""

    def __init__(self, directory: str | Path, keep: int) -> None:
        self.directory, self.keep = Path(directory), keep
        if self.directory.is_symlink():
            raise CheckpointError(f"{self.directory}: is a link, and a run writes only into its own folder")
        with failing_as_run_error(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            for entry in sorted(self.directory.glob(".*step_*")):  # left by a process that was killed while it wrote
                name = entry.name.removeprefix(".old-")
                if _STEP.fullmatch(name) and not os.path.lexists(self.directory / name):
                    entry.rename(self.directory / name)
                else:
                    remove(entry)

    def path(self, step: int) -> Path:
        return self.directory / f"step_{step}"

    def has(self, step: int) -> bool:
        return is_real_directory(self.path(step))

    def save(
        self,
        step: int,
        *,
        model: State,
        training: State,
        replay: State | None,
        manifest: Mapping[str, Any],
        link_latest: bool = True,
        write_more: Callable[[Path], Mapping[str, tuple[State, str]]] | None = None,
    ) -> Path:
        """Writes the checkpoint of `step` and rotates the older ones. `manifest` is `manifest_of(config)` and plain values of your own.

        write_more: writes further files into a folder (see `WritesFiles`).

        A failure leaves every older checkpoint as it was, and no half of this one.
        """
        final, temporary = self.path(step), self.directory / f".new-step_{step}"
        states = {"model": model, "training": training} | ({} if replay is None else {"replay": replay})
        with failing_as_run_error(final):
            try:
                temporary.mkdir()
                trees, files = {}, {}
                for name, state in states.items():
                    trees[name], tensors = split_state(state)
                    file = temporary / f"{name}.safetensors"
                    files[file.name] = write_tensors(file, tensors)
                    del tensors
                for name, (tree, found) in write_more(temporary).items() if write_more is not None else ():
                    trees[name], files[f"{name}.safetensors"] = tree, found
                about, _ = split_state({**manifest, "format_version": FORMAT_VERSION, "step": step, "files": files})
                write_json(temporary / MANIFEST, seal({**about, "state": trees}))
                sync(temporary)
                replace_directory(temporary, final)
            finally:
                remove(temporary)
            if link_latest:
                self._link("latest", step)
            self._rotate(replay_at=None if replay is None else step)
        return final

    def rewrite(self, step: int, *, run: State, manifest: Mapping[str, Any]) -> None:
        """Puts `run` (plain values) in the place of the training state's, and `manifest` in that of the checkpoint of `step`, whose files
        stay as they are: what a run has measured since it saved them."""
        path = self.path(step)
        with failing_as_run_error(path):
            old = read_manifest(path)
            about, _ = split_state({**{key: value for key, value in old.items() if key != "state"}, **manifest})
            state = {**old["state"], "training": {**old["state"]["training"], "run": split_state(run)[0]}}
            write_json(path / MANIFEST, seal({**about, "state": state}))

    def mark_best(self, step: int) -> None:
        """Makes `best` point at the checkpoint of `step`."""
        with failing_as_run_error(self.directory / "best"):
            self._link("best", step)
            self._rotate()

    def cut_after(self, step: int) -> None:
        """Forgets what lies past `step`, where the run goes on from: all but the best checkpoint, of which the replay goes."""
        with failing_as_run_error(self.directory):
            if self.has(step):  # first: from here on a resumed run goes on from there, whatever is still to be removed
                self._link("latest", step)
            else:  # the run starts over
                remove(self.directory / "latest")
            best = _linked(self.directory, "best")
            for later in (each for each in _steps(self.directory) if each > step):
                if self.path(later) == best:
                    self._remove_replay(later)
                else:
                    remove(self.path(later))

    def _link(self, name: str, step: int) -> None:
        if not self.has(step):
            raise FileNotFoundError(f"there is no checkpoint of step {step}")
        temporary = self.directory / f".link-{name}-step_{step}"
        remove(temporary)
        temporary.symlink_to(f"step_{step}")
        os.replace(temporary, self.directory / name)
        sync(self.directory)

    def _rotate(self, replay_at: int | None = None) -> None:
        latest, best = _linked(self.directory, "latest"), _linked(self.directory, "best")
        steps = _steps(self.directory)
        for step in steps[: -self.keep]:
            if self.path(step) not in (latest, best):
                remove(self.path(step))
        if replay_at is not None:
            for step in steps:
                if step != replay_at:
                    self._remove_replay(step)

    def _remove_replay(self, step: int) -> None:
        for file in sorted(self.path(step).glob("replay*.safetensors"), reverse=True):  # first the one that says that there is a replay
            if REPLAY_FILE.fullmatch(file.name):
                remove(file)
