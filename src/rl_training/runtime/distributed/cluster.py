"""Ray itself: started here or reached at an address, and the places that a run's processes have on it. The learner's one import of it."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from rl_training.errors import RunError, UserError, one_line
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.signals import held_back

REACH_SECONDS = 5.0
"""How long an address has to answer."""
PLACES_SECONDS = 30.0
"""How long a cluster has to make room; it may be starting machines."""
LEAST_STORE = 80 << 20  # bytes; Ray takes no less
MOST_HELD_BACK = 100_000  # bytes of what it writes to stderr while it starts
NO_TOKEN = "it asks for a token; set RAY_AUTH_MODE=token, and give the cluster's in ~/.ray/auth_token or RAY_AUTH_TOKEN"
"""Ray says no more of it than that it failed to connect: it sends no token to an address unless it is told to."""


CAUSE_OF_DEATH = re.compile(r"The actor (?:is dead|died) because ([^.\n]+)")
PROCESS = re.compile(r"pid: (\d+).*?ip: (\S+)", re.DOTALL)


class Cluster:
    """A connection to Ray with one place (a CPU each) for every actor and shard. `close` lets go of them, and ends a Ray it began."""

    def __init__(self, config: TrainConfig, *, in_flight_bytes: int) -> None:
        """in_flight_bytes: what the run has in the object store at most."""
        self.ray = import_ray()
        self._began = False
        self._places: Any = None
        processes = config.actors + config.replay_shards
        try:
            if not self.ray.is_initialized():
                with held_back():  # a Ray that is half started would leave processes behind
                    self._connect(config.ray_address, processes + 1, max(LEAST_STORE, 2 * in_flight_bytes))
                    self._began = True
            self._places = self._take_places(config)
        except BaseException:
            self.close()
            raise

    def _connect(self, address: str | None, cpus: int, store: int) -> None:
        logging.getLogger("ray").setLevel(logging.ERROR)
        how: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
        # what an actor raises is told by us, once; Ray would print the traceback of every order that nobody asks after any more
        os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
        if address is None:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            os.environ.setdefault("RAY_worker_niceness", "0")  # beside a busy machine, Ray's own 15 leaves actors hardly any time
            # logical CPUs: 16 actors run on two cores
            how |= {"num_cpus": cpus, "num_gpus": 0, "include_dashboard": False, "object_store_memory": store}
            how["address"] = "local"  # without it Ray would join one that somebody else has started on this machine
        else:
            how["address"] = address
        try:
            with _held_back_stderr() as told:
                self.ray.init(**how)
        except Exception as error:  # whatever Ray raises of an address that is none of its own, or of a machine it cannot start on
            if isinstance(error, ConnectionError) and address == "auto":
                raise UserError("no Ray runs on this machine: start one (ray start --head), or leave the address out") from error
            where = "cannot be started on this machine" if address is None else f"does not answer at {address}"
            reason = NO_TOKEN if "InvalidAuthToken" in told() else f"{' '.join(str(error).split()):.300}"
            raise UserError(f"Ray {where}: {reason}") from error
        # Ray tells of a process that died on stdout, where a quiet run prints its checkpoint alone. We tell of it ourselves.
        self.ray._private.worker._worker_logs_enabled = False

    def _take_places(self, config: TrainConfig) -> Any:
        """Shards beside the learner, actors wherever there is room."""
        from ray.util.placement_group import placement_group

        here = f"node:{self.ray.util.get_node_ip_address()}"
        bundles: list[dict[str, float]] = [{"CPU": 1.0}] * config.actors + [{"CPU": 1.0, here: 0.001}] * config.replay_shards
        places = placement_group(bundles, strategy="PACK")
        if not places.wait(PLACES_SECONDS):
            self.ray.util.remove_placement_group(places)
            free = self.ray.available_resources().get("CPU", 0)
            raise UserError(f"the Ray cluster has no room for actors: {len(bundles)} CPUs are needed, {free:g} are free")
        return places

    def start(self, process: type, place: int, *arguments: Any) -> Any:
        """A process of this class at the given place: actors first, then shards. It is not started again by Ray."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        strategy = PlacementGroupSchedulingStrategy(self._places, placement_group_bundle_index=place)
        options: dict[str, Any] = {"num_cpus": 1, "max_restarts": 0, "scheduling_strategy": strategy}
        return self.ray.remote(process).options(**options).remote(*arguments)

    def release(self) -> None:
        """Lets go of the places, which ends what runs there."""
        with contextlib.suppress(Exception):
            if self._places is not None:
                self.ray.util.remove_placement_group(self._places)
                self._places = None

    def close(self) -> None:
        """No failure of Ray is raised: whoever closes has done what it came for, or an error of its own to tell."""
        if not self._began:
            self.release()
            return
        self._began, self._places = False, None  # closed once more, it would ask a Ray that has ended, and Ray starts another to answer
        with contextlib.suppress(Exception), held_back():
            self.ray.shutdown()  # ends what runs at our places too, and unlike `release` waits for no Ray that a signal has ended


def import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise UserError(f"actors need Ray, which is not installed ({error}): pip install 'rl-training[distributed]'") from None
    return ray


def reason(error: BaseException) -> str:
    """Why a call to another process failed, in a line. Of a death, which Ray tells in a paragraph, the cause and the process."""
    if isinstance(error, (RunError, UserError)):
        return str(error)
    text = str(error)
    if (cause := CAUSE_OF_DEATH.search(text)) is None:
        return f"{one_line(error):.300}"
    process = PROCESS.search(text)
    return cause[1] + (f" (pid {process[1]} on {process[2]})" if process else "")


def require_answer(address: str) -> None:
    """Raises UserError where nobody listens at `host:port`: Ray itself would wait for minutes. `auto` is Ray's to look up."""
    if address == "auto":
        return
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port) < 65_536 or "/" in host:
        raise UserError(f"ray_address must be host:port or auto, got {address!r:.100}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_SECONDS).close()
    except OSError as error:
        raise UserError(f"no Ray cluster answers at {address}: {error}") from None


@contextlib.contextmanager
def _held_back_stderr() -> Iterator[Callable[[], str]]:
    """What is written to stderr meanwhile is kept from the terminal, by libraries below Python too: Ray's repeat a line every second.

    Gives what was written, once this is over.
    """
    sys.stderr.flush()
    written: list[str] = []
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        try:
            os.dup2(file.fileno(), 2)
            yield lambda: "".join(written)
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            written.append(file.read(MOST_HELD_BACK).decode(errors="replace"))
