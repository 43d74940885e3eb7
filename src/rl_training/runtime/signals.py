"""SIGINT and SIGTERM. Asked once, a run saves a checkpoint and leaves; asked twice, it leaves at once; a third time ends the process.

While a run is under way the first signal is only noted, and the run looks for it where it stands between two whole steps: before each
step of training, and in every step of an evaluation. Before that (environments are made and reset, a checkpoint is read, episodes are
played again) nothing has been written that could be left half done, so the first one ends it there. So it does while an update is
compiled, which can take minutes: a checkpoint is saved before.

The same signal within `ONE_REQUEST` seconds is the same request: `timeout` signals its child and then the whole group, and a starter may
pass on a Ctrl-C that the terminal has sent to both.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from rl_training.errors import Interrupted

ONE_REQUEST = 0.1


class Asked(KeyboardInterrupt):
    """Leave at once. No Exception: whatever runs just then would take it for a failure of its own."""


class _Requests:
    """Which signals are requests of their own, and which the same one sent twice."""

    def __init__(self) -> None:
        self._at: dict[int, float] = {}

    def is_new(self, signum: int) -> bool:
        last, now = self._at.get(signum), time.monotonic()
        if last is not None and now - last < ONE_REQUEST:
            return False
        self._at[signum] = now
        return True


class Signals:
    """What has come so far."""

    def __init__(self) -> None:
        self.signum: int | None = None
        """The first signal, or None."""
        self._times, self._noting = 0, 0
        self._requests = _Requests()

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if self._requests.is_new(signum):
            self.count(signum)

    def count(self, signum: int) -> None:
        """One more request."""
        self.signum = signum if self.signum is None else self.signum
        self._times += 1
        if self._times > 2:  # something swallows what we raise
            for worker in multiprocessing.active_children():
                worker.kill()
            os._exit(128 + signum)
        if self._times > 1 or not self._noting:
            raise Asked

    @property
    def came_twice(self) -> bool:
        return self._times > 1

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        """The first one ends what is done inside, though it would only be noted outside."""
        if self.signum is not None:
            raise Asked
        noting, self._noting = self._noting, 0
        try:
            yield
        finally:
            self._noting = noting

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """The first one is only noted: whoever holds this looks at `signum`."""
        self._noting += 1
        try:
            yield
        finally:
            self._noting -= 1


_listening: Signals | None = None
_last = Signals()


def came() -> bool:
    """Whether a signal came while this process last listened: it is leaving, or has left, and needs no telling."""
    return _last.signum is not None


def forget() -> None:
    """A new command begins: what came before it does not count."""
    global _last
    _last = Signals()


def _passing_over_asked(hook: Callable[[sys.UnraisableHookArgs], object]) -> Callable[[sys.UnraisableHookArgs], object]:
    """A signal may come inside a finaliser, from which nothing can be raised: Python would print it. It has been noted, which is enough."""
    return lambda what: None if isinstance(what.exc_value, Asked) else hook(what)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """The first one waits until what is done inside is done, and is then told to the handlers that are there now. A second ends it at once.

    For code that must not be left half done and sets handlers of its own, which would end the process in their way: it sets none here.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    set_handler = signal.signal
    handlers: dict[int, Any] = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    waiting: list[int] = []
    requests = _Requests()

    def tell() -> None:
        for signum, handler in handlers.items():
            set_handler(signum, handler)
        for signum in waiting:
            if isinstance(handlers[signum], Signals):  # told in one go, though they came one after the other
                handlers[signum].count(signum)
            else:
                signal.raise_signal(signum)

    def hold(signum: int, frame: FrameType | None) -> None:
        if not requests.is_new(signum):
            return
        waiting.append(signum)
        if len(waiting) > 1:
            tell()

    def set_other(signalnum: int, handler: Any) -> Any:
        return handlers[signalnum] if signalnum in handlers else set_handler(signalnum, handler)

    for signum in handlers:
        set_handler(signum, hold)
    signal.signal = set_other
    try:
        yield
    finally:
        signal.signal = set_handler
        if len(waiting) < 2:  # else they have been told
            tell()


@contextlib.contextmanager
def listening() -> Iterator[Signals]:
    """Signals come here, and where one ends what is done inside, it ends as `Interrupted`. Inside another, it is the same one."""
    global _listening, _last
    if threading.current_thread() is not threading.main_thread():  # which alone is told of signals
        yield Signals()
        return
    if _listening is not None:
        yield _listening
        return
    _listening = _last = signals = Signals()
    old = {signum: signal.signal(signum, signals) for signum in (signal.SIGINT, signal.SIGTERM)}
    hook = sys.unraisablehook
    sys.unraisablehook = _passing_over_asked(hook)
    try:
        yield signals
    except KeyboardInterrupt:  # `Asked`, or what a library has made of it: Ray's `get` raises one of its own
        if signals.signum is None:
            raise
        raise Interrupted("interrupted before anything was changed", signum=signals.signum) from None
    finally:
        _listening = None
        sys.unraisablehook = hook
        for signum, handler in old.items():
            signal.signal(signum, handler)
