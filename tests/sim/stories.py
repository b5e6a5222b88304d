"""Helpers for stories in the simulation: a client that waits for its responses, and a node with two log
directories.
"""

from random import Random
from typing import Any

from ottla.config.broker import BrokerConfig
from ottla.model.api_key import ApiKey
from ottla.records.record import Record, decode_batches, encode_batch
from testkit.sim.clients import Client, Shared
from testkit.sim.disk import PowerCut, SimDisk
from testkit.sim.node import DATA_DIR, OTHER_DIR, Delays, SimNode
from testkit.sim.world import World


class Caller(Client):
    """Sends one request at a time and waits for the response."""

    def call(self, api_key: int, body: dict[str, Any]) -> Any:
        answers: list[Any] = []
        self.request(api_key, body, answers.append)
        while not answers:
            assert self.world.step()
        return answers[0]

    def create(self, **configs: str) -> bytes:
        """A topic `t` of one partition; settings with underscores instead of dots."""
        rows = [{"name": name.replace("_", "."), "value": value} for name, value in configs.items()]
        topic = {
            "name": "t", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": rows,
        }  # fmt: skip
        topic_id: bytes = self.call(ApiKey.CREATE_TOPICS, {"topics": [topic]}).topics[0].topic_id.bytes
        return topic_id

    def produce(self, topic_id: bytes, value: bytes, key: bytes | None = None) -> int:
        """Append one record; returns the error code."""
        batch = encode_batch([Record(0, self.world.now_ms, key, value)])
        rows = [{"topic_id": topic_id, "partition_data": [{"index": 0, "records": batch}]}]
        body = {"transactional_id": None, "acks": -1, "timeout": 9999, "topic_data": rows}
        code: int = self.call(ApiKey.PRODUCE, body).responses[0].partition_responses[0].error_code
        return code

    def read(self, topic_id: bytes) -> list[bytes | None]:
        """The values of a partition, in order."""
        return [record.value for record in self.records(topic_id)]

    def records(self, topic_id: bytes) -> list[Record]:
        found: list[Record] = []
        while True:
            offset = found[-1].offset + 1 if found else 0
            row = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
            body = {
                "max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, "session_id": 0, "session_epoch": -1,
                "topics": [{"topic_id": topic_id, "partitions": [row]}],
            }  # fmt: skip
            answer = self.call(ApiKey.FETCH, body).responses[0].partitions[0]
            assert answer.error_code == 0, answer.error_code
            more = [each for each in decode_batches(answer.records or b"") if each.offset >= offset]
            if not more:
                return found
            found += more


CONFIG = BrokerConfig.from_properties({"node.id": "1", "log.dirs": f"{DATA_DIR},{OTHER_DIR}"})


class Story:
    """A node on a disk with power cuts, and a caller that sends one request at a time."""

    def __init__(
        self, seed: int, config: BrokerConfig, *, is_strict: bool, ignored_site: str | None = None
    ) -> None:
        self.world = World(seed)
        self.disk = SimDisk(Random(seed), strict=is_strict)
        self.disk.make_dir("/var")
        self.disk.sync_dir("/")
        self.disk.ignored_site = ignored_site
        self.shared = Shared(self.world)
        self._config = config
        self.start()

    def start(self) -> None:
        self.node = self.shared.node = SimNode(
            self.world, self.disk, self._config, Delays(sync_ms=1, job_ms=1)
        )
        self.node.start()
        self.caller = Caller(self.shared, "caller")
        self.caller.begin()

    def rest(self, ms: int) -> None:
        end_ms = self.world.now_ms + ms
        while self.world.now_ms < end_ms and self.world.step():
            pass

    def cut_and_start(self) -> None:
        self.node.kill()
        self.disk.heal()
        self.disk.crash()
        self.start()


class TwoDirectories(Story):
    """A node with two directories and a topic of several segments in the first."""

    def __init__(self, seed: int, *, is_strict: bool, ignored_site: str | None = None) -> None:
        super().__init__(seed, CONFIG, is_strict=is_strict, ignored_site=ignored_site)
        self.acknowledged: list[bytes | None] = []
        self.topic_id = self.caller.create(segment_bytes="300", file_delete_delay_ms="0")
        for number in range(12):
            self.produce(b"before %d" % number)

    def produce(self, value: bytes) -> None:
        if self.caller.produce(self.topic_id, value) == 0:
            self.acknowledged.append(value)

    def home(self) -> str:
        replica = self.node.broker.partitions.by_name["t"].replicas[0]
        parent: str = replica.log.parent
        return parent

    def move(self, path: str) -> None:
        topics = [{"name": "t", "partitions": [0]}]
        answer = self.caller.call(ApiKey.ALTER_REPLICA_LOG_DIRS, {"dirs": [{"path": path, "topics": topics}]})
        assert answer.results[0].partitions[0].error_code == 0

    def finish_move(self, path: str) -> None:
        number = 0
        while self.home() != path:
            self.produce(b"during %d at %d" % (number, self.world.events))
            number += 1
            assert number < 200, "the move does not end"

    def check(self) -> None:
        # In order, each once; unacknowledged values may be there or not.
        known = set(self.acknowledged)
        assert [value for value in self.caller.read(self.topic_id) if value in known] == self.acknowledged
        live = [path for path in (DATA_DIR, OTHER_DIR) if "t-0" in self.disk.list(path)]
        assert live == [self.home()]


def cut_at_each_step(seed: int, *, is_strict: bool, ignored_site: str | None = None) -> int:
    """Move a partition, with a power cut before the first step, before the second, … until it is done;
    returns the number of steps.

    After each cut, and after another, everything acknowledged must be in one log.
    """
    step, is_over = 1, False
    while not is_over:
        story = TwoDirectories(seed, is_strict=is_strict, ignored_site=ignored_site)
        target = OTHER_DIR if story.home() == DATA_DIR else DATA_DIR
        story.disk.cut_after = story.disk.steps + step
        try:
            story.move(target)
            story.finish_move(target)
            story.rest(500)
            is_over = True
        except PowerCut:
            pass
        story.cut_and_start()
        story.check()
        # A move that was stored is continued; another one is not.
        if (
            story.node.broker.log_dir_moves.of(story.node.broker.partitions.by_name["t"].replicas[0])
            is not None
        ):
            story.finish_move(target)
            story.check()
        story.produce(b"after")
        story.cut_and_start()
        story.check()
        step += 1
    assert story.home() == target
    return step


COMPACTING = BrokerConfig.from_properties(
    {"node.id": "1", "log.dirs": DATA_DIR, "log.cleaner.backoff.ms": "100"}
)


class Compacted(Story):
    """A node with a topic of few keys and small segments, which is compacted again and again."""

    def __init__(self, seed: int, *, ignored_site: str | None = None) -> None:
        super().__init__(seed, COMPACTING, is_strict=False, ignored_site=ignored_site)
        self.newest: dict[bytes, bytes] = {}
        self.topic_id = self.caller.create(
            segment_bytes="300",
            cleanup_policy="compact",
            min_cleanable_dirty_ratio="0",
            file_delete_delay_ms="0",
        )

    def fill(self, label: bytes) -> None:
        for number in range(12):
            key, value = b"k%d" % (number % 3), label + b" %d" % number
            if self.caller.produce(self.topic_id, value, key) == 0:
                self.newest[key] = value

    def check(self) -> None:
        """The last record of each key is the newest acknowledged one, or a later unanswered one."""
        found = self.caller.records(self.topic_id)
        last = {record.key: record.value for record in found}
        values = {record.value for record in found}
        for key, value in self.newest.items():
            assert value in values, f"{value!r} is gone, {key!r} is {last.get(key)!r}"


def cut_a_compaction(seed: int, ignored_site: str | None = None) -> None:
    """Compact a log, with a power cut before each step, and another one after the next start."""
    step, is_over = 1, False
    while not is_over:
        story = Compacted(seed, ignored_site=ignored_site)
        story.fill(b"first")
        story.disk.cut_after = story.disk.steps + step
        try:
            story.rest(1500)
            is_over = True
        except PowerCut:
            pass
        story.cut_and_start()
        story.check()
        story.fill(b"second")
        story.rest(300)
        story.cut_and_start()
        story.check()
        step += 3
