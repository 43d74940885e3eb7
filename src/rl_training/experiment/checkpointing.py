"""Checkpoints: directories `step_<n>/` of safetensors and JSON, written whole or not at all.

    checkpoints/step_1000/manifest.json  model.safetensors  training.safetensors  replay.safetensors
    checkpoints/latest -> step_1000      checkpoints/best -> step_500

A checkpoint is written beside its final name, synced, then renamed: a reader sees a whole one or none. What is read back is
checked as if a stranger had written it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.files import failing_as_run_error, remove, sync, write_json
from rl_training.experiment.registry import algorithm_names
from rl_training.experiment.runs import versions
from rl_training.experiment.state_files import join_state, read_tensors, split_state, write_tensors
from rl_training.types import State

FORMAT_VERSION = 1
_STEP = re.compile(r"step_(0|[1-9]\d*)")


class MissingCheckpoint(CheckpointError):
    """There is no checkpoint here (yet): `run_dir` is the run's directory where the path is one."""

    def __init__(self, message: str, run_dir: Path | None = None) -> None:
        super().__init__(message)
        self.run_dir = run_dir


class Checkpoint:
    """One checkpoint, its manifest read and checked; the states are read when asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = _read_manifest(path)
        self.step: int = self.manifest["step"]
        try:
            self.config = TrainConfig.from_dict(self.manifest["config"], source="config")
        except ConfigError as error:
            raise CheckpointError(f"{path / 'manifest.json'}: {error}") from None
        for key in ("algo", "env_id"):
            if getattr(self.config, key) != self.manifest[key]:
                raise CheckpointError(f"{path / 'manifest.json'}: {key} is {self.manifest[key]!r}, but its config says otherwise")

    @property
    def run_dir(self) -> Path | None:
        """The run this checkpoint stands in, if it does."""
        path = Path(os.path.realpath(self.path) if self.path.is_symlink() else os.path.abspath(self.path))
        run = path.parent.parent
        return run if path.parent.name == "checkpoints" and (run / "config.yaml").is_file() else None

    def _load(self, name: str) -> State:
        file = self.path / f"{name}.safetensors"
        return join_state(self.manifest["state"].get(name), read_tensors(file), source=str(file))

    def load_model(self) -> State:
        return self._load("model")

    def load_training(self) -> State:
        return self._load("training")

    def load_replay(self) -> State | None:
        """The replay's state, or None where this checkpoint has none (rotated away, or `checkpoint_replay: false`)."""
        return self._load("replay") if (self.path / "replay.safetensors").exists() else None


def _read_manifest(path: Path) -> dict[str, Any]:
    file = path / "manifest.json"
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{file}: is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: not a whole manifest ({' '.join(str(error).split())})") from None
    if not isinstance(manifest, dict) or type(manifest.get("format_version")) is not int:
        raise CheckpointError(f"{file}: not the manifest of a checkpoint")
    if manifest["format_version"] != FORMAT_VERSION:
        found = manifest["format_version"]
        hint = "; a newer rl_training wrote it" if found > FORMAT_VERSION else ""
        raise CheckpointError(f"{file}: has format {found}, and this version reads format {FORMAT_VERSION}{hint}")
    kinds = {"algo": str, "env_id": str, "step": int, "config": dict, "state": dict}
    for key, kind in kinds.items():
        if type(manifest.get(key)) is not kind:
            raise CheckpointError(f"{file}: {key} is missing or no {kind.__name__}")
    if manifest["step"] < 0:
        raise CheckpointError(f"{file}: step is {manifest['step']}")
    if manifest["algo"] not in algorithm_names():
        raise CheckpointError(f"{file}: algorithm {manifest['algo']!r} is not known here (register it first)")
    plain = {key: value for key, value in manifest.items() if key != "state"}
    return {**join_state(plain, {}, source=str(file)), "state": manifest["state"]}


def manifest_of(config: TrainConfig) -> dict[str, Any]:
    """What every manifest says of its run."""
    return {"algo": config.algo, "env_id": config.env_id, "config": config.to_dict(), "versions": versions()}


def _linked(directory: Path, link: str) -> Path | None:
    """Where `checkpoints/<link>` points, which must be a checkpoint beside it; None where it points at nothing."""
    try:
        target = os.readlink(directory / link)
    except OSError:
        return None
    if not _STEP.fullmatch(target):
        raise CheckpointError(f"{directory / link}: points at {target!r}, which is no checkpoint beside it")
    return directory / target if (directory / target).is_dir() else None


def _steps(directory: Path) -> list[int]:
    names = (entry.name for entry in directory.iterdir() if entry.is_dir() and not entry.is_symlink()) if directory.is_dir() else ()
    return sorted(int(match[1]) for name in names if (match := _STEP.fullmatch(name)))


def open_checkpoint(path: str | Path) -> Checkpoint:
    """The checkpoint at `path`: its directory, a file in it, `latest` or `best`, or a run's directory (its latest)."""
    given = Path(path)
    if not given.exists() and not given.is_symlink():
        raise MissingCheckpoint(f"{given}: no such checkpoint")
    place = given.parent if given.is_file() else given
    if place.is_symlink() and place.name in ("latest", "best"):
        linked = _linked(place.parent, place.name)
        if linked is None:
            raise CheckpointError(f"{given}: points at a checkpoint that is gone")
        return Checkpoint(linked)
    if (place / "manifest.json").exists():
        return Checkpoint(place)
    is_run = (place / "config.yaml").is_file()
    store = place / "checkpoints" if is_run or (place / "checkpoints").is_dir() else place
    # A process killed while it replaced a checkpoint can leave `latest` pointing at nothing: the newest whole one is next best.
    steps = _steps(store)
    found = _linked(store, "latest") or (store / f"step_{steps[-1]}" if steps else None)
    if found is not None:
        return Checkpoint(found)
    if is_run:
        raise MissingCheckpoint(f"{given}: this run has no checkpoint yet", run_dir=place)
    raise MissingCheckpoint(f"{given}: neither a checkpoint nor a run's directory")


def copy_checkpoint(source: str | Path, destination: str | Path) -> Path:
    """A copy of the checkpoint at `source`, whole or not at all. An older checkpoint at `destination` is replaced, anything else is not."""
    opened, final = open_checkpoint(source).path.resolve(), Path(destination)
    if final.resolve() == opened:
        return final
    if (final.exists() or final.is_symlink()) and not (final / "manifest.json").is_file() and not _is_empty(final):
        raise CheckpointError(f"{final}: exists and is no checkpoint, so nothing is written over it")
    with failing_as_run_error(final):
        final.parent.mkdir(parents=True, exist_ok=True)
        temporary = final.with_name(f".new-{final.name}")
        remove(temporary)
        try:
            shutil.copytree(opened, temporary)
            remove(final)
            temporary.rename(final)
        finally:
            remove(temporary)
    return final


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and not any(path.iterdir())


class CheckpointStore:
    """The `checkpoints/` of one run: saves, links, rotates. One process writes at a time."""

    def __init__(self, directory: str | Path, keep: int) -> None:
        self.directory, self.keep = Path(directory), keep
        with failing_as_run_error(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            for entry in self.directory.glob(".*step_*"):  # left by a process that was killed while it wrote
                name = entry.name.removeprefix(".old-")
                if _STEP.fullmatch(name) and not (self.directory / name).exists():
                    entry.rename(self.directory / name)
                else:
                    remove(entry)

    def path(self, step: int) -> Path:
        return self.directory / f"step_{step}"

    def save(
        self, step: int, *, model: State, training: State, replay: State | None, manifest: Mapping[str, Any], link_latest: bool = True
    ) -> Path:
        """Writes the checkpoint of `step` and rotates the older ones. `manifest` is `manifest_of(config)` and plain values of your own.

        A failure leaves every older checkpoint as it was, and no half of this one.
        """
        final, temporary = self.path(step), self.directory / f".new-step_{step}"
        states = {"model": model, "training": training} | ({} if replay is None else {"replay": replay})
        with failing_as_run_error(final):
            try:
                temporary.mkdir()
                trees = {}
                for name, state in states.items():
                    trees[name], tensors = split_state(state)
                    write_tensors(temporary / f"{name}.safetensors", tensors)
                    del tensors
                about, _ = split_state({**manifest, "format_version": FORMAT_VERSION, "step": step})
                write_json(temporary / "manifest.json", {**about, "state": trees})
                sync(temporary)
                if final.exists():
                    retired = self.directory / f".old-step_{step}"
                    final.rename(retired)
                    temporary.rename(final)
                    remove(retired)
                else:
                    temporary.rename(final)
                sync(self.directory)
            finally:
                remove(temporary)
            if link_latest:
                self._link("latest", step)
            self._rotate(replay_at=None if replay is None else step)
        return final

    def mark_best(self, step: int) -> None:
        """Makes `best` point at the checkpoint of `step`."""
        with failing_as_run_error(self.directory / "best"):
            self._link("best", step)
            self._rotate()

    def cut_after(self, step: int) -> None:
        """Forgets what lies past `step`, where the run goes on from: all but the best checkpoint, of which the replay goes."""
        with failing_as_run_error(self.directory):
            best = _linked(self.directory, "best")
            for later in (each for each in _steps(self.directory) if each > step):
                remove(self.path(later) / "replay.safetensors" if self.path(later) == best else self.path(later))
            if self.path(step).is_dir():
                self._link("latest", step)
            else:  # the run starts over
                remove(self.directory / "latest")

    def _link(self, name: str, step: int) -> None:
        if not self.path(step).is_dir():
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
                    remove(self.path(step) / "replay.safetensors")
