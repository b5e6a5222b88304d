"""A cluster without random faults, for tests with a fixed story.

It has real cores on simulated machines, disks, network and store, as in `cluster.py`. A caller sends requests
and waits for the responses while virtual time passes. Brokers are numbered from 1 on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ottla.config.broker import BrokerConfig
from ottla.metadata.records import Partition
from ottla.model.api_key import ApiKey
from ottla.records.record import Record, decode_batches, encode_batch
from ottla.replication.replica import Replica
from ottla.wire.decode import decode_response
from ottla.wire.encode import request_encoder
from testkit.sim.disk import SimDisk
from testkit.sim.ensemble import Ensemble
from testkit.sim.member import Member
from testkit.sim.network import Lane, Network, Place
from testkit.sim.node import DATA_DIR, Delays
from testkit.sim.world import World

_PRODUCE_VERSION: Final = 13
_FETCH_VERSION: Final = 16
_CREATE_VERSION: Final = 7
#: No wait of a story takes longer.
_PATIENCE_MS: Final = 30_000


class Quiet:
    def __init__(
        self,
        count: int = 3,
        *,
        settings: Mapping[str, str] | None = None,
        own: Mapping[int, Mapping[str, str]] | None = None,
        seed: int = 1,
    ) -> None:
        """`settings` are those of every broker, `own` those of single ones."""
        self.world = World(seed, traced=True)
        self.network = Network(self.world)
        self.ensemble = Ensemble(self.world, session_timeout_ms=4000)
        self._place = Place("caller")
        self._settings: dict[str, str] = {
            "log.flush.policy": "page-cache", "replica.lag.time.max.ms": "2000", **(settings or {}),
        }  # fmt: skip
        self._own = own or {}
        self.disks: dict[int, SimDisk] = {}
        self.members: dict[int, Member] = {}
        for node_id in range(1, count + 1):
            disk = self.disks[node_id] = SimDisk(self.world.random, strict=True)
            disk.make_dir(DATA_DIR.rpartition("/")[0])
            disk.sync_dir("/")
            self.start(node_id)
        self.until(lambda: all(member.joined for member in self.members.values()))

    # --- machines ---------------------------------------------------------------------------------------------

    def start(self, node_id: int) -> Member:
        config = BrokerConfig.from_properties(
            {
                "node.id": str(node_id), "listeners": f"PLAINTEXT://b{node_id}:9092", "log.dirs": DATA_DIR,
                "auto.create.topics.enable": "false", **self._settings, **self._own.get(node_id, {}),
            }
        )  # fmt: skip
        self.disks[node_id].heal()
        member = self.members[node_id] = Member(
            self.world, self.disks[node_id], config, Delays(), self.network, self.ensemble
        )
        member.begin()
        return member

    def kill(self, node_id: int) -> None:
        self.members.pop(node_id).kill()

    def stop(self, node_id: int) -> None:
        """A clean shutdown."""
        done: list[bool] = []
        self.members[node_id].stop_later(lambda: done.append(True))
        self.until(lambda: bool(done))
        del self.members[node_id]

    def cut(self, first: int, second: int) -> None:
        """Nothing passes between two brokers, in either direction."""
        self.network.cut(f"b{first}", f"b{second}")
        self.network.cut(f"b{second}", f"b{first}")

    def mend(self) -> None:
        self.network.mend_all()

    # --- time -------------------------------------------------------------------------------------------------

    def run(self, ms: int) -> None:
        end_ms = self.world.now_ms + ms
        self.world.later(ms, lambda: None)
        while self.world.now_ms < end_ms:
            self.world.step()

    def until(self, wanted: Callable[[], bool], ms: int = _PATIENCE_MS) -> int:
        """Let time pass until the condition holds; returns how long it took."""
        begin_ms = self.world.now_ms
        while not wanted():
            assert self.world.now_ms < begin_ms + ms, "it does not happen:\n" + "\n".join(
                self.world.trace[-40:]
            )
            assert self.world.step(), "nothing happens any more"
        return self.world.now_ms - begin_ms

    # --- requests ---------------------------------------------------------------------------------------------

    def ask(
        self, node_id: int, key: int, version: int, body: Mapping[str, Any], as_broker: int | None = None
    ) -> list[Any]:
        """A request on its own connection; the list gets the response, or None if none will come.

        With `as_broker` the connection authenticates as that broker.
        """
        answers: list[Any] = []
        prove_to = None if as_broker is None else self.ensemble.prove_as(as_broker)
        lane = Lane(self.network, self._place, node_id, lambda: None, prove_to=prove_to)

        def done(answer: Any, error: str | None) -> None:
            answers.append(decode_response(key, version, bytes(answer), 0) if error is None else None)

        lane.ask(key, version, request_encoder(key, version)(dict(body)), done)
        return answers

    def call(
        self, node_id: int, key: int, version: int, body: Mapping[str, Any], as_broker: int | None = None
    ) -> Any:
        answers = self.ask(node_id, key, version, body, as_broker)
        self.until(lambda: bool(answers))
        assert answers[0] is not None, "no answer came"
        return answers[0]

    def create(self, name: str, *assignments: Sequence[int], **configs: str) -> bytes:
        """Create a topic with these replicas per partition; settings with underscores instead of dots.
        Returns when all brokers know it.
        """
        rows = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        topic = {
            "name": name, "num_partitions": -1, "replication_factor": -1, "configs": rows,
            "assignments": [
                {"partition_index": at, "broker_ids": tuple(each)} for at, each in enumerate(assignments)
            ],
        }  # fmt: skip
        node_id = next(iter(self.members))
        row = self.call(node_id, ApiKey.CREATE_TOPICS, _CREATE_VERSION, {"topics": [topic], "timeout": 5000})
        assert row.topics[0].error_code == 0, row
        self.until(lambda: all(name in each.broker.image.topics for each in self.members.values()))
        topic_id: bytes = row.topics[0].topic_id.bytes
        return topic_id

    def configure(self, resource_type: int, name: str, **settings: str) -> None:
        configs = [
            {"name": key.replace("_", "."), "config_operation": 0, "value": value}
            for key, value in settings.items()
        ]
        resource = {"resource_type": resource_type, "resource_name": name, "configs": configs}
        node_id = next(iter(self.members))
        answer = self.call(node_id, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]})
        assert answer.responses[0].error_code == 0, answer
        end = self.ensemble.end
        self.until(lambda: all(each.broker.image.end >= end for each in self.members.values()))

    def produce(
        self,
        node_id: int,
        topic: str,
        *values: bytes,
        number: int = 0,
        acks: int = -1,
        timeout_ms: int = 2000,
    ) -> list[Any]:
        """Send a batch; the list gets the row of the response."""
        records = encode_batch([Record(0, self.world.now_ms, None, value) for value in values])
        rows: list[Any] = []
        lane = Lane(self.network, self._place, node_id, lambda: None)
        topic_id = self.image_topic(topic).topic_id
        body = {
            "transactional_id": None, "acks": acks, "timeout": timeout_ms,
            "topic_data": [
                {"topic_id": topic_id, "partition_data": [{"index": number, "records": records}]}
            ],
        }  # fmt: skip

        def done(answer: Any, error: str | None) -> None:
            if error is None:
                response = decode_response(ApiKey.PRODUCE, _PRODUCE_VERSION, bytes(answer), 0)
                rows.append(response.responses[0].partition_responses[0])
            else:
                rows.append(None)

        lane.ask(
            ApiKey.PRODUCE, _PRODUCE_VERSION, request_encoder(ApiKey.PRODUCE, _PRODUCE_VERSION)(body), done
        )
        return rows

    def write(self, topic: str, *values: bytes, number: int = 0, acks: int = -1) -> int:
        """Produce to the leader and wait for the acknowledgement; returns the first offset."""
        rows = self.produce(self.leader(topic, number), topic, *values, number=number, acks=acks)
        self.until(lambda: bool(rows))
        assert rows[0] is not None and rows[0].error_code == 0, rows
        offset: int = rows[0].base_offset
        return offset

    def fetch_body(
        self, topic: str, offset: int, *, number: int = 0, wait_ms: int = 0, epoch: int = -1, **more: Any
    ) -> dict[str, Any]:
        """A consumer's fetch of one partition; `more` are other fields of the request."""
        partition = {
            "partition": number, "fetch_offset": offset, "partition_max_bytes": 1 << 20,
            "current_leader_epoch": epoch, "last_fetched_epoch": -1, "log_start_offset": -1,
        }  # fmt: skip
        topic_id = self.image_topic(topic).topic_id
        return {
            "max_wait": wait_ms, "min_bytes": 1, "max_bytes": 1 << 20, "session_id": 0, "session_epoch": -1,
            "topics": [{"topic": topic, "topic_id": topic_id, "partitions": [partition]}], **more,
        }  # fmt: skip

    def fetch(
        self, node_id: int, topic: str, offset: int, *, version: int = _FETCH_VERSION, **more: Any
    ) -> Any:
        """The row of the response to a consumer's fetch."""
        answer = self.call(node_id, ApiKey.FETCH, version, self.fetch_body(topic, offset, **more))
        return answer.responses[0].partitions[0]

    def values(self, row: Any) -> list[bytes]:
        """The records in a row of a fetch."""
        return [record.value or b"" for record in decode_batches(row.records)] if row.records else []

    # --- what is --------------------------------------------------------------------------------------------------

    def image_topic(self, topic: str) -> Any:
        return self.ensemble.image.topics[topic]

    def partition(self, topic: str, number: int = 0) -> Partition:
        """By the metadata log."""
        found: Partition = self.ensemble.image.topics[topic].partitions[number]
        return found

    def leader(self, topic: str, number: int = 0) -> int:
        return self.partition(topic, number).leader

    def replica(self, node_id: int, topic: str, number: int = 0) -> Replica:
        return self.members[node_id].broker.partitions.by_name[topic].replicas[number]

    def all_in_sync(self, topic: str, number: int = 0) -> bool:
        partition = self.partition(topic, number)
        return set(partition.isr) == set(partition.replicas)
