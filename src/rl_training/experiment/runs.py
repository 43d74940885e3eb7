"""The directory of a run: what it was asked to do, on what, and what it measured."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from rl_training.errors import ConfigError, RunError, UserError
from rl_training.experiment.config import TrainConfig, load_config
from rl_training.experiment.credentials import masked
from rl_training.experiment.files import (
    Lock,
    disk_is_full,
    failing_as_run_error,
    is_regular,
    read_json,
    read_lines,
    reason,
    remove,
    write_json,
    write_lines,
    write_text,
)

_PACKAGES = ("rl-training", "torch", "numpy", "gymnasium", "ale-py", "safetensors", "pydantic", "numba", "tensorboard")


MAX_METADATA_BYTES = 16 << 20
OWN_FILES = ("config.yaml", "metadata.json", "metrics.jsonl")
OWN_FOLDERS = ("checkpoints", "wandb")


def is_run_directory(path: Path) -> bool:
    """Whether a run was made at `path`: its config is the first thing written there."""
    return is_regular(path / "config.yaml")


class RunDirectory:
    """`<output_dir>/<algo>__<env>__seed<seed>__<timestamp>[__suffix]/`: config.yaml, metadata.json, metrics.jsonl, events, checkpoints/."""

    def __init__(self, path: Path, config: TrainConfig) -> None:
        self.path, self.config = path, config
        self._lock: Lock | None = None

    @classmethod
    def create(cls, config: TrainConfig, suffix: str | None = None, command: Sequence[str] | None = None) -> RunDirectory:
        """A new directory with the resolved config and the metadata. `command` is what was run (this process's arguments if None)."""
        try:
            path = _new_directory(config, suffix)
        except (OSError, ValueError) as error:
            why = "Not a directory" if isinstance(error, FileExistsError) else reason(error)
            message = f"output_dir {config.output_dir}: no run can be made there ({why})"
            full = isinstance(error, OSError) and disk_is_full(error)
            raise (RunError if full else ConfigError)(message) from error
        run = cls(path, config)
        run.hold()
        run.save_config(config)
        run._write_metadata(_describe(config, sys.argv if command is None else command))
        return run

    @classmethod
    def open(cls, path: str | Path) -> RunDirectory:
        """The run at `path`: its directory, or anything inside it."""
        for place in (Path(path), *Path(os.path.abspath(path)).parents):
            if is_run_directory(place):
                return cls(place, load_config(place / "config.yaml"))
        raise UserError(f"{path}: not a run's directory")

    @classmethod
    def held(cls, path: Path) -> RunDirectory:
        """The run at `path` to go on in, locked before anything of it is read and checked before anything is written."""
        lock = _lock_of(path)
        try:
            run = cls.open(path)
            run._lock = lock
            run._require_own()
        except BaseException:  # whoever keeps the error keeps this frame, and so would keep the lock
            lock.release()
            raise
        return run

    def hold(self) -> None:
        """Only one process trains in a directory: a second one is told so before it cuts what the first has written."""
        if self._lock is None:
            self._lock = _lock_of(self.path)

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _require_own(self) -> None:
        """Raises UserError where a name a run writes to is a link or no file, or metadata.json is damaged."""
        for names, kind, is_kind in ((OWN_FILES, "regular file", is_regular), (OWN_FOLDERS, "folder", Path.is_dir)):
            for place in (self.path / name for name in names):
                if place.is_symlink():
                    raise UserError(f"{place}: is a link, and a run writes only into its own folder")
                if os.path.lexists(place) and not is_kind(place):
                    raise UserError(f"{place}: is not a {kind}")
        if not isinstance(self.metadata.get("trackers", {}), dict):
            raise UserError(f"{self.path / 'metadata.json'}: trackers is no mapping")

    def sweep(self) -> None:
        """Removes what a process that was killed while it wrote left behind; only for whoever holds the run."""
        with failing_as_run_error(self.path):
            for name in OWN_FILES:
                for left in self.path.glob(f".new-{name}*"):
                    remove(left)

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def metadata(self) -> dict[str, Any]:
        """What stands in metadata.json; said anew where a process was killed before it wrote any."""
        file = self.path / "metadata.json"
        if not os.path.lexists(file):
            return _describe(self.config, sys.argv)
        try:
            loaded = read_json(file, limit=MAX_METADATA_BYTES)
        except (OSError, ValueError) as error:
            raise UserError(f"{file}: cannot be read ({reason(error)}); the run can be resumed without it") from None
        if not isinstance(loaded, dict):
            raise UserError(f"{file}: does not hold keys and values; the run can be resumed without it")
        return loaded

    def save_config(self, config: TrainConfig) -> None:
        """Makes `config` the run's config."""
        with failing_as_run_error(self.path / "config.yaml"):
            write_text(self.path / "config.yaml", config.to_yaml())
        self.config = config

    def update_metadata(self, **fields: Any) -> None:
        """Adds plain values to metadata.json, such as whether this run can be resumed exactly."""
        self._write_metadata({**self.metadata, **fields})

    def _write_metadata(self, content: dict[str, Any]) -> None:
        with failing_as_run_error(self.path / "metadata.json"):
            write_json(self.path / "metadata.json", content)

    def cut_after(self, step: int, records: int | None = None) -> int:
        """Drops the records past `step` from metrics.jsonl, those past the first `records`, and a last line that a killed process left half
        written; how many are left."""
        if not self.metrics.exists():
            return 0
        count = 0

        def kept() -> Iterator[str]:
            nonlocal count
            for line in read_lines(self.metrics):
                if count == records:
                    return
                if _step_of(line) <= step:
                    count += 1
                    yield line

        with failing_as_run_error(self.metrics):
            write_lines(self.metrics, kept())
        return count


def _lock_of(path: Path) -> Lock:
    try:
        lock = Lock.of(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be opened ({reason(error)})") from None
    if lock is None:
        raise UserError(f"{path}: another process is training in this run")
    return lock


def _step_of(line: str) -> float:
    """The step of a record, or infinity where the line is no whole record."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return float("inf")
    step = record.get("step") if isinstance(record, dict) else None
    return step if isinstance(step, int) and line.endswith("\n") else float("inf")


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", text)


def _new_directory(config: TrainConfig, suffix: str | None) -> Path:
    parent = config.output_dir.expanduser()
    parent.mkdir(parents=True, exist_ok=True)
    stem = f"{_file_name(config.algo)}__{_file_name(config.env_id)}__seed{config.seed}__{datetime.now():%Y%m%d-%H%M%S}"
    tail = f"__{_file_name(suffix)}" if suffix else ""
    for again in range(1000):  # several runs may start in the same second: mkdir decides
        path = parent / f"{stem}{f'-{again}' if again else ''}{tail}"
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise FileExistsError(f"{parent / stem} and a thousand more exist")


@cache
def versions() -> dict[str, str]:
    """The versions that decide what a run computes, read without importing anything."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _describe(config: TrainConfig, command: Sequence[str]) -> dict[str, Any]:
    return {
        "created": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": masked(list(command)),
        "versions": versions(),
        "git": git_state(),
        "hardware": _hardware(config.device),
    }


def git_state() -> dict[str, Any] | None:
    """The commit of the working directory, and whether files differ from it.

    Outside a repository the variable RL_TRAINING_COMMIT can say it (a copy of a working tree on another machine); None where it does not.
    """

    def ask(*arguments: str) -> str:
        return subprocess.run(("git", *arguments), capture_output=True, text=True, timeout=5, check=True).stdout.strip()

    try:
        return {"commit": ask("rev-parse", "HEAD"), "dirty": bool(ask("status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        told = os.environ.get("RL_TRAINING_COMMIT")
        return {"commit": told, "dirty": None} if told else None


def _hardware(device: str) -> dict[str, Any]:
    found: dict[str, Any] = {"platform": platform.platform(), "machine": platform.machine(), "cpu_cores": os.cpu_count()}
    if device.startswith("cuda"):
        import torch  # only where a GPU is used, and then it is loaded already

        found["gpu"] = torch.cuda.get_device_name(device)
    return found
