"""Random histories: transactions while brokers die, return and lose contact.

Two producers, of both versions: in the end every transaction is there completely or not at all, once, in
order; acknowledged ones are there, and none hangs. A copier, with the offsets of a group in its transactions:
each input is there once, in order.
"""

from random import Random

import pytest

from ottla.model.errors import ErrorCode
from testkit.sim.member import Member
from testkit.sim.world import World
from tests.sim.transaction_cluster import Cluster, Tx

TRANSACTIONS = 60


class Weather:
    """Faults: at most one broker is away at a time, killed or without power, and any two may be cut off from
    each other.
    """

    def __init__(self, cluster: Cluster, chance: Random, *, cuts_power: bool = False) -> None:
        self.cluster, self.chance = cluster, chance
        self.cuts_power = cuts_power
        self._ghost: Member | None = None
        self.is_over = False
        self.deaths = 0
        self._later()

    def _later(self) -> None:
        world: World = self.cluster.world
        world.later(self.chance.choice((5, 15, 40, 100, 300, 900)), self._happen)

    def _happen(self) -> None:
        if self.is_over:
            return
        cluster, chance = self.cluster, self.chance
        away = [node for node in (1, 2, 3) if node not in cluster.members]
        match chance.randrange(4):
            case 0 | 1:
                if away:
                    self.power_returns()
                    cluster.start(away[0])
                elif all(member.joined for member in cluster.members.values()):
                    self._take_away(chance.choice((1, 2, 3)))
                    self.deaths += 1
            case 2:
                cluster.cut(*chance.sample((1, 2, 3), 2))
            case _:
                cluster.mend()
        self._later()

    def _take_away(self, node: int) -> None:
        if self.cuts_power:
            self._ghost = self.cluster.members.pop(node)
            self._ghost.lose_power()
        else:
            self.cluster.kill(node)

    def power_returns(self) -> None:
        if self._ghost is not None:
            self._ghost.power_returns()
            self._ghost = None


class Reader:
    """Reads committed records all the time: everything it saw is there in the end."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.seen: list[list[bytes]] = [[], [], []]

    def look(self) -> None:
        for number, known in enumerate(self.seen):
            values = self.cluster.glance(number)
            if values is not None and len(values) > len(known):
                assert values[: len(known)] == known
                self.seen[number] = values

    def check(self, final: list[list[bytes]]) -> None:
        for known, values in zip(self.seen, final, strict=True):
            assert values[: len(known)] == known
        assert any(self.seen)


class History:
    """One producer's transactions: the values by partition, and the answer to the end."""

    def __init__(self, tx: Tx, chance: Random) -> None:
        self.tx, self.chance = tx, chance
        self.number = 0
        #: (value, partitions in which it was acknowledged, True: committed, False: aborted, None: unknown)
        self.ended: list[tuple[bytes, tuple[int, ...], bool | None]] = []
        tx.init()

    def transact(self) -> None:
        tx, chance = self.tx, self.chance
        self.number += 1
        value = f"{tx.name}-{self.number}".encode()
        numbers = tuple(sorted(chance.sample((0, 1, 2), chance.randint(1, 3))))
        commit = chance.random() < 0.7
        codes = tx.send(value, *numbers)
        if any(codes):
            commit = False
        code = tx.end(commit=commit)
        self.ended.append((value, numbers, commit if not code else None))
        if code:
            tx.init()


@pytest.mark.parametrize("seed", range(12))
def test_every_transaction_is_there_as_a_whole_or_not_at_all(seed: int) -> None:
    chance = Random(seed)
    cluster = Cluster(seed=seed + 1)
    histories = [
        History(Tx(cluster, 1 + (seed + at) % 2, f"p{at}", timeout_ms=60_000), chance) for at in range(2)
    ]
    weather, reader = Weather(cluster, chance), Reader(cluster)
    for _ in range(TRANSACTIONS):
        chance.choice(histories).transact()
        reader.look()
    weather.is_over = True
    cluster.heal()
    seen = [cluster.committed(number) for number in range(3)]
    reader.check(seen)
    committed = 0
    for history in histories:
        order = [value for value, _numbers, _is_committed in history.ended]
        for values in seen:
            own = [value for value in values if value in order]
            assert own == sorted(set(own), key=order.index), "twice, or out of order"
        for value, numbers, is_committed in history.ended:
            found = [value in seen[number] for number in numbers]
            if is_committed is None:
                assert len(set(found)) == 1, f"{value!r} is torn: {found}"
            else:
                assert set(found) == {is_committed}, (value, numbers, is_committed, found)
                committed += is_committed
    assert committed and weather.deaths


INPUTS = 100


class Copier:
    """Copies partition 0 to partition 1, from the committed offset of its group."""

    def __init__(self, cluster: Cluster, version: int, chance: Random) -> None:
        self.cluster, self.chance = cluster, chance
        self.tx = Tx(cluster, version, "copier", timeout_ms=60_000)
        self.tx.init()

    def at(self) -> int:
        """The committed offset; it retries while that may still change."""
        for _ in range(400):
            code, offset = self.cluster.committed_offset(require_stable=True)
            if not code:
                return max(offset, 0)
            assert code == ErrorCode.UNSTABLE_OFFSET_COMMIT
            self.cluster.run(50)
        raise AssertionError("the offset stays unstable")

    def copy(self, inputs: list[bytes]) -> bool:
        """Copy a few more; returns whether something is left."""
        tx, at = self.tx, self.at()
        some = inputs[at : at + self.chance.randint(1, 4)]
        if not some:
            return False
        is_good = all(tx.send(value, 1) == [0] for value in some)
        is_good = is_good and tx.commit_offset(at + len(some)) == 0
        commit = is_good and self.chance.random() < 0.8
        if tx.end(commit=commit) or self.chance.random() < 0.1:
            # Or it dies, and another one uses its transactional id.
            tx.init()
        return True


@pytest.mark.parametrize("seed", range(12))
def test_what_is_copied_is_there_once(seed: int) -> None:
    chance = Random(seed)
    cuts_power = seed % 4 < 2
    cluster = Cluster(seed=seed + 1, log_flush_policy="durable" if cuts_power else "page-cache")
    cluster.coordinator("g", 0)
    inputs = [b"%d" % number for number in range(INPUTS)]
    copier = Copier(cluster, 1 + seed % 2, chance)
    weather, reader = Weather(cluster, chance, cuts_power=cuts_power), Reader(cluster)
    while copier.copy(inputs):
        reader.look()
    weather.is_over = True
    weather.power_returns()
    cluster.heal()
    reader.check([[], inputs, []])
    assert cluster.committed(1) == inputs
    assert copier.at() == INPUTS and weather.deaths
