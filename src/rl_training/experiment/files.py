"""Files that survive a crash, and failures that say where they happened."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import sys
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rl_training.errors import RunError

if sys.platform != "win32":
    import fcntl


def sync(path: Path) -> None:
    """Waits until the file or directory `path` is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Writes `path` whole or not at all."""
    temporary = path.with_name(f".new-{path.name}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes `content` as strict JSON, whole or not at all."""
    write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def remove(path: Path) -> None:
    """Removes the file, link or directory `path`, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def disk_is_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def failing_as_run_error(place: Path) -> Iterator[None]:
    """A full disk, a permission that is missing: a RunError that says where."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{place}: cannot be written ({error.strerror or error})") from error


class Lock:
    """Held until `release`, the object's end or the process's, however that comes: the system lets go of it, no file is left behind."""

    def __init__(self, descriptor: int) -> None:
        self.release = weakref.finalize(self, os.close, descriptor)

    @classmethod
    def of(cls, directory: Path) -> Lock | None:
        """The lock of `directory`, or None where somebody else has it; on Windows, or where files cannot be locked, nobody is kept out."""
        if sys.platform == "win32":
            return cls(os.open(os.devnull, os.O_RDONLY))
        descriptor = os.open(directory, os.O_RDONLY)
        lock = cls(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.release()
            return None
        except OSError:
            pass
        return lock
