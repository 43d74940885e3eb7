"""Ray as the distributed package uses it, in this process: calls run when they are waited for, and a process can be killed."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from ray import cloudpickle as pickle


class RayError(Exception):
    pass


class ActorDiedError(RayError):
    pass


class GetTimeoutError(RayError):
    pass


class RayTaskError(RayError):
    def __init__(self, cause: BaseException) -> None:
        super().__init__(f"traceback of {cause}")
        self.cause = cause


def sent(value: Any) -> Any:
    """As it comes out of the object store: arrays are read-only."""
    buffers: list[Any] = []
    data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(data, buffers=[bytes(buffer.raw()) for buffer in buffers])


class Reference:
    def __init__(self, value: Any = None, call: Call | None = None, part: int | None = None) -> None:
        self.value, self.call, self.part = value, call, part


class Call:
    """A method call: made when somebody asks for what it returns, after those made before it."""

    def __init__(self, process: Process, method: str, arguments: tuple[Any, ...]) -> None:
        self.process, self.method, self.arguments = process, method, arguments
        self.done, self.result, self.error = False, None, None

    def make(self) -> None:
        process = self.process
        while not self.done:
            call = process.queue.pop(0)
            call.done = True
            if not process.alive:
                call.error = ActorDiedError("killed")
                continue
            try:
                given = [FakeRay().get(each) if isinstance(each, Reference) else each for each in call.arguments]
                call.result = getattr(process.object(), call.method)(*given)
            except RayError as error:
                call.error = error
            except Exception as error:
                call.error = RayTaskError(error)


class Method:
    def __init__(self, process: Process, name: str, num_returns: int = 1) -> None:
        self.process, self.name, self.num_returns = process, name, num_returns

    def options(self, num_returns: int) -> Method:
        return Method(self.process, self.name, num_returns)

    def remote(self, *arguments: Any) -> Any:
        call = Call(self.process, self.name, arguments)
        self.process.queue.append(call)
        self.process.most_queued = max(self.process.most_queued, sum(each.method == "collect" for each in self.process.queue))
        if self.num_returns == 1:
            return Reference(call=call)
        return [Reference(call=call, part=part) for part in range(self.num_returns)]


class Process:
    """What `remote` gives: arguments go through pickle, as they would to another process."""

    def __init__(self, kind: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        values = [each.value if isinstance(each, Reference) else each for each in arguments]
        self._made: Any = None
        self._make = lambda: kind(*sent(values))
        self.queue: list[Call] = []
        self.alive, self.most_queued = True, 0

    def object(self) -> Any:
        if self._made is None:
            self._made = self._make()
        return self._made

    def __getattr__(self, name: str) -> Method:
        return Method(self, name)


class FakeRay:
    exceptions = SimpleNamespace(
        RayError=RayError, RayTaskError=RayTaskError, ActorDiedError=ActorDiedError, GetTimeoutError=GetTimeoutError
    )

    def __init__(self) -> None:
        self.num_puts = 0

    def put(self, value: Any) -> Reference:
        self.num_puts += 1
        return Reference(sent(value))

    def get(self, what: Any, timeout: float | None = None) -> Any:
        if isinstance(what, list):
            return [self.get(each) for each in what]
        if what.call is None:
            return what.value
        what.call.make()
        if what.call.error is not None:
            raise what.call.error
        return what.call.result if what.part is None else what.call.result[what.part]

    def wait(self, references: list[Reference], num_returns: int = 1, timeout: float | None = None, fetch_local: bool = True) -> Any:
        """The first that were asked for are done first."""
        if not any(each.call.done for each in references) and timeout != 0:
            references[0].call.make()
        ready = [each for each in references if each.call.done][:num_returns]
        return ready, [each for each in references if each not in ready]

    def kill(self, process: Process) -> None:
        process.alive = False


class FakeCluster:
    """Stands where `Cluster` does."""

    def __init__(self) -> None:
        self.ray, self.started, self.closed = FakeRay(), [], False

    def start(self, kind: Callable[..., Any], place: int, *arguments: Any) -> Process:
        self.started.append((place, Process(kind, arguments)))
        return self.started[-1][1]

    def close(self) -> None:
        self.closed = True

    def process(self, place: int) -> Process:
        """The newest at this place."""
        return [process for at, process in self.started if at == place][-1]
