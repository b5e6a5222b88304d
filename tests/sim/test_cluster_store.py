"""The simulated store keeps the guarantees of `ports/store.py`, whatever happens to connections and sessions."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ottla.metadata import records as r
from ottla.ports.store import Registration
from testkit.sim.ensemble import FENCED, Ensemble
from testkit.sim.store import SESSION_LOST, SimStore
from testkit.sim.world import World

TIMEOUT_MS = 3000


class Node:
    """A scripted member: records its events, and can be paused."""

    def __init__(self, ensemble: Ensemble, node_id: int) -> None:
        self.world = ensemble.world
        self.node_id = node_id
        self.paused = False
        self._held: list[Callable[[], None]] = []
        self.records: list[Any] = []
        self.told: list[str] = []
        self.live: tuple[int, ...] = ()
        self.controller = (-1, 0)
        self.epoch = 0
        self.store = SimStore(ensemble, self, node_id, self)
        opened: list[None] = []
        self.store.connect(lambda: opened.append(None))
        until(self.world, lambda: bool(opened))

    def schedule(self, delay_ms: int, action: Callable[[], None]) -> None:
        self.world.later(delay_ms, lambda: self._held.append(action) if self.paused else action())

    def pause(self) -> None:
        self.paused = True
        self.store.pause()

    def resume(self) -> None:
        self.paused = False
        held, self._held = self._held, []
        for action in held:
            action()
        self.store.resume()

    def restored(self, records: Sequence[Any], now_ms: int) -> None:
        self.told.append("restored")
        self.records = list(records)

    def committed(self, records: list[Any], now_ms: int) -> None:
        self.records += records

    def rejected(self, now_ms: int) -> None:
        self.told.append("rejected")

    def live_brokers(self, live: Mapping[int, Registration], now_ms: int) -> None:
        self.live = tuple(live)

    def controller_is(self, node_id: int, epoch: int, now_ms: int) -> None:
        self.controller = (node_id, epoch)

    def store_suspended(self, now_ms: int) -> None:
        self.told.append("suspended")

    def store_back(self, now_ms: int) -> None:
        self.told.append("back")

    def store_lost(self, now_ms: int) -> None:
        self.told.append("lost")

    def register(self, *, directory: str = "") -> int:
        answers: list[tuple[int, str | None]] = []
        directories = (directory or f"d{self.node_id}",)
        registration = Registration(self.node_id, "h", 9092, None, directories, "one", True)
        self.store.register(registration, lambda *answer: answers.append(answer))
        until(self.world, lambda: bool(answers))
        assert answers[0][1] is None, answers
        return answers[0][0]

    def claim(self) -> tuple[int, str | None]:
        answers: list[tuple[int, str | None]] = []
        self.store.claim(lambda *answer: answers.append(answer))
        until(self.world, lambda: bool(answers))
        return answers[0]

    def append(self, *numbers: int) -> list[str | None]:
        answers: list[str | None] = []
        self.store.append([r.ProducerIds(number) for number in numbers], answers.append)
        return answers

    @property
    def numbers(self) -> list[int]:
        return [record.next_id for record in self.records]


def until(world: World, reached: Callable[[], bool], within_ms: int = 60_000) -> None:
    deadline_ms = world.now_ms + within_ms
    while not reached():
        assert world.now_ms <= deadline_ms and world.step(), "it never happened"


def made(seed: int = 1, count: int = 2) -> tuple[Ensemble, list[Node]]:
    ensemble = Ensemble(World(seed), session_timeout_ms=TIMEOUT_MS)
    return ensemble, [Node(ensemble, node_id) for node_id in range(1, count + 1)]


def test_everybody_hears_of_registrations_control_and_the_log_in_order() -> None:
    _ensemble, (one, two) = made()
    assert one.register() < two.register()
    until(one.world, lambda: one.live == two.live == (1, 2))
    assert one.claim() == (1, None)
    assert two.claim() == (0, "held by 1")
    until(one.world, lambda: one.controller == two.controller == (1, 1))
    answers = [one.append(1, 2), one.append(3), one.append()]
    until(one.world, lambda: answers == [[None], [None], [None]])
    until(one.world, lambda: one.numbers == two.numbers == [1, 2, 3])


def test_the_same_directory_is_the_same_broker_and_another_is_not() -> None:
    ensemble, (one, _two) = made()
    first = one.register()
    assert one.register() == first
    again = Node(ensemble, 1)
    assert again.register() > first
    stranger = Node(ensemble, 1)
    answers: list[tuple[int, str | None]] = []
    registration = Registration(1, "h", 9092, None, ("other",), "x", True)
    stranger.store.register(registration, lambda *answer: answers.append(answer))
    until(one.world, lambda: bool(answers))
    assert answers[0][0] == 0 and "taken" in str(answers[0][1])


def test_a_zombie_controller_cannot_append() -> None:
    _ensemble, (one, two) = made()
    assert one.claim() == (1, None)
    answers: list[tuple[int, str | None]] = []
    two.store.usurp(1, 1, lambda *answer: answers.append(answer))
    until(one.world, lambda: bool(answers))
    assert answers == [(2, None)]
    refused = [one.append(1), one.append(2)]
    until(one.world, lambda: all(refused))
    assert refused == [[FENCED], [FENCED]] and one.told.count("rejected") == 1
    accepted = two.append(7)
    until(one.world, lambda: accepted == [None] and one.numbers == [7])


def test_a_write_of_unknown_outcome_is_in_the_log_once_or_not_and_told_truly() -> None:
    landed_unseen = 0
    for seed in range(60):
        ensemble, (one, two) = made(seed)
        assert one.claim() == (1, None)
        answers = one.append(1)
        while not one.store._in_flight:
            one.world.step()
        if seed % 2:
            one.world.step()
        before = ensemble.end
        one.store.drop()
        landed_unseen += ensemble.end > 0 and not before
        until(one.world, lambda answers=answers: bool(answers))  # type: ignore[misc]
        assert answers == [None]
        until(one.world, lambda two=two: two.numbers == [1])  # type: ignore[misc]
        until(one.world, lambda one=one: "back" in one.told)  # type: ignore[misc]
        assert one.numbers == [1] and ensemble.end == 1 and "suspended" in one.told
    assert landed_unseen > 5


def test_when_the_session_ended_a_lost_write_fails_or_was_there() -> None:
    outcomes = set()
    for seed in range(60):
        ensemble, (one, _two) = made(seed)
        one.register()
        assert one.claim() == (1, None)
        answers = one.append(1)
        for _ in range(seed % 4):
            one.world.step()
        one.store.cut()
        until(one.world, lambda ensemble=ensemble: not ensemble.live)  # type: ignore[misc]
        assert "suspended" in one.told, "the node knows before the others"
        one.store.heal()
        until(one.world, lambda one=one: "back" in one.told)  # type: ignore[misc]
        assert one.told.count("lost") == 1 and len(answers) == 1
        assert ensemble.end == len(one.numbers) == (answers == [None])
        assert answers[0] in (None, SESSION_LOST)
        outcomes.add(answers[0])
        assert one.controller == (-1, 1)
    assert len(outcomes) == 2


def test_a_paused_node_hears_of_its_end_when_it_wakes() -> None:
    ensemble, (one, two) = made()
    one.register()
    until(one.world, lambda: one.live == two.live == (1,))
    one.pause()
    until(one.world, lambda: two.live == ())
    assert one.told == ["restored"] and one.live == (1,)
    one.resume()
    until(one.world, lambda: "back" in one.told)
    assert one.told == ["restored", "suspended", "lost", "back"] and one.live == ()
    # A short pause goes unnoticed.
    two.register()
    two.pause()
    deadline_ms = two.world.now_ms + TIMEOUT_MS // 3
    two.world.later(TIMEOUT_MS // 3, lambda: None)
    while two.world.now_ms < deadline_ms:
        two.world.step()
    two.resume()
    for _ in range(50):
        two.world.step()
    assert "suspended" not in two.told and 2 in ensemble.live


def test_who_was_away_for_long_begins_anew_from_a_snapshot() -> None:
    ensemble, (one, two) = made()
    one.claim()
    two.store.cut()
    answers = one.append(1, 2, 3)
    until(one.world, lambda: bool(answers))
    done: list[str | None] = []
    one.store.snapshot([r.ProducerIds(3)], done.append)
    until(one.world, lambda: bool(done))
    more = one.append(4)
    until(one.world, lambda: more == [None])
    two.store.heal()
    until(one.world, lambda: two.numbers == [3, 4])
    assert two.told.count("restored") == 2
    three = Node(ensemble, 3)
    assert three.numbers == [3, 4]
