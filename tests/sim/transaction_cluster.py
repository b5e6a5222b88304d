"""Helpers for stories of transactions: a cluster, producers that find their coordinators, and readers."""

from typing import Any

from ottla.model.errors import ErrorCode
from ottla.records.record import Record, encode_batch
from testkit.sim.isolation import delivered
from testkit.sim.quiet import Quiet

PRODUCE, FIND, INIT, ADD, ADD_OFFSETS, END, COMMIT_OFFSETS, FETCH_OFFSETS, DESCRIBE = (
    0,
    10,
    22,
    24,
    25,
    26,
    28,
    9,
    65,
)
FETCH, FETCH_VERSION = 1, 16
TOPIC, OFFSETS = "__transaction_state", "__consumer_offsets"
SETTINGS = {
    "transaction.state.log.num.partitions": "4", "offsets.topic.num.partitions": "4", "min.insync.replicas": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}  # fmt: skip
#: A single broker.
ALONE = {
    "transaction.state.log.replication.factor": "1", "transaction.state.log.min.isr": "1",
    "offsets.topic.replication.factor": "1", "min.insync.replicas": "1",
}  # fmt: skip
#: By transaction version.
PRODUCE_VERSIONS = {1: 10, 2: 12}
END_VERSIONS = {1: 4, 2: 5}
COMMIT_VERSIONS = {1: 4, 2: 5}
#: Errors after which a client retries.
PASSING = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.REQUEST_TIMED_OUT,
}  # fmt: skip


def visible(row: Any) -> list[bytes]:
    """The values of a fetched partition without aborted ones."""
    return list(delivered(row, 0, committed=True)[0].values())


class Cluster(Quiet):
    """The topic `t` has three partitions, each with another leader, if there are three brokers."""

    def __init__(self, count: int = 3, *, seed: int = 1, **settings: str) -> None:
        own = {name.replace("_", "."): value for name, value in settings.items()}
        alone = ALONE if count == 1 else {}
        super().__init__(count, settings=SETTINGS | alone | own, seed=seed)
        self.count = count
        places = [(1,)] * 3 if count == 1 else [(1, 2, 3), (2, 3, 1), (3, 1, 2)]
        self.create("t", *places)

    def coordinator(self, key: str, key_type: int) -> int:
        for _ in range(200):
            node_id = next(iter(self.members))
            answers = self.ask(node_id, FIND, 4, {"key_type": key_type, "coordinator_keys": [key]})
            self.until(lambda answers=answers: bool(answers))  # type: ignore[misc]
            row = answers[0] and answers[0].coordinators[0]
            if row and not row.error_code and row.node_id in self.members:
                return int(row.node_id)
            self.run(100)
        raise AssertionError("no coordinator")

    def insist(self, find: Any, key: int, version: int, body: Any, code_of: Any) -> Any:
        """Ask the current broker until it has a final answer."""
        for _ in range(400):
            answers = self.ask(find(), key, version, body)
            self.until(lambda answers=answers: bool(answers))  # type: ignore[misc]
            if answers[0] is not None and code_of(answers[0]) not in PASSING:
                return answers[0]
            self.run(50)
        raise AssertionError("no answer")

    def committed_offset(self, *, require_stable: bool) -> tuple[int, int]:
        topics = [{"name": "t", "partition_indexes": [0]}]
        body = {"group_id": "g", "topics": topics, "require_stable": require_stable}
        answer = self.insist(
            lambda: self.coordinator("g", 0), FETCH_OFFSETS, 7, body, lambda answer: answer.error_code
        )
        row = answer.topics[0].partitions[0]
        return int(row.error_code), int(row.committed_offset)

    def committed(self, number: int) -> list[bytes]:
        """What a read_committed consumer sees of a partition, up to the last stable offset."""
        self.until(lambda: self.leader("t", number) in self.members)
        row = self.fetch(self.leader("t", number), "t", 0, number=number, isolation_level=1)
        return visible(row)

    def glance(self, number: int) -> list[bytes] | None:
        """The same from the present or former leader, if it answers."""
        body = self.fetch_body("t", 0, number=number, isolation_level=1)
        answers = self.ask(self.leader("t", number), FETCH, FETCH_VERSION, body)
        self.until(lambda: bool(answers))
        row = answers[0] and answers[0].responses[0].partitions[0]
        return visible(row) if row is not None and not row.error_code else None

    def is_stable(self, number: int) -> bool:
        leader = self.leader("t", number)
        if leader not in self.members:
            return False
        row = self.fetch(leader, "t", 0, number=number, isolation_level=1)
        return not row.error_code and row.last_stable_offset == row.high_watermark

    def heal(self) -> None:
        """All brokers are there, everything is in sync and no transaction is open."""
        self.mend()
        for node in range(1, self.count + 1):
            if node not in self.members:
                self.start(node)
        self.until(lambda: all(member.joined for member in self.members.values()), 60_000)
        for number in range(3):
            self.until(lambda number=number: self.all_in_sync("t", number), 60_000)  # type: ignore[misc]
        for number in range(3):
            for _ in range(600):
                if self.is_stable(number):
                    break
                self.run(100)
            assert self.is_stable(number), f"t-{number} has a transaction that hangs"


class Tx:
    """A transactional producer that retries until it has a final answer."""

    def __init__(
        self, cluster: Cluster, version: int = 2, name: str = "tx", timeout_ms: int = 20_000
    ) -> None:
        self.cluster, self.version, self.name, self.timeout_ms = cluster, version, name, timeout_ms
        self.producer_id = self.epoch = -1
        self.sequences: dict[int, int] = {}

    @property
    def who(self) -> dict[str, Any]:
        return {"transactional_id": self.name, "producer_id": self.producer_id, "producer_epoch": self.epoch}

    def init(self) -> None:
        body = {
            "transactional_id": self.name,
            "transaction_timeout": self.timeout_ms,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        answer = self.cluster.insist(self.coordinator, INIT, 4, body, lambda answer: answer.error_code)
        assert answer.error_code == 0
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self.sequences.clear()

    def add(self, *numbers: int) -> None:
        body = {
            "v3_and_below_transactional_id": self.name, "v3_and_below_producer_id": self.producer_id,
            "v3_and_below_producer_epoch": self.epoch, "v3_and_below_topics": [{"name": "t", "partitions": numbers}],
        }  # fmt: skip

        def code_of(answer: Any) -> int:
            rows = answer.results_by_topic_v3_and_below[0].results_by_partition
            return int(max(row.partition_error_code for row in rows))

        assert code_of(self.cluster.insist(self.coordinator, ADD, 3, body, code_of)) == 0

    def send(self, value: bytes, *numbers: int) -> list[int]:
        """Produce to these partitions as a client does; returns the error codes."""
        if self.version == 1:
            self.add(*numbers)
        return [self.write_one(value, number) for number in numbers]

    def write_one(self, value: bytes, number: int) -> int:
        sequence = self.sequences.get(number, 0)
        batch = encode_batch(
            [Record(0, self.cluster.world.now_ms, None, value)],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        rows = [{"index": number, "records": batch}]
        body = {
            "transactional_id": self.name, "acks": -1, "timeout": 2000,
            "topic_data": [{"name": "t", "partition_data": rows}],
        }  # fmt: skip

        def find() -> int:
            self.cluster.until(lambda: self.cluster.leader("t", number) in self.cluster.members)
            return self.cluster.leader("t", number)

        def code_of(answer: Any) -> int:
            return int(answer.responses[0].partition_responses[0].error_code)

        code = code_of(self.cluster.insist(find, PRODUCE, PRODUCE_VERSIONS[self.version], body, code_of))
        if not code:
            self.sequences[number] = sequence + 1
        return code

    def begin_end(self, *, commit: bool) -> list[Any]:
        body = self.who | {"committed": commit}
        return self.cluster.ask(self.coordinator(), END, END_VERSIONS[self.version], body)

    def end(self, *, commit: bool) -> int:
        version = END_VERSIONS[self.version]
        body = self.who | {"committed": commit}
        answer = self.cluster.insist(self.coordinator, END, version, body, lambda answer: answer.error_code)
        if not answer.error_code and self.version == 2:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
        return int(answer.error_code)

    def commit_offset(self, offset: int) -> int:
        if self.version == 1:
            answer = self.cluster.insist(
                self.coordinator,
                ADD_OFFSETS,
                3,
                self.who | {"group_id": "g"},
                lambda answer: answer.error_code,
            )
            assert answer.error_code == 0
        body = self.who | {
            "group_id": "g", "generation_id": -1, "member_id": "", "group_instance_id": None,
            "topics": [{"name": "t", "partitions": [{
                "partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": "",
            }]}],
        }  # fmt: skip

        def code_of(answer: Any) -> int:
            return int(answer.topics[0].partitions[0].error_code)

        return code_of(
            self.cluster.insist(
                lambda: self.cluster.coordinator("g", 0),
                COMMIT_OFFSETS,
                COMMIT_VERSIONS[self.version],
                body,
                code_of,
            )
        )

    def state(self) -> str:
        body = {"transactional_ids": [self.name]}
        answer = self.cluster.insist(
            self.coordinator, DESCRIBE, 0, body, lambda answer: answer.transaction_states[0].error_code
        )
        return str(answer.transaction_states[0].transaction_state)

    def coordinator(self) -> int:
        return self.cluster.coordinator(self.name, 1)
