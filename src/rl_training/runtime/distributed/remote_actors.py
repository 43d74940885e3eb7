"""The collector of a distributed run: actors in other processes, of which it asks for blocks and puts what comes into the replay.

An actor has at most two orders at a time: it works on one while the block before it is learned from. So what waits in the object store has
a bound, and a slow learner slows the actors down. The ratio of updates to steps is the loop's own, as in a local run.

An actor that dies, or whose environments fail, is started again with episodes that it has not had: its open ones and what it had in flight
are lost, which is counted and said. Only one that fails again and again, without a block between, ends the run.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from rl_training.data.frame_streams import FrameStreams
from rl_training.data.replay import Replay
from rl_training.data.storage import as_array
from rl_training.errors import RunError, UserError, one_line, warn
from rl_training.models.network import Network
from rl_training.runtime.distributed.actor_process import ActorPlan, ActorProcess
from rl_training.runtime.distributed.blocks import BLOCK_SECONDS, BLOCK_STEPS, Facts, Order, facts_of, facts_state
from rl_training.runtime.distributed.cluster import Cluster, reason
from rl_training.runtime.distributed.shards import ShardedReplay
from rl_training.runtime.distributed.weights import Publisher, network_to_send
from rl_training.runtime.run_parts import Clock
from rl_training.types import EnvStep, Items, State

IN_FLIGHT = 2  # orders of one actor
MOST_FAILURES = 3  # of one actor's environments, one after the other, without a block between them
MOST_DEATHS = 10  # of its process: machines come and go, and it may take a while until one is left alone
START_SECONDS = 300.0  # for an actor to make its environments
LOOK_SECONDS = 1.0  # how often a wait looks whether a signal came


@dataclass
class Seat:
    """What the learner knows of one actor; the process on it may change."""

    plan: ActorPlan
    process: Any
    episodes_before: int = 0  # episodes that any of its environments had before this process, at most
    finished: Counter[int] = field(default_factory=Counter)  # of this process, by environment
    failures: int = 0  # since its last block
    starts: int = 1
    num_open: int = 0

    @property
    def next_episode(self) -> int:
        """A number that none of its episodes has had."""
        return self.episodes_before + max(self.finished.values(), default=0) + 1


class Block(NamedTuple):
    """What has come and is not in the replay yet."""

    seat: int
    facts: Facts
    items: Any  # Items, or a reference to them where the replay is elsewhere too


class Flight(NamedTuple):
    """An order under way."""

    seat: int
    items: Any  # a reference


class RemoteActors:
    """Stands where a local run has its `Actor`."""

    def __init__(
        self,
        plans: Sequence[ActorPlan],
        *,
        cluster: Cluster,
        network: Network,
        publisher: Publisher,
        replay: Replay,
        num_envs: int,
        learning_starts: int,
        lockstep: bool,
        reseed: Callable[[ActorPlan, int, int], ActorPlan],
        streams: FrameStreams | None = None,
    ) -> None:
        """num_envs: of each actor. reseed: (plan, actor, start) → the plan of an actor that is started again: it draws anew.

        streams: where the replay is here and stores frames once, what numbers those of all actors.
        """
        self.network, self.learns_from, self._learning_starts = network, learning_starts, learning_starts
        self._cluster, self._ray, self._publisher, self._replay = cluster, cluster.ray, publisher, replay
        self._shards = replay if isinstance(replay, ShardedReplay) else None
        self._num_envs, self._lockstep, self._reseed, self._streams = num_envs, lockstep, reseed, streams
        self._clock = Clock()
        self._flights: dict[Any, Flight] = {}  # by the reference to the facts, in the order they were asked for
        self._arrived: deque[Block] = deque()
        self.resume_note = ""
        self.restarts = self.lost_episodes = 0
        self._blocks = self._staleness = 0  # since the last record: blocks, and by how many updates their weights were old, in all
        self._waited, self._logged_at = 0.0, time.monotonic()
        try:
            self._sent_network = self._ray.put(network_to_send(network))
            self._seats = [Seat(plan, self._start(plan, index)) for index, plan in enumerate(plans)]
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    def follow(self, clock: Clock) -> None:
        """The run's clock: its updates are the version of the weights."""
        self._clock = clock

    # Starting

    def _start(self, plan: ActorPlan, index: int) -> Any:
        return self._cluster.start(ActorProcess, index, plan, self._sent_network)

    def _wait_until_ready(self) -> None:
        notes = self._ask_all(lambda index: self._seats[index].process.ready.remote(), losing=0)
        self.resume_note = next((note for note in notes if note), "")

    def _ask_all(self, ask: Callable[[int], Any], *, losing: int) -> list[Any]:
        """What every actor answers, between two blocks; one that dies meanwhile is started again and asked anew.

        losing: the open episodes that are lost then.
        """
        asked = [ask(index) for index in range(len(self._seats))]
        return [self._answer(index, reference, ask, losing) for index, reference in enumerate(asked)]

    def _answer(self, index: int, reference: Any, ask: Callable[[int], Any], losing: int) -> Any:
        errors = self._ray.exceptions
        while True:
            try:
                answer = self._ray.get(reference, timeout=START_SECONDS)
            except errors.GetTimeoutError:
                raise RunError(f"actor {index} gives no answer for {START_SECONDS:.0f} s") from None
            except errors.RayTaskError as error:
                if isinstance(error.cause, (UserError, RunError)):
                    raise error.cause from None
                raise UserError(f"actor {index} cannot be used: {one_line(error.cause)}") from error
            except errors.RayError as error:
                self._replace(index, error, lost_episodes=losing)
                reference = ask(index)
            else:
                self._seats[index].failures = 0
                return answer

    # Collecting

    @property
    def most_steps(self) -> int:
        return self._num_envs * self._vector_steps

    @property
    def _vector_steps(self) -> int:
        return 1 if self._lockstep else max(1, BLOCK_STEPS // self._num_envs)

    def step(self, env_steps: int, meanwhile: Callable[[], None] | None = None) -> EnvStep:
        """The next block, whoever's it is. Its `EnvStep` is `joined_steps` of those it is made of."""
        if meanwhile is not None:
            meanwhile()
        self._order(env_steps)
        began = time.monotonic()
        while not self._arrived:
            self._look(LOOK_SECONDS)
            self._order(env_steps)  # where an actor was started again
        self._waited += time.monotonic() - began
        seat, facts, items = self._arrived.popleft()
        if self._shards is not None:
            if facts.num_items or self._shards.framed:  # frames come before the items that are made of them
                self._shards.add_reference(items, seat)
        elif items:
            self._replay.add_items(items if self._streams is None else self._streams.renumber(seat, items))
        self._seats[seat].num_open = facts.num_open
        self._blocks += 1
        self._staleness += self._clock.updates - facts.version
        return facts.step

    def _order(self, env_steps: int) -> None:
        """Every actor has as much to do as it may have."""
        version, weights = self._publisher.newest(self._clock.updates, at_once=self._lockstep)
        order = Order(env_steps, self._vector_steps, BLOCK_SECONDS, version)
        most = 1 if self._lockstep else IN_FLIGHT
        busy = Counter(flight.seat for flight in self._flights.values())
        busy.update(block.seat for block in self._arrived)
        for index, seat in enumerate(self._seats):
            for _ in range(most - busy[index]):
                facts, items = seat.process.collect.options(num_returns=2).remote(order, [weights])
                self._flights[facts] = Flight(index, items)

    def _look(self, seconds: float) -> None:
        """Takes in what has come within so many seconds: all of it, so that the loop seldom asks; of each actor in the order asked."""
        asked = list(self._flights.items())
        ready, rest = self._ray.wait([reference for reference, _ in asked], num_returns=1, timeout=seconds, fetch_local=False)
        if ready and rest:
            more, _ = self._ray.wait(rest, num_returns=len(rest), timeout=0, fetch_local=False)
            ready += more
        come, behind = set(ready), set()
        for reference, flight in asked:
            if reference not in come:
                behind.add(flight.seat)
            elif flight.seat not in behind and reference in self._flights:  # not of a process that has been replaced meanwhile
                self._take_in(reference)

    def _take_in(self, reference: Any) -> None:
        flight = self._flights[reference]
        seat, errors = self._seats[flight.seat], self._ray.exceptions
        try:
            facts, items = self._ray.get([reference, flight.items]) if self._shards is None else (self._ray.get(reference), flight.items)
        except errors.RayTaskError as error:
            self._replace(flight.seat, error.cause)
            return
        except errors.RayError as error:
            self._replace(flight.seat, error)
            return
        del self._flights[reference]
        seat.failures = 0
        seat.finished.update(episode.env_index for episode in facts.step.episodes)
        self._arrived.append(Block(flight.seat, facts, items))

    def _replace(self, index: int, error: BaseException, lost_episodes: int | None = None) -> None:
        """Starts the actor again, or ends the run where that has not helped. lost_episodes: one of each environment unless given."""
        seat = self._seats[index]
        seat.failures += 1
        most = MOST_DEATHS if isinstance(error, self._ray.exceptions.RayError) else MOST_FAILURES
        if self._lockstep or seat.failures >= most:
            times = "" if seat.failures == 1 else f" {seat.failures} times, one after the other; the last time"
            raise RunError(f"actor {index} failed{times}: {reason(error)}") from error
        self._flights = {reference: flight for reference, flight in self._flights.items() if flight.seat != index}
        self._ray.kill(seat.process)
        self.restarts += 1
        lost_episodes = self._num_envs if lost_episodes is None else lost_episodes
        self.lost_episodes += lost_episodes
        seat.episodes_before, seat.finished = seat.next_episode, Counter()
        seat.plan = replace(self._reseed(seat.plan, index, seat.starts), first_episode=seat.episodes_before)
        seat.starts += 1
        seat.process = self._start(seat.plan, index)
        lost = f", {lost_episodes} open episode{'s' * (lost_episodes > 1)} and what it had in flight are lost" if lost_episodes else ""
        warn(f"actor {index} is started again{lost}: {reason(error)}", RuntimeWarning)

    # What a run asks beside

    def flush(self) -> None:
        """A block's items are in the replay when its step is told of."""

    @property
    def num_open(self) -> int:
        return sum(seat.num_open for seat in self._seats)

    def refill_from(self, env_steps: int) -> None:
        self.learns_from = env_steps + self._learning_starts

    def measures(self) -> dict[str, float]:
        """Since the last call: how many updates old the acting weights were, and the share of the time that the learner waited."""
        now = time.monotonic()
        share = self._waited / max(now - self._logged_at, 1e-9)
        measured = {"waiting_share": share, "restarts": float(self.restarts), "lost_episodes": float(self.lost_episodes)}
        if self._shards is not None:
            measured["lost_items"] = float(self._shards.lost_items)
        if self._blocks:
            measured["staleness_updates"] = self._staleness / self._blocks
        self._blocks, self._staleness, self._waited, self._logged_at = 0, 0, 0.0, now
        return {f"distributed/{name}": value for name, value in measured.items()}

    def close(self) -> None:
        self._cluster.close()

    # State

    def state_dict(self) -> State:
        """The actors' states when their orders are done, and the blocks that came of these: the first thing a resumed run is told of.

        One actor with nothing in flight is saved as a local run's.
        """
        states = self._states()
        for state in states:
            state["learns_from"] = self.learns_from
        if len(states) == 1 and not self._arrived and (self._streams is None or self._streams.is_one):
            return states[0]
        streams = None if self._streams is None else self._streams.state_dict()
        waiting = [{"seat": block.seat, "facts": facts_state(block.facts), "items": self._items_of(block)} for block in self._arrived]
        return {"actors": states, "waiting": waiting, "streams": streams}

    def _items_of(self, block: Block) -> Items:
        items: Items = block.items if self._shards is None else self._ray.get(block.items)
        return items

    def _states(self) -> list[State]:
        while self._flights:
            self._look(LOOK_SECONDS)
        states = self._ask_all(lambda index: self._seats[index].process.state_dict.remote(), losing=self._num_envs)
        self.resume_note = next((note for _, note in states if note), "")
        return [state for state, _ in states]

    def load_state_dict(self, state: State) -> None:
        states = state.get("actors", [state])
        if len(states) != len(self._seats):
            raise UserError(f"the checkpoint holds {len(states)} actors, this run has {len(self._seats)}")
        self._arrived = deque(
            Block(int(entry["seat"]), facts_of(entry["facts"]), {name: as_array(value) for name, value in entry["items"].items()})
            for entry in state.get("waiting", [])
        )
        if self._shards is not None:
            self._arrived = deque(block._replace(items=self._ray.put(block.items)) for block in self._arrived)
        if any(not 0 <= block.seat < len(self._seats) for block in self._arrived):
            raise ValueError("a block of the checkpoint is of an actor that is not there")
        if self._streams is not None:
            if "actors" in state:
                self._streams.load_state_dict(state["streams"])
            else:
                self._streams.go_on_as_one(int(state["feed"]["frames"]["next"]))
        self.learns_from = int(states[0]["learns_from"])
        said = self._ask_all(lambda index: self._seats[index].process.load_state_dict.remote(states[index]), losing=0)
        for text in (text for texts in said for text in texts):
            warn(text, RuntimeWarning)
        for seat, each in zip(self._seats, states, strict=True):
            envs = each["envs"]
            seat.episodes_before = int(max(envs["episodes"])) if "episodes" in envs else int(envs["resets"])
