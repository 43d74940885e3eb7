"""Reading checkpoints: directories `step_<n>/` of safetensors and JSON, written whole or not at all (checkpoint_store.py).

    checkpoints/step_1000/manifest.json  model.safetensors  training.safetensors  replay.safetensors
    checkpoints/latest -> step_1000      checkpoints/best -> step_500

A checkpoint is written beside its final name, synced, then renamed, and removed by renaming it first: a reader sees a whole one or none.
What is read back is checked as if a stranger had written it (manifest.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from rl_training.errors import CheckpointError, ConfigError, UserError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.files import is_real_directory, present
from rl_training.experiment.manifest import FILES, FORMAT_VERSION, MANIFEST, read_manifest
from rl_training.experiment.runs import is_run_directory
from rl_training.experiment.saved_spaces import require_saved_spaces
from rl_training.experiment.state_files import join_state, read_tensors
from rl_training.types import State

STEP_NAME = re.compile(r"step_(0|[1-9]\d{0,17})")
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
        named = STEP_NAME.fullmatch(self.path.name.removeprefix(".old-"))
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


def linked(directory: Path, link: str) -> Path | None:
    """Where `checkpoints/<link>` points, which must be a checkpoint beside it; None where it points at nothing."""
    try:
        target = os.readlink(directory / link)
    except OSError:
        return None
    if not STEP_NAME.fullmatch(target):
        raise CheckpointError(f"{directory / link}: points at {target!r:.60}, which is no checkpoint beside it")
    return present(directory / target)


def steps_in(directory: Path) -> list[int]:
    names = (entry.name for entry in directory.iterdir() if is_real_directory(entry)) if directory.is_dir() else ()
    return sorted(int(match[1]) for name in names if (match := STEP_NAME.fullmatch(name)))


class _Found:
    """What a path means: the checkpoint's directory, or the run that has none yet."""

    def __init__(self, given: Path) -> None:
        self.given = given
        self.checkpoint: Path | None = None
        self.run: Path | None = None
        place = given.parent if given.is_file() else given
        if place.is_symlink() and place.name in ("latest", "best"):
            self.run = run_of(place.parent / "any")
            self.checkpoint = linked(place.parent, place.name)
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
        steps = steps_in(store)
        self.checkpoint = linked(store, "latest") or (store / f"step_{steps[-1]}" if steps else None)
        if self.run is None and self.checkpoint is not None:  # a run's `checkpoints/` was given: it means the run, as what is in it does
            self.run = run_of(self.checkpoint)


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
