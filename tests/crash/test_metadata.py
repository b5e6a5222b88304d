"""kill -9 while topics come and go: each acknowledged creation and deletion holds after the restart."""

import random
from collections import deque
from collections.abc import Callable
from pathlib import Path

from tests.crash.broker_process import CREATE_TOPICS, DELETE_TOPICS, METADATA, BrokerProcess, Wire, batch_of

KILLS = 10
IN_FLIGHT = 8


class Topics:
    """What must be there, what must not, and what may or may not: the requests that were never answered."""

    def __init__(self, random_: random.Random) -> None:
        self._random = random_
        self._made = 0
        #: Name: number of partitions.
        self.there: dict[str, int] = {}
        self.gone: set[str] = set()
        self.unknown: dict[str, int] = {}

    def next_request(self) -> tuple[int, str, int]:
        """API, topic, partitions. A topic that is being created or deleted is left alone until that is answered."""
        kind = self._random.random()
        if self.there and kind < 0.4:
            name = self._random.choice(sorted(self.there))
            partitions = self.there.pop(name)
            self.unknown[name] = partitions
            return DELETE_TOPICS, name, partitions
        if self.gone and kind < 0.6:
            # The same name again is another topic.
            name = self._random.choice(sorted(self.gone))
            self.gone.discard(name)
        else:
            name = f"topic-{self._made}"
            self._made += 1
        partitions = self._random.randrange(1, 5)
        self.unknown[name] = partitions
        return CREATE_TOPICS, name, partitions

    def answered(self, key: int, name: str, partitions: int) -> None:
        del self.unknown[name]
        if key == CREATE_TOPICS:
            self.there[name] = partitions
        else:
            self.gone.add(name)

    def compare(self, found: dict[str, int]) -> None:
        for name, partitions in self.there.items():
            assert found.get(name) == partitions, f"{name} was created and acknowledged"
        for name in self.gone:
            assert name not in found, f"{name} was deleted and acknowledged"
        assert set(found) <= set(self.there) | set(self.unknown)
        # From now on it is known.
        for name, partitions in self.unknown.items():
            if name in found:
                assert found[name] == partitions
                self.there[name] = partitions
            else:
                self.gone.add(name)
        self.unknown.clear()


def send(wire: Wire, key: int, name: str, partitions: int) -> None:
    if key == CREATE_TOPICS:
        row = {"name": name, "num_partitions": partitions, "replication_factor": 1}
        wire.send(CREATE_TOPICS, 5, topics=[row], timeout=30_000)
    else:
        wire.send(DELETE_TOPICS, 4, topic_names=[name], timeout=30_000)


def topics_of(wire: Wire) -> dict[str, int]:
    return {topic.name: len(topic.partitions) for topic in wire.ask(METADATA, 9, topics=None).topics}


def test_acknowledged_creations_and_deletions_hold(
    tmp_path: Path, free_port: int, seed: Callable[[], int]
) -> None:
    random_ = random.Random(seed())
    topics = Topics(random_)
    settings = {"auto.create.topics.enable": "false", "log.segment.delete.delay.ms": "0"}
    data_dir = tmp_path / "data"
    with BrokerProcess(data_dir, free_port, settings) as broker:
        for _ in range(KILLS):
            with Wire(broker.address) as wire:
                asked: deque[tuple[int, str, int]] = deque()
                for _ in range(random_.randrange(1, 60)):
                    while len(asked) < IN_FLIGHT:
                        asked.append(topics.next_request())
                        send(wire, *asked[-1])
                    answer = wire.receive()
                    [row] = answer.topics if asked[0][0] == CREATE_TOPICS else answer.responses
                    assert row.error_code.value == 0, (asked[0], row.error_code)
                    topics.answered(*asked.popleft())
                broker.kill()
            broker.start()
            with Wire(broker.address) as wire:
                topics.compare(topics_of(wire))
                folders = {path.name.rpartition("-")[0] for path in data_dir.iterdir() if path.is_dir()}
                assert folders <= set(topics.there), "a folder of a topic that is no more"
                for name in random_.sample(sorted(topics.there), min(3, len(topics.there))):
                    # A topic that bears the name of a deleted one begins anew; others keep what they got.
                    before = wire.end_offset(name)
                    assert wire.produce(name, batch_of(b"x")) == before
    assert topics.there and topics.gone
    print(f"{KILLS} kills: {len(topics.there)} topics there, {len(topics.gone)} gone")


def test_a_deleted_topic_does_not_come_back_under_a_new_one_of_its_name(
    tmp_path: Path, free_port: int
) -> None:
    with BrokerProcess(tmp_path / "data", free_port) as broker:
        with Wire(broker.address) as wire:
            wire.create("again")
            wire.produce("again", batch_of(b"old", b"old"))
            [row] = wire.ask(DELETE_TOPICS, 4, topic_names=["again"], timeout=30_000).responses
            assert row.error_code.value == 0
            wire.create("again", partitions=2)
        broker.kill()
        broker.start()
        with Wire(broker.address) as wire:
            assert topics_of(wire) == {"again": 2}
            assert wire.end_offset("again") == 0
            assert wire.fetch("again", 0) == []
