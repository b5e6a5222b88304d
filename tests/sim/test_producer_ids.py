"""Producer ids come in blocks from the cluster store: none is given twice, whichever broker dies, restarts or
controls.
"""

from typing import Any

import pytest

from ottla.broker.api import allocate_producer_ids
from ottla.broker.coordinators import producer_ids
from testkit.sim.quiet import Quiet

INIT = 22
BLOCK = 3


class Cluster(Quiet):
    def __init__(self, seed: int) -> None:
        super().__init__(3, seed=seed)
        self.given: list[int] = []

    @property
    def controller(self) -> int:
        self.until(lambda: any(each.broker.controller_driver.is_active for each in self.members.values()))
        return next(
            node_id for node_id, each in self.members.items() if each.broker.controller_driver.is_active
        )

    def begin(self, node_id: int) -> list[Any]:
        body = {
            "transactional_id": None, "transaction_timeout": 0, "producer_id": -1, "producer_epoch": -1,
        }  # fmt: skip
        return self.ask(node_id, INIT, 4, body)

    def take(self, node_id: int, count: int) -> int:
        """Request this many ids at once; returns how many came."""
        asked = [self.begin(node_id) for _ in range(count)]
        self.until(lambda: all(asked))
        return self.note(asked)

    def note(self, asked: list[list[Any]]) -> int:
        got = [
            each[0].producer_id for each in asked if each and each[0] is not None and not each[0].error_code
        ]
        self.given += got
        return len(got)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (producer_ids, allocate_producer_ids):
        monkeypatch.setattr(module, "PRODUCER_ID_BLOCK", BLOCK)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.usefixtures("small_blocks")
def test_no_producer_id_is_given_twice(seed: int) -> None:
    cluster = Cluster(seed)
    random = cluster.world.random
    for _round in range(6):
        for node_id in list(cluster.members):
            assert cluster.take(node_id, 4) == 4
        # A controller dies, or another broker, while blocks are requested.
        victim = cluster.controller if random.random() < 0.6 else random.choice(sorted(cluster.members))
        asked = [cluster.begin(node_id) for node_id in sorted(cluster.members) for _ in range(BLOCK + 1)]
        cluster.run(random.choice((0, 1, 3, 10, 40)))
        cluster.kill(victim)
        cluster.until(lambda asked=asked: all(asked))  # type: ignore[misc]
        cluster.note(asked)
        cluster.start(victim)
        cluster.until(lambda: all(member.joined for member in cluster.members.values()))
    assert len(cluster.given) > 6 * 12
    assert len(set(cluster.given)) == len(cluster.given)


@pytest.mark.usefixtures("small_blocks")
def test_what_is_left_of_a_block_is_lost_with_its_broker() -> None:
    cluster = Cluster(9)
    first = cluster.controller
    others = [node_id for node_id in cluster.members if node_id != first]
    assert cluster.take(others[0], 1) == cluster.take(first, 1) == 1
    for node_id in (first, others[0]):
        cluster.stop(node_id)
        cluster.start(node_id)
        cluster.until(lambda: all(member.joined for member in cluster.members.values()))
        assert cluster.take(node_id, BLOCK) == BLOCK
    assert len(set(cluster.given)) == len(cluster.given) == 2 + 2 * BLOCK
    # A block is in the metadata before an id of it is given.
    assert max(cluster.given) < max(each.broker.image.next_producer_id for each in cluster.members.values())
