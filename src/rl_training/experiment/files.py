"""Files that survive a crash, that nobody can make us follow elsewhere, and failures that say where they happened.

What is written appears under its name whole or not at all, and never through a link. What is read is a regular file of a size that was
looked at first: a pipe would hang a reader, and a device would fill its memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import secrets
import shutil
import stat
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from rl_training.errors import RunError

if sys.platform != "win32":
    import fcntl

HIDDEN = (".new-", ".old-", ".gone-")
"""Names under way: being written, being replaced, being removed. What bears one of them after its writer has died is nobody's."""

_NO_FOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT: int = getattr(os, "O_NONBLOCK", 0)


# Reading


def read_text(path: Path, *, limit: int) -> str:
    """The text in the regular file `path` of at most `limit` bytes; OSError, or ValueError where it is larger or no text."""
    return read_bytes(path, limit=limit).decode("utf-8")


def read_bytes(path: Path, *, limit: int) -> bytes:
    """What the regular file `path` of at most `limit` bytes holds; OSError, or ValueError where it is larger."""
    descriptor = os.open(path, os.O_RDONLY | _NO_WAIT)  # a pipe would wait for somebody to write
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "is not a regular file")
        content = b"" if found.st_size > limit else file.read(limit + 1)
    if max(found.st_size, len(content)) > limit:
        raise ValueError(f"is larger than the {limit:,} bytes such a file may have")
    return content


LONGEST_LINE = 1 << 20


def read_lines(path: Path) -> Iterator[str]:
    """The file's lines, one in memory at a time; one that is longer than any of ours comes in pieces."""
    with path.open("rb") as file:
        while line := file.readline(LONGEST_LINE):
            yield line.decode("utf-8", errors="replace")


def read_json(path: Path, *, limit: int) -> Any:
    """The strict JSON in `path`; OSError or ValueError where there is none."""
    return parse_json(read_text(path, limit=limit))


def parse_json(text: str) -> Any:
    """The value in `text`. Python's own reader also takes NaN and Infinity, which no JSON has and nobody could write back."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("is nested too deeply") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def is_regular(path: Path) -> bool:
    """Whether `path` is a file that can be read to its end; a link to one is."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def is_real_directory(path: Path) -> bool:
    """Whether `path` is a directory and no link to one."""
    return path.is_dir() and not path.is_symlink()


def digest(path: Path) -> str:
    """The SHA-256 of the file's bytes, as hexadecimal digits."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()


# Writing


def sync(path: Path) -> None:
    """Waits until the file or directory `path` is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def beside(path: Path, prefix: str) -> Path:
    """A hidden name of `path`'s own, in its folder, that nobody else has: two writers do not write one file."""
    return path.with_name(f"{prefix}{path.name}.{secrets.token_hex(6)}")


def write_text(path: Path, text: str) -> None:
    """Writes `path` whole or not at all. A link there is replaced, not followed."""
    write_lines(path, (text,))


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """The same, line by line as they come: for what may be larger than memory."""
    write_pieces(path, (line.encode("utf-8") for line in lines))


def write_pieces(path: Path, pieces: Iterable[bytes]) -> None:
    """The same of bytes."""
    temporary = beside(path, ".new-")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW, 0o666)
        with open(descriptor, "wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes `content` as strict JSON, whole or not at all."""
    write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def open_to_append(path: Path) -> int:
    """A descriptor to append to the regular file `path`, which is made where there is none; OSError where it is a link or anything else."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _NO_FOLLOW | _NO_WAIT, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is not a regular file")
    return descriptor


# Replacing and removing


def replace_directory(new: Path, final: Path) -> None:
    """Puts the directory `new` in the place of `final`, if there is one, in whose folder it lies.

    Where the system can exchange two names, a kill at any moment leaves the old or the new one under the name. Elsewhere there is a moment
    between two renames in which the old one is hidden: `present` finds it.
    """
    if not os.path.lexists(final):
        new.rename(final)
    elif _exchange(new, final):
        remove(new)
    else:
        retired = final.with_name(f".old-{final.name}")
        remove(retired)
        final.rename(retired)
        new.rename(final)
        remove(retired)
    sync(final.parent)


def present(directory: Path) -> Path | None:
    """The directory itself, or the one that was being replaced when its writer died; None where there is neither."""
    retired = directory.with_name(f".old-{directory.name}")
    return next((each for each in (directory, retired) if is_real_directory(each)), None)


def remove(path: Path) -> None:
    """Removes the file, link or directory `path`, if there is one. A directory vanishes at once, under a hidden name its files then go."""
    if is_real_directory(path):
        if not path.name.startswith(HIDDEN):
            hidden = beside(path, ".gone-")
            path.rename(hidden)
            path = hidden
        try:
            shutil.rmtree(path)
        except FileNotFoundError:  # somebody else is at it too
            shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


_EXCHANGE, _HERE = 2, -100  # linux/fs.h: RENAME_EXCHANGE, fcntl.h: AT_FDCWD


def _exchange(one: Path, other: Path) -> bool:
    """Exchanges two names in one step; False where the system cannot."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):  # a C library without it
        return False
    if rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):  # this file system cannot
        return False
    raise OSError(code, os.strerror(code), str(other))


# Failures


def reason(error: Exception) -> str:
    """An error in one line, without the path it may repeat."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(said.split())


def disk_is_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def failing_as_run_error(place: Path) -> Iterator[None]:
    """A full disk, a permission that is missing: a RunError that says where."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{place}: cannot be written ({reason(error)})") from error


# Locks


class Lock:
    """Held until `release`, the object's end or the process's, however that comes: the system lets go of it, no file is left behind."""

    _held: ClassVar[weakref.WeakSet[Lock]] = weakref.WeakSet()

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.release = weakref.finalize(self, os.close, descriptor)
        self._held.add(self)

    @classmethod
    def of(cls, path: Path) -> Lock | None:
        """The lock of a directory or file, or None where somebody else has it; on Windows, or where files cannot be locked, nobody is
        kept out."""
        if sys.platform == "win32":
            return cls(os.open(os.devnull, os.O_RDONLY))
        descriptor = os.open(path, os.O_RDONLY)
        lock = cls(descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.release()
            return None
        except OSError:
            pass
        return lock

    @classmethod
    def file(cls, path: Path) -> Lock | None:
        """The lock of the file `path`, which is made for it; None where somebody else has it. `remove_file` takes the file away again."""
        while True:
            os.close(os.open(path, os.O_RDONLY | os.O_CREAT | _NO_FOLLOW | _NO_WAIT, 0o666))
            try:
                lock = cls.of(path)
                if lock is None or sys.platform == "win32" or os.path.samestat(os.fstat(lock._descriptor), os.stat(path)):
                    return lock
            except FileNotFoundError:
                continue  # whoever had it removed it meanwhile, and so what was locked is not what others will lock

    def remove_file(self, path: Path) -> None:
        """Removes the locked file and lets go of it, in this order: nobody else can lock what is about to vanish."""
        path.unlink(missing_ok=True)
        self.release()

    @classmethod
    def forget(cls) -> None:
        """In a forked process: the locks are its parent's, and must not outlive that."""
        for lock in tuple(cls._held):
            lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=Lock.forget)
