"""Processes for single rounds, forked from this one, which has loaded and warmed everything and started no thread."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import multiprocessing.util
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

Work = Callable[[], object]


@dataclass(frozen=True)
class Ended:
    """How a child ended: `code` as a shell has it (128 + signal), None where it hung and was killed."""

    code: int | None
    out: str
    err: str
    seconds: float
    orphans: int = 0

    @property
    def traceback(self) -> bool:
        return "Traceback (most recent call last)" in self.err

    @property
    def lines(self) -> list[str]:
        """What was said on stderr, warnings left out."""
        return [line for line in self.err.splitlines() if line.strip() and not line.startswith("warning: ")]

    @property
    def last_line(self) -> str:
        return self.err.strip().splitlines()[-1][:300] if self.err.strip() else ""


class Child:
    """`work` in a forked process, in a session of its own (so that its own children can be found), its output kept in memory."""

    def __init__(self, work: Work, *, cwd: Path | None = None, memory: int | None = None) -> None:
        self._out, self._err = os.memfd_create("out"), os.memfd_create("err")
        self._began = time.monotonic()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _play(work, self._out, self._err, cwd, memory)
        self._pidfd = os.pidfd_open(self.pid)
        self.ended: Ended | None = None

    def alive(self, seconds: float = 0.0) -> bool:
        """Whether it is still there after at most so many seconds."""
        return self.ended is None and not select.select([self._pidfd], [], [], max(0.0, seconds))[0]

    def send(self, signum: int, *, group: bool = False) -> None:
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.pid, signum)

    def kill(self) -> Ended:
        """SIGKILL to the process and whatever it started."""
        self.send(signal.SIGKILL)
        return self.wait(60.0)

    def wait(self, seconds: float) -> Ended:
        """Its end; a child that is not done in time has hung and is killed."""
        if self.ended is not None:
            return self.ended
        hung = self.alive(seconds)
        if hung:
            self.send(signal.SIGKILL, group=True)
        _, status = os.waitpid(self.pid, 0)
        took = time.monotonic() - self._began
        raw = os.waitstatus_to_exitcode(status)
        code = None if hung else 128 - raw if raw < 0 else raw
        orphans = 0 if hung else _orphans(self.pid)
        with contextlib.suppress(ProcessLookupError):  # what it left behind must not live on
            os.killpg(self.pid, signal.SIGKILL)
        os.close(self._pidfd)
        self.ended = Ended(code, _read(self._out), _read(self._err), took, orphans)
        return self.ended


def run(work: Work, *, timeout: float, cwd: Path | None = None, memory: int | None = None) -> Ended:
    """`work` to its end. `memory` is how many bytes more than now it may map."""
    return Child(work, cwd=cwd, memory=memory).wait(timeout)


def command(*arguments: str | Path) -> Work:
    """The command line, as `rl-training ARGUMENTS` runs it."""

    def work() -> None:
        from rl_training.cli import main

        sys.exit(main([str(argument) for argument in arguments]))

    return work


def _play(work: Work, out: int, err: int, cwd: Path | None, memory: int | None) -> None:
    """In the child. Leaves as the interpreter would: exit code of SystemExit, a traceback and 1 for anything that was not caught."""
    code = 70
    try:
        die_with_parent()
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)
        if cwd is not None:
            os.chdir(cwd)
        if memory is not None:
            limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + memory
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        code = _exit_code(work)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interpreter that is ending keeps its exit code
        multiprocessing.util._exit_function()  # ends daemonic workers, as the interpreter's end does
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def die_with_parent() -> None:
    """Whoever stops the campaign stops every process of it."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _exit_code(work: Work) -> int:
    try:
        work()
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        print(error.code, file=sys.stderr)
        return 1
    except BaseException as error:
        traceback.print_exc()
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _read(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    text = os.pread(descriptor, min(size, 1 << 20), 0).decode("utf-8", "replace")
    os.close(descriptor)
    return text


def _orphans(session: int, patience: float = 3.0) -> int:
    """How many processes of a session are left when its leader is gone, after a while in which they may end by themselves."""
    deadline = time.monotonic() + patience
    while (left := sum(1 for _ in _members(session))) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def _members(session: int) -> Iterator[int]:
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session and fields[0] != "Z":
                    yield int(entry)


def threads() -> int:
    """Threads of this process: forking is safe while there is one."""
    return len(os.listdir("/proc/self/task"))


def warm(configs: list[Path]) -> None:
    """Loads what rounds load, by giving the commands here: a forked child then has every module and compiled kernel."""
    import torch

    torch.set_num_threads(1)
    for config in configs:
        folder = config.parent
        _quietly("train", "--config", config, "--quiet")
        run_dir = next(folder.glob("*/config.yaml")).parent
        _quietly("resume", "--checkpoint", run_dir, "--quiet")
        _quietly("eval", "--checkpoint", run_dir, "--episodes", "1")
        _quietly("predict", "--checkpoint", run_dir, "[0, 0, 0, 0]")
    _quietly("report", configs[0].parent, "-o", configs[0].parent / "report.html")
    _quietly("configs", "show", configs[0])
    gc.collect()
    gc.freeze()  # a collection in a child would write to, and so copy, every page that holds an object
    if threads() != 1:
        raise RuntimeError(f"{threads()} threads after loading: a forked child could hang on one that is not there")


def _quietly(*arguments: str | Path) -> None:
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(said):
        try:
            command(*arguments)()
        except SystemExit as error:
            if error.code:
                raise RuntimeError(f"{' '.join(map(str, arguments))}: {said.getvalue()}") from None
