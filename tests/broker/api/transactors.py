"""A transactional producer by hand: each request in the versions of clients of old (version 1) or of KIP-890 (version 2)."""

from typing import Any

#: By transaction version: Produce, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, TxnOffsetCommit.
OLD = {0: 9, 24: 3, 25: 3, 26: 3, 28: 3}
NEW = {0: 12, 26: 5, 28: 5}


class Transactor:
    def __init__(self, driver: Any, batch: Any, name: str = "tx", *, version: int = 1) -> None:
        self.driver, self.batch, self.name, self.version = driver, batch, name, version
        self.client = driver.connect()
        self.versions = OLD if version == 1 else NEW
        self.producer_id = self.epoch = -1
        self.sequences: dict[tuple[str, int], int] = {}

    @property
    def who(self) -> dict[str, Any]:
        return {
            "transactional_id": self.name,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
        }

    def find(self) -> None:
        [row] = self.client.ask(10, 4, key_type=1, coordinator_keys=[self.name]).coordinators
        assert row.error_code == 0, row.error_message

    def init(self, timeout_ms: int = 60_000, **more: Any) -> int:
        self.find()
        answer = self.client.ask(22, 4, transactional_id=self.name, transaction_timeout=timeout_ms, **more)
        if not answer.error_code:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
        return int(answer.error_code)

    def add(self, *places: tuple[str, int]) -> dict[tuple[str, int], int]:
        topics = [{"name": topic, "partitions": [number]} for topic, number in places]
        answer = self.client.ask(
            24, self.versions[24], v3_and_below_transactional_id=self.name, v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch, v3_and_below_topics=topics,
        )  # fmt: skip
        return {
            (topic.name, row.partition_index): int(row.partition_error_code)
            for topic in answer.results_by_topic_v3_and_below
            for row in topic.results_by_partition
        }

    def fields(self, topic: str, *values: bytes, number: int = 0) -> dict[str, Any]:
        sequence = self.sequences.get((topic, number), 0)
        self.sequences[topic, number] = sequence + len(values)
        data = self.batch(
            *values, producer_id=self.producer_id, producer_epoch=self.epoch, base_sequence=sequence, transactional=True,
            timestamp_ms=self.driver.now_ms,
        )  # fmt: skip
        rows = [{"index": number, "records": data}]
        return {
            "transactional_id": self.name, "acks": -1, "timeout": 30_000,
            "topic_data": [{"name": topic, "partition_data": rows}],
        }  # fmt: skip

    def produce(self, topic: str, *values: bytes, number: int = 0) -> int:
        answer = self.client.ask(0, self.versions[0], **self.fields(topic, *values, number=number))
        return int(answer.responses[0].partition_responses[0].error_code)

    def send(self, topic: str, *values: bytes, number: int = 0) -> int:
        """Produce as a client does."""
        if self.version == 1:
            codes = self.add((topic, number))
            if any(codes.values()):
                return codes[topic, number]
        return self.produce(topic, *values, number=number)

    def add_offsets(self, group_id: str) -> int:
        return int(self.client.ask(25, self.versions[25], **self.who, group_id=group_id).error_code)

    def commit_offsets(self, group_id: str, offsets: dict[tuple[str, int], int], **member: Any) -> int:
        fields = {"generation_id": -1, "member_id": "", "group_instance_id": None, **member}
        answer = self.client.ask(
            28, self.versions[28], **self.who, group_id=group_id, **fields,
            topics=[
                {"name": topic, "partitions": [{"partition_index": number, "committed_offset": offset, "committed_metadata": ""}]}
                for (topic, number), offset in offsets.items()
            ],
        )  # fmt: skip
        [code] = {int(row.error_code) for topic in answer.topics for row in topic.partitions}
        return code

    def end(self, *, commit: bool) -> int:
        answer = self.client.ask(26, self.versions[26], **self.who, committed=commit)
        if self.version == 2 and not answer.error_code:
            if (answer.producer_id, answer.producer_epoch) != (self.producer_id, self.epoch):
                self.sequences.clear()
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        return int(answer.error_code)


def committed(client: Any, topic: str, number: int = 0) -> list[bytes | None]:
    """What a reader of committed records sees, after it has left out what was aborted."""
    from ottla.records.batch import CONTROL_BIT, HEADER
    from ottla.records.record import decode_batch, whole_batches

    row = client.fetch(topic, 0, number, isolation_level=1)
    assert not row.error_code
    values: list[bytes | None] = []
    aborted = sorted((each.first_offset, each.producer_id) for each in row.aborted_transactions or ())
    inside: set[int] = set()
    for batch in whole_batches(row.records or b""):
        header = HEADER.unpack_from(batch)
        while aborted and aborted[0][0] <= header[0]:
            inside.add(aborted.pop(0)[1])
        if header[5] & CONTROL_BIT:
            inside.discard(header[9])
        elif header[9] not in inside:
            values += [record.value for record in decode_batch(batch)]
    return values
