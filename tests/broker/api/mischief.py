"""What nobody should send about transactions, and what the protocol answers: one table for a core without a shell and for Apache
Kafka (`tests/interop/test_transactions_bad_input.py`), so that what is expected here is what Kafka says.

A scene has transactional ids in every state, a producer without transactions, and a group of either kind. Whoever makes one says how
to connect and what time it is (`World`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from ottla.model.errors import ErrorCode
from ottla.ports.coordination import partition_of
from ottla.records.record import Record, encode_batch
from tests.broker.api.members import subscription
from tests.broker.api.transactors import Transactor

E = ErrorCode
Codes = dict[tuple[str, int], int]

PRODUCE, LIST_OFFSETS, FIND, JOIN, SYNC, INIT, ADD, ADD_OFFSETS, END, MARK, COMMIT_OFFSETS, DESCRIBE_PRODUCERS, DESCRIBE = (
    0, 2, 10, 11, 14, 22, 24, 25, 26, 27, 28, 61, 65,
)  # fmt: skip
FETCH_OFFSETS, BEAT = 9, 68
OFFSETS_TOPIC, STATE_TOPIC = "__consumer_offsets", "__transaction_state"
PARTITIONS = 6
#: A producer id that nobody has been given.
NOBODY = 987_654_321
HUGE = 2**31 - 1
CLASSIC, MODERN = "classic", "modern"
#: Few partitions: each is looked at after every attempt.
SETTINGS = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.session.timeout.ms": "60000",
}


class World(Protocol):
    @property
    def now_ms(self) -> int: ...

    def connect(self) -> Any:
        """Something with `ask(key, version, **fields)`."""

    def connect_broker(self) -> Any:
        """The same for requests between brokers."""

    def wait(self) -> None:
        """Let a little time pass."""


def batch(*values: bytes, timestamp_ms: int = 1_600_000_000_000, **fields: Any) -> bytes:
    return encode_batch([Record(at, timestamp_ms, b"k", value) for at, value in enumerate(values)], **fields)


class Scene:
    def __init__(self, world: World) -> None:
        self.driver = world
        self.client = world.connect()
        self.create()
        self.idle = self.transactor("idle", 1)
        self.open1, self.open2 = self.transactor("open1", 1), self.transactor("open2", 2)
        assert self.open1.send("t", b"open") == 0
        assert self.open2.send("t", b"open", number=1) == 0
        self.join()
        assert self.open1.add_offsets("by-hand") == 0
        self.patiently(lambda: self.open1.commit_offsets("by-hand", {("t", 0): 5}) == 0)
        member = {"member_id": self.member, "generation_id": self.generation, "group_instance_id": "one"}
        self.patiently(lambda: codes_of(self.commit(self.open2, CLASSIC, ("t", 1), **member)) == {E.NONE})
        member = {"member_id": "m1", "generation_id": self.epoch}
        self.patiently(lambda: codes_of(self.commit(self.open2, MODERN, ("t", 1), **member)) == {E.NONE})
        self.committed1, self.aborted1 = (
            self.ended(name, 1, commit=commit) for name, commit in (("committed1", True), ("aborted1", False))
        )
        self.committed2, self.aborted2 = (
            self.ended(name, 2, commit=commit) for name, commit in (("committed2", True), ("aborted2", False))
        )
        self.zombie, self.heir = self.transactor("inherited", 1), self.transactor("inherited", 1)
        assert self.heir.epoch > self.zombie.epoch
        self.offsets_partition = partition_of("by-hand", 2)
        self.plain = int(self.client.ask(INIT, 4, transactional_id=None, transaction_timeout=0).producer_id)
        sent = batch(b"plain", producer_id=self.plain, producer_epoch=0, base_sequence=0)
        assert self.produce({2: sent}, None) == {("t", 2): 0}

    # --- making it ----------------------------------------------------------------------------------------------

    def patiently(self, is_done: Callable[[], bool]) -> None:
        for _ in range(600):
            if is_done():
                return
            self.driver.wait()
        raise AssertionError("it took too long")

    def create(self) -> None:
        row = {"name": "t", "num_partitions": PARTITIONS, "replication_factor": 1, "configs": []}
        [topic] = self.client.ask(19, 7, topics=[row], timeout=30_000).topics
        assert topic.error_code == 0
        for kind, key in ((0, CLASSIC), (0, MODERN), (0, "by-hand"), (1, "idle")):
            self.patiently(lambda kind=kind, key=key: self.finds(kind, key))  # type: ignore[misc]

    def finds(self, kind: int, key: str) -> bool:
        [row] = self.client.ask(FIND, 4, key_type=kind, coordinator_keys=[key]).coordinators
        return int(row.error_code) == 0

    def transactor(self, name: str, version: int) -> Transactor:
        made = Transactor(self.driver, batch, name, version=version)
        for _ in range(2):
            # Twice: its epoch has a past.
            self.patiently(lambda: made.init(timeout_ms=800_000) == 0)
        return made

    def ended(self, name: str, version: int, *, commit: bool) -> Transactor:
        made = self.transactor(name, version)
        self.patiently(lambda: made.send("t", b"ended", number=3) == 0 or made.sequences.clear() is not None)
        assert made.end(commit=commit) == 0
        self.patiently(lambda: self.describe(name).transaction_state.startswith("Complete"))
        return made

    def join(self) -> None:
        """A member of a classic group and one of KIP-848."""
        asked = {
            "group_id": CLASSIC, "session_timeout": 300_000, "rebalance_timeout": 60_000, "member_id": "",
            "group_instance_id": "one", "protocol_type": "consumer", "reason": None,
            "protocols": [{"name": "range", "metadata": subscription("t")}],
        }  # fmt: skip
        answer = self.answered(JOIN, 9, **asked)
        self.member, self.generation = answer.member_id, answer.generation_id
        rows = [{"member_id": self.member, "assignment": b""}]
        self.answered(
            SYNC, 5, group_id=CLASSIC, generation_id=self.generation, member_id=self.member, group_instance_id="one",
            protocol_type="consumer", protocol_name="range", assignments=rows,
        )  # fmt: skip
        self.epoch = self.answered(
            BEAT, 1, group_id=MODERN, member_id="m1", member_epoch=0, instance_id=None, rack_id=None,
            rebalance_timeout=60_000, subscribed_topic_names=["t"], subscribed_topic_regex=None,
            server_assignor=None, topic_partitions=[],
        ).member_epoch  # fmt: skip

    def answered(self, key: int, version: int, **fields: Any) -> Any:
        """The answer of a coordinator as soon as it is there."""
        answers: list[Any] = []

        def is_answered() -> bool:
            answers.append(self.client.ask(key, version, **fields))
            return int(answers[-1].error_code) == 0

        self.patiently(is_answered)
        return answers[-1]

    # --- looking at it ------------------------------------------------------------------------------------------

    def describe(self, name: str) -> Any:
        return self.client.ask(DESCRIBE, 0, transactional_ids=[name]).transaction_states[0]

    def told(self) -> Any:
        """What a client can see of all of it."""
        names = ["idle", "open1", "open2", "committed1", "committed2", "aborted1", "aborted2", "inherited"]
        rows = [
            {"partition_index": at, "current_leader_epoch": -1, "timestamp": -1} for at in range(PARTITIONS)
        ]
        ends = self.client.ask(
            LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=[{"name": "t", "partitions": rows}]
        )
        topics = [{"name": "t", "partition_indexes": list(range(PARTITIONS))}]
        groups = [
            {"group_id": group, "member_id": None, "member_epoch": -1, "topics": None}
            for group in (CLASSIC, MODERN, "by-hand")
        ]
        return (
            [self.describe(name) for name in names],
            {row.partition_index: row.offset for row in ends.topics[0].partitions},
            self.client.ask(DESCRIBE_PRODUCERS, 0, topics=topics).topics[0].partitions,
            self.client.ask(FETCH_OFFSETS, 9, groups=groups, require_stable=False).groups,
        )

    # --- asking -------------------------------------------------------------------------------------------------

    def produce(
        self, batches: dict[int, bytes], name: str | None, version: int = 12, topic: str = "t"
    ) -> Codes:
        rows = [{"index": number, "records": data} for number, data in batches.items()]
        answer = self.driver.connect().ask(
            PRODUCE, version, transactional_id=name, acks=-1, timeout=30_000,
            topic_data=[{"name": topic, "partition_data": rows}],
        )  # fmt: skip
        return {
            (each.name, row.index): int(row.error_code)
            for each in answer.responses
            for row in each.partition_responses
        }

    def send(
        self, tx: Transactor, number: int, *, version: int | None = None, name: str | None = "", epoch: int = 0,
        topic: str = "t", **fields: Any,
    ) -> Codes:  # fmt: skip
        """A batch as this producer would send it next, but for what is said; `epoch` is added to its own."""
        usual = {
            "producer_id": tx.producer_id, "producer_epoch": tx.epoch + epoch, "transactional": True,
            "base_sequence": tx.sequences.get(("t", number), 0),
        }  # fmt: skip
        data = batch(b"mischief", timestamp_ms=self.driver.now_ms, **usual | fields)
        return self.produce(
            {number: data}, tx.name if name == "" else name, version or (11 if tx.version == 1 else 12), topic
        )

    def end(self, tx: Transactor, commit: bool, version: int | None = None, **fields: Any) -> int:
        asked = {**tx.who, "committed": commit} | fields
        return int(self.client.ask(END, version or tx.versions[26], **asked).error_code)

    def init(self, name: str | None, version: int = 5, **fields: Any) -> int:
        asked = {
            "transactional_id": name,
            "transaction_timeout": 60_000,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        more = {"enable2_pc": False, "keep_prepared_txn": False} if version >= 6 else {}
        return int(self.client.ask(INIT, version, **asked | more | fields).error_code)

    def add(self, tx: Transactor, *places: tuple[str, int], version: int = 3, **fields: Any) -> Codes:
        asked = tx.who | {"verify_only": False} | fields
        topics = [{"name": topic, "partitions": [number]} for topic, number in places]
        if version >= 4:
            answer = self.driver.connect_broker().ask(
                ADD, version, transactions=[{**asked, "topics": topics}]
            )
            if answer.error_code:
                return dict.fromkeys(places, int(answer.error_code))
            rows = answer.results_by_transaction[0].topic_results
        else:
            rows = self.client.ask(
                ADD, version, v3_and_below_transactional_id=asked["transactional_id"],
                v3_and_below_producer_id=asked["producer_id"], v3_and_below_producer_epoch=asked["producer_epoch"],
                v3_and_below_topics=topics,
            ).results_by_topic_v3_and_below  # fmt: skip
        return {
            (topic.name, row.partition_index): int(row.partition_error_code)
            for topic in rows
            for row in topic.results_by_partition
        }

    def add_offsets(self, tx: Transactor, group: str = "by-hand", version: int = 3, **fields: Any) -> int:
        return int(self.client.ask(ADD_OFFSETS, version, **tx.who | {"group_id": group} | fields).error_code)

    def commit(
        self, tx: Transactor, group: str, *places: tuple[str, int], version: int | None = None, **fields: Any
    ) -> Codes:
        asked = {
            **tx.who, "group_id": group, "generation_id": -1, "member_id": "", "group_instance_id": None, **fields,
            "topics": [
                {
                    "name": topic,
                    "partitions": [{"partition_index": number, "committed_offset": 99, "committed_metadata": ""}],
                }
                for topic, number in places or [("t", 0)]
            ],
        }  # fmt: skip
        answer = self.client.ask(COMMIT_OFFSETS, version or tx.versions[28], **asked)
        return {
            (topic.name, row.partition_index): int(row.error_code)
            for topic in answer.topics
            for row in topic.partitions
        }

    def mark(
        self, producer_id: int, epoch: int, *places: tuple[str, int], version: int = 1, coordinator: int = 0,
        commit: bool = True, transaction_version: int = 2,
    ) -> Codes:  # fmt: skip
        row = {
            "producer_id": producer_id, "producer_epoch": epoch, "transaction_result": commit,
            "topics": [{"name": topic, "partition_indexes": [number]} for topic, number in places],
            "coordinator_epoch": coordinator,
            **({"transaction_version": transaction_version} if version >= 2 else {}),
        }  # fmt: skip
        answer = self.driver.connect_broker().ask(MARK, version, markers=[row])
        return {
            (topic.name, each.partition_index): int(each.error_code)
            for marker in answer.markers
            for topic in marker.topics
            for each in topic.partitions
        }

    def two(self, one: bytes, other: bytes, name: str | None = "open1", version: int = 12) -> Codes:
        """Two batches in one request."""
        return self.produce({4: one, 5: other}, name, version)

    def of(self, tx: Transactor, **fields: Any) -> bytes:
        usual = {
            "producer_id": tx.producer_id, "producer_epoch": tx.epoch, "base_sequence": 0, "transactional": True,
        }  # fmt: skip
        return batch(b"mischief", timestamp_ms=self.driver.now_ms, **usual | fields)


class Attempt(NamedTuple):
    name: str
    make: Callable[[Scene], Any]
    code: ErrorCode | set[ErrorCode]
    #: What Kafka says, where that is something else, with the reason beside it in the table.
    kafka: ErrorCode | set[ErrorCode] | None = None
    #: Whether Kafka writes something all the same.
    kafka_changes: bool = False
    #: Whether Kafka can be asked at all.
    in_kafka: bool = True


def _batches() -> list[Attempt]:
    return [
        # First: Kafka remembers of a batch that its coordinator has refused the sequence, and refuses by it what follows.
        Attempt("a plain batch while a transaction is open", lambda s: s.send(s.open1, 0, transactional=False), E.INVALID_TXN_STATE),
        Attempt("the same without an id", lambda s: s.send(s.open1, 0, transactional=False, name=None), E.INVALID_TXN_STATE),
        Attempt("an epoch of the past", lambda s: s.send(s.zombie, 4), E.INVALID_PRODUCER_EPOCH),
        Attempt("an epoch of the past, version 2", lambda s: s.send(s.zombie, 4, version=12), E.INVALID_PRODUCER_EPOCH),
        Attempt("the epoch before the transaction's end", lambda s: s.send(s.committed2, 3, epoch=-1), E.INVALID_PRODUCER_EPOCH),
        Attempt("the same elsewhere", lambda s: s.send(s.committed2, 4, epoch=-1), E.INVALID_PRODUCER_EPOCH),
        Attempt("an epoch of the future where a transaction is open", lambda s: s.send(s.open1, 0, epoch=1, base_sequence=0), E.INVALID_PRODUCER_EPOCH),
        Attempt("the same, version 2", lambda s: s.send(s.open2, 1, epoch=1, base_sequence=0), E.INVALID_PRODUCER_EPOCH),
        Attempt("the largest epoch", lambda s: s.send(s.open2, 4, producer_epoch=2**15 - 1), E.INVALID_PRODUCER_EPOCH),
        Attempt("an unknown producer", lambda s: s.send(s.open1, 4, producer_id=NOBODY), E.INVALID_PRODUCER_ID_MAPPING),
        Attempt("an unknown producer, version 2", lambda s: s.send(s.open2, 4, producer_id=NOBODY), E.INVALID_PRODUCER_ID_MAPPING),
        Attempt("the producer of another transactional id", lambda s: s.send(s.open2, 4, name="open1"), E.INVALID_PRODUCER_ID_MAPPING),
        Attempt("a transactional id that is not there", lambda s: s.send(s.open2, 4, name="nobody"), E.INVALID_PRODUCER_ID_MAPPING),
        Attempt("a partition that was never added", lambda s: s.send(s.open1, 4), E.TRANSACTION_ABORTABLE),
        Attempt("the same by an older client", lambda s: s.send(s.open1, 4, version=10), E.INVALID_TXN_STATE),
        Attempt("before the transaction", lambda s: s.send(s.idle, 4), E.TRANSACTION_ABORTABLE),
        Attempt("after the transaction", lambda s: s.send(s.committed1, 3), E.TRANSACTION_ABORTABLE),
        Attempt("after the transaction, by an older client", lambda s: s.send(s.aborted1, 3, version=9), E.INVALID_TXN_STATE),
        Attempt("a transaction without its id", lambda s: s.send(s.open1, 0, name=None), E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        Attempt("a transaction of nobody without an id", lambda s: s.send(s.open1, 0, name=None, producer_id=-1, producer_epoch=-1, base_sequence=-1), E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        Attempt("two producers", lambda s: s.two(s.of(s.open1), s.of(s.open2)), E.INVALID_PRODUCER_ID_MAPPING),
        Attempt("two producers, and a plain batch", lambda s: s.produce({3: batch(b"plain"), 4: s.of(s.open1), 5: s.of(s.open2)}, "open1"), E.INVALID_PRODUCER_ID_MAPPING),
        Attempt("two epochs", lambda s: s.two(s.of(s.open1), s.of(s.open1, producer_epoch=7)), E.INVALID_PRODUCER_ID_MAPPING),
        Attempt("a transaction's batch beside a plain one, without an id", lambda s: s.two(s.of(s.open1), batch(b"plain"), None), E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        Attempt("a later sequence", lambda s: s.send(s.open1, 0, base_sequence=9), E.OUT_OF_ORDER_SEQUENCE_NUMBER),
        Attempt("a marker", lambda s: s.send(s.open1, 0, control=True), E.INVALID_RECORD),
        Attempt("a marker, version 2", lambda s: s.send(s.open2, 1, control=True), E.INVALID_RECORD),
        Attempt("a marker of no transaction", lambda s: s.send(s.open1, 2, control=True, transactional=False, name=None, producer_id=s.plain, base_sequence=1), E.INVALID_RECORD),
        Attempt("a marker of nobody", lambda s: s.produce({4: batch(b"x", control=True)}, None), E.INVALID_RECORD),
        # Kafka adds it to the transaction first; of clients of old it asks for the transaction first.
        Attempt("into the transactions", lambda s: s.send(s.open2, 0, topic=STATE_TOPIC), E.INVALID_TOPIC_EXCEPTION, kafka_changes=True),
        Attempt("into the offsets", lambda s: s.send(s.open1, 0, topic=OFFSETS_TOPIC), E.INVALID_TOPIC_EXCEPTION, E.TRANSACTION_ABORTABLE),
        Attempt("into a topic that is not there", lambda s: s.send(s.open2, 0, topic="nowhere"), E.UNKNOWN_TOPIC_OR_PARTITION),
        Attempt("into a partition that is not there", lambda s: s.send(s.open2, 77), E.UNKNOWN_TOPIC_OR_PARTITION),
        # Kafka takes it. Nobody could ever end that transaction, and what its readers make of it is their guess.
        Attempt("a transaction that has no producer", lambda s: s.send(s.open2, 4, producer_id=-1, producer_epoch=-1, base_sequence=-1), E.INVALID_PRODUCER_ID_MAPPING, E.NONE, kafka_changes=True),
        Attempt("a transactional id without letters", lambda s: s.produce({4: s.of(s.open2)}, ""), E.INVALID_REQUEST),
    ]  # fmt: skip


def _ends() -> list[Attempt]:
    rows = []
    for commit in (True, False):
        word, other = ("commit", "abort") if commit else ("abort", "commit")
        rows += [
            Attempt(f"{word} as nobody", lambda s, c=commit: s.end(s.open1, c, producer_id=NOBODY), E.INVALID_PRODUCER_ID_MAPPING),
            Attempt(f"{word} as another", lambda s, c=commit: s.end(s.open1, c, producer_id=s.open2.producer_id), E.INVALID_PRODUCER_ID_MAPPING),
            Attempt(f"{word} an id that is not there", lambda s, c=commit: s.end(s.open1, c, transactional_id="nobody"), E.INVALID_PRODUCER_ID_MAPPING),
            Attempt(f"{word} without an id", lambda s, c=commit: s.end(s.open1, c, transactional_id=""), E.INVALID_REQUEST),
            Attempt(f"{word} in the future", lambda s, c=commit: s.end(s.open1, c, producer_epoch=s.open1.epoch + 1), E.PRODUCER_FENCED),
            Attempt(f"{word} in the future, version 2", lambda s, c=commit: s.end(s.open2, c, producer_epoch=s.open2.epoch + 1), E.PRODUCER_FENCED),
            Attempt(f"{word} in no epoch", lambda s, c=commit: s.end(s.open2, c, producer_epoch=-1), E.PRODUCER_FENCED),
            Attempt(f"{word} in the past", lambda s, c=commit: s.end(s.zombie, c), E.PRODUCER_FENCED),
            Attempt(f"{word} in the past, version 2", lambda s, c=commit: s.end(s.zombie, c, version=5), E.PRODUCER_FENCED),
            Attempt(f"{word} in the past, by an older client", lambda s, c=commit: s.end(s.zombie, c, version=1), E.INVALID_PRODUCER_EPOCH),
            Attempt(f"{word} nothing", lambda s, c=commit: s.end(s.idle, c), E.INVALID_TXN_STATE),
            Attempt(f"{word} after it has been done", lambda s, c=commit: s.end(s.committed1 if c else s.aborted1, c), E.NONE),
            Attempt(f"{word} after {other}", lambda s, c=commit: s.end(s.aborted1 if c else s.committed1, c), E.INVALID_TXN_STATE),
            Attempt(
                f"{word} again with the epoch before, version 2",
                lambda s, c=commit: s.end(s.committed2 if c else s.aborted2, c, producer_epoch=(s.committed2 if c else s.aborted2).epoch - 1),
                E.NONE,
            ),
            Attempt(
                f"{word} after {other} with the epoch before, version 2",
                lambda s, c=commit: s.end(s.aborted2 if c else s.committed2, c, producer_epoch=(s.aborted2 if c else s.committed2).epoch - 1),
                E.INVALID_TXN_STATE,
            ),
            Attempt(
                f"{word} long after, version 2",
                lambda s, c=commit: s.end(s.committed2, c, producer_epoch=s.committed2.epoch - 2),
                E.PRODUCER_FENCED,
            ),
        ]  # fmt: skip
    return [
        *rows,
        Attempt("commit nothing, version 2", lambda s: s.end(s.idle, True, version=5), E.INVALID_TXN_STATE),
        Attempt(
            "commit twice with the present epoch, version 2",
            lambda s: s.end(s.committed2, True),
            E.INVALID_TXN_STATE,
        ),
        Attempt(
            "commit what was aborted with the present epoch, version 2",
            lambda s: s.end(s.aborted2, True),
            E.INVALID_TXN_STATE,
        ),
    ]


def _inits() -> list[Attempt]:
    return [
        Attempt("no letters", lambda s: s.init(""), E.INVALID_REQUEST),
        Attempt("no time", lambda s: s.init("new", transaction_timeout=0), E.INVALID_TRANSACTION_TIMEOUT),
        Attempt("less than no time", lambda s: s.init("new", transaction_timeout=-1), E.INVALID_TRANSACTION_TIMEOUT),
        Attempt("too much time", lambda s: s.init("new", transaction_timeout=900_001), E.INVALID_TRANSACTION_TIMEOUT),
        Attempt("all the time there is", lambda s: s.init("open1", transaction_timeout=HUGE), E.INVALID_TRANSACTION_TIMEOUT),
        Attempt("another's producer id", lambda s: s.init("open1", producer_id=s.open2.producer_id, producer_epoch=0), E.PRODUCER_FENCED),
        Attempt("nobody's producer id", lambda s: s.init("open1", producer_id=NOBODY, producer_epoch=0), E.PRODUCER_FENCED),
        Attempt("nobody's producer id, of one that has ended", lambda s: s.init("committed1", producer_id=NOBODY, producer_epoch=0), E.PRODUCER_FENCED),
        Attempt("an epoch of the past", lambda s: s.init("inherited", producer_id=s.zombie.producer_id, producer_epoch=s.zombie.epoch), E.PRODUCER_FENCED),
        Attempt("an epoch of the future", lambda s: s.init("committed2", producer_id=s.committed2.producer_id, producer_epoch=99), E.PRODUCER_FENCED),
        Attempt("the same by an older client", lambda s: s.init("committed2", 3, producer_id=s.committed2.producer_id, producer_epoch=99), E.INVALID_PRODUCER_EPOCH),
        # Kafka looks at the id alone while a transaction is going on, and has a zombie abort its heir's.
        Attempt("an epoch of the past, amid a transaction", lambda s: s.init("open2", producer_id=s.open2.producer_id, producer_epoch=s.open2.epoch - 1), E.PRODUCER_FENCED, E.CONCURRENT_TRANSACTIONS, kafka_changes=True),
        Attempt("an epoch of the future, amid a transaction", lambda s: s.init("open1", producer_id=s.open1.producer_id, producer_epoch=99), E.PRODUCER_FENCED, E.CONCURRENT_TRANSACTIONS, kafka_changes=True),
        Attempt("a producer id without an epoch", lambda s: s.init("open2", producer_id=s.open2.producer_id), E.INVALID_REQUEST),
        Attempt("an epoch without a producer id", lambda s: s.init("open2", producer_epoch=0), E.INVALID_REQUEST),
        # Kafka serves this version to its own tests alone.
        Attempt("two phases", lambda s: s.init("open2", 6, enable2_pc=True), E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, in_kafka=False),
        Attempt("two phases, kept", lambda s: s.init("open2", 6, enable2_pc=True, keep_prepared_txn=True), E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, in_kafka=False),
        Attempt("one phase, kept", lambda s: s.init("open2", 6, keep_prepared_txn=True), E.UNSUPPORTED_VERSION, in_kafka=False),
    ]  # fmt: skip


def _adds() -> list[Attempt]:
    there, nowhere = ("t", 4), ("nowhere", 0)
    rows = []
    for version in (3, 5):
        said = f", version {version}"
        rows += [
            Attempt("as nobody" + said, lambda s, v=version: s.add(s.open1, there, version=v, producer_id=NOBODY), E.INVALID_PRODUCER_ID_MAPPING),
            Attempt("an id that is not there" + said, lambda s, v=version: s.add(s.open1, there, version=v, transactional_id="nobody"), E.INVALID_PRODUCER_ID_MAPPING),
            Attempt("without an id" + said, lambda s, v=version: s.add(s.open1, there, version=v, transactional_id=""), E.INVALID_REQUEST),
            Attempt("in the past" + said, lambda s, v=version: s.add(s.zombie, there, version=v), E.PRODUCER_FENCED),
            Attempt("in the future" + said, lambda s, v=version: s.add(s.open1, there, version=v, producer_epoch=99), E.PRODUCER_FENCED),
            Attempt("a topic that is not there" + said, lambda s, v=version: s.add(s.open1, nowhere, version=v), E.UNKNOWN_TOPIC_OR_PARTITION),
            Attempt("a partition that is not there" + said, lambda s, v=version: s.add(s.open1, ("t", 99), ("t", -1), version=v), E.UNKNOWN_TOPIC_OR_PARTITION),
            Attempt("one that is there and one that is not" + said, lambda s, v=version: s.add(s.open1, there, nowhere, version=v), {E.UNKNOWN_TOPIC_OR_PARTITION, E.OPERATION_NOT_ATTEMPTED}),
        ]  # fmt: skip
    return [
        *rows,
        Attempt("in the past, by an older client", lambda s: s.add(s.zombie, there, version=1), E.INVALID_PRODUCER_EPOCH),
        Attempt("the broker's own topics", lambda s: s.add(s.open1, (OFFSETS_TOPIC, 0), (STATE_TOPIC, 0)), E.TOPIC_AUTHORIZATION_FAILED),
        Attempt("the broker's own topic beside another", lambda s: s.add(s.open1, there, (OFFSETS_TOPIC, 0)), {E.TOPIC_AUTHORIZATION_FAILED, E.OPERATION_NOT_ATTEMPTED}),
        Attempt("asked for what was not added", lambda s: s.add(s.open1, there, version=5, verify_only=True), E.TRANSACTION_ABORTABLE),
        # The protocol has this error from version 5 on; Kafka's own brokers turn it into the other one themselves.
        Attempt("asked for it by an older broker", lambda s: s.add(s.open1, there, version=4, verify_only=True), E.INVALID_TXN_STATE, E.TRANSACTION_ABORTABLE),
        Attempt("asked for before the transaction", lambda s: s.add(s.idle, there, version=5, verify_only=True), E.TRANSACTION_ABORTABLE),
        Attempt("asked for after the transaction", lambda s: s.add(s.committed1, ("t", 3), version=5, verify_only=True), E.TRANSACTION_ABORTABLE),
        Attempt("asked for what was added", lambda s: s.add(s.open1, ("t", 0), version=5, verify_only=True), E.NONE),
        Attempt("asked for in the past", lambda s: s.add(s.zombie, there, version=5, verify_only=True), E.PRODUCER_FENCED),
        Attempt("asked for as nobody", lambda s: s.add(s.open1, there, version=5, verify_only=True, producer_id=NOBODY), E.INVALID_PRODUCER_ID_MAPPING),
        Attempt("offsets as nobody", lambda s: s.add_offsets(s.open1, producer_id=NOBODY), E.INVALID_PRODUCER_ID_MAPPING),
        Attempt("offsets of an id that is not there", lambda s: s.add_offsets(s.open1, transactional_id="nobody"), E.INVALID_PRODUCER_ID_MAPPING),
        Attempt("offsets without an id", lambda s: s.add_offsets(s.open1, transactional_id=""), E.INVALID_REQUEST),
        Attempt("offsets in the past", lambda s: s.add_offsets(s.zombie), E.PRODUCER_FENCED),
        Attempt("offsets in the past, by an older client", lambda s: s.add_offsets(s.zombie, version=1), E.INVALID_PRODUCER_EPOCH),
        Attempt("offsets in the future", lambda s: s.add_offsets(s.open1, producer_epoch=99), E.PRODUCER_FENCED),
        # Kafka adds a partition in which there will be nothing: no group of such a name commits.
        Attempt("offsets of a group without a name", lambda s: s.add_offsets(s.idle, ""), E.INVALID_GROUP_ID, E.NONE, kafka_changes=True),
    ]  # fmt: skip


def _offsets() -> list[Attempt]:
    def as_member(s: Scene, **fields: Any) -> Codes:
        usual = {"member_id": s.member, "generation_id": s.generation, "group_instance_id": "one"}
        return s.commit(s.open2, CLASSIC, **usual | fields)

    return [
        Attempt("as somebody", lambda s: as_member(s, member_id="invented"), E.FENCED_INSTANCE_ID),
        Attempt("as somebody who is no instance", lambda s: as_member(s, member_id="invented", group_instance_id=None), E.UNKNOWN_MEMBER_ID),
        Attempt("as an instance that is not there", lambda s: as_member(s, group_instance_id="two"), E.UNKNOWN_MEMBER_ID),
        # Kafka adds the group's partition to the transaction first.
        Attempt("as somebody, before the transaction", lambda s: s.commit(s.idle, CLASSIC, version=5, member_id="invented", generation_id=s.generation), E.UNKNOWN_MEMBER_ID, kafka_changes=True),
        Attempt("in the past", lambda s: as_member(s, generation_id=s.generation - 1), E.ILLEGAL_GENERATION),
        Attempt("in the future", lambda s: as_member(s, generation_id=HUGE), E.ILLEGAL_GENERATION),
        Attempt("by a member without a generation", lambda s: as_member(s, generation_id=-1), E.ILLEGAL_GENERATION),
        Attempt("in a generation without a member", lambda s: as_member(s, member_id="", group_instance_id=None), E.UNKNOWN_MEMBER_ID),
        Attempt("as somebody, KIP-848", lambda s: s.commit(s.open2, MODERN, member_id="invented", generation_id=s.epoch), E.UNKNOWN_MEMBER_ID),
        Attempt("in the past, KIP-848", lambda s: s.commit(s.open2, MODERN, member_id="m1", generation_id=s.epoch - 1), E.ILLEGAL_GENERATION),
        Attempt("in the future, KIP-848", lambda s: s.commit(s.open2, MODERN, member_id="m1", generation_id=HUGE), E.ILLEGAL_GENERATION),
        Attempt("in a group that is not there", lambda s: s.commit(s.open2, "nothing", member_id="m", generation_id=3), E.ILLEGAL_GENERATION),
        Attempt("a group without a name", lambda s: s.commit(s.open2, ""), E.INVALID_GROUP_ID),
        Attempt("a group that was not added", lambda s: s.commit(s.idle, "by-hand"), E.INVALID_TXN_STATE),
        Attempt("a group that was not added, by a younger client", lambda s: s.commit(s.idle, "by-hand", version=4), E.TRANSACTION_ABORTABLE),
        Attempt("after the transaction", lambda s: s.commit(s.committed1, "by-hand", version=4), E.TRANSACTION_ABORTABLE),
        Attempt("of another transactional id", lambda s: s.commit(s.idle, "by-hand", transactional_id="open2"), E.INVALID_PRODUCER_ID_MAPPING),
        Attempt("of a transactional id that is not there", lambda s: s.commit(s.idle, "by-hand", transactional_id="nobody", version=5), E.INVALID_PRODUCER_ID_MAPPING),
        Attempt("by nobody", lambda s: s.commit(s.open2, "by-hand", producer_id=NOBODY), E.INVALID_PRODUCER_ID_MAPPING),
        Attempt("in the producer's past", lambda s: s.commit(s.zombie, "by-hand"), E.INVALID_PRODUCER_EPOCH),
        Attempt("in the producer's past, version 2", lambda s: s.commit(s.zombie, "by-hand", version=5), E.INVALID_PRODUCER_EPOCH),
        Attempt("in the producer's future", lambda s: s.commit(s.open1, "by-hand", producer_epoch=s.open1.epoch + 1), E.INVALID_PRODUCER_EPOCH),
        Attempt("without a transactional id", lambda s: s.commit(s.idle, "by-hand", transactional_id=""), E.INVALID_REQUEST),
        Attempt("without a producer", lambda s: s.commit(s.idle, "by-hand", producer_id=-1), E.INVALID_PRODUCER_ID_MAPPING),
        Attempt("without an epoch", lambda s: s.commit(s.idle, "by-hand", producer_epoch=-1, version=5), E.INVALID_PRODUCER_EPOCH),
        Attempt("for what is not there", lambda s: s.commit(s.open2, "by-hand", ("nowhere", 0), ("t", 77), ("t", -1)), E.UNKNOWN_TOPIC_OR_PARTITION),
    ]  # fmt: skip


def _markers() -> list[Attempt]:
    def late(s: Scene, tx: Transactor, epoch: int, number: int, **more: Any) -> Codes:
        return s.mark(tx.producer_id, tx.epoch + epoch, ("t", number), **more)

    return [
        Attempt("of a topic that is not there", lambda s: s.mark(s.open1.producer_id, s.open1.epoch, ("nowhere", 0)), E.UNKNOWN_TOPIC_OR_PARTITION),
        Attempt("of a partition that is not there", lambda s: s.mark(s.open1.producer_id, s.open1.epoch, ("t", 77), ("t", -1)), E.UNKNOWN_TOPIC_OR_PARTITION),
        Attempt("of the past", lambda s: late(s, s.committed2, -1, 3), E.INVALID_PRODUCER_EPOCH),
        Attempt("of the past, version 2", lambda s: late(s, s.committed2, -1, 3, version=2), E.INVALID_PRODUCER_EPOCH),
        Attempt("of the transaction's own epoch, version 2", lambda s: late(s, s.open2, 0, 1, version=2), E.INVALID_PRODUCER_EPOCH),
        Attempt("of an earlier coordinator", lambda s: late(s, s.committed1, 0, 3, coordinator=-1), E.TRANSACTION_COORDINATOR_FENCED),
        Attempt("of an earlier coordinator, version 2", lambda s: late(s, s.committed2, 1, 3, coordinator=-1, version=2), E.TRANSACTION_COORDINATOR_FENCED),
        Attempt("of a coordinator before all others", lambda s: s.mark(NOBODY, 0, ("t", 4), coordinator=-2), E.TRANSACTION_COORDINATOR_FENCED),
        # Kafka fails at making the batch.
        Attempt("of no producer", lambda s: s.mark(-1, 0, ("t", 4)), E.INVALID_PRODUCER_EPOCH, E.UNKNOWN_SERVER_ERROR),
        Attempt("of no epoch", lambda s: s.mark(NOBODY, -1, ("t", 4), version=2), E.INVALID_PRODUCER_EPOCH, E.UNKNOWN_SERVER_ERROR),
        Attempt("of no transaction version", lambda s: s.mark(NOBODY, 0, ("t", 4), version=2, transaction_version=-1), E.INVALID_REQUEST, E.UNKNOWN_SERVER_ERROR),
        Attempt("of the past, in the offsets", lambda s: s.mark(s.open1.producer_id, s.open1.epoch - 1, (OFFSETS_TOPIC, s.offsets_partition)), E.INVALID_PRODUCER_EPOCH),
    ]  # fmt: skip


GROUPS: dict[str, list[Attempt]] = {
    "produce": _batches(), "end": _ends(), "init": _inits(), "add": _adds(), "offsets": _offsets(), "markers": _markers(),
}  # fmt: skip
ATTEMPTS: list[tuple[str, Attempt]] = [
    (f"{kind}: {row.name}", row) for kind, rows in GROUPS.items() for row in rows
]


def codes_of(told: Any) -> set[ErrorCode]:
    return {ErrorCode(int(each)) for each in (told.values() if isinstance(told, dict) else (told,))}
