"""A transactional producer of KIP-890 (transactions of version 2), which none of the three libraries is yet: requests by hand.

Partitions are added by the leaders when their first batch comes, offsets by the coordinator of the group, and each end raises the
epoch. What is not answered is sent again as it was, as any client does.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

from tests.crash.broker_process import PATIENCE_S, Wire, batch_of

PRODUCE, FIND_COORDINATOR, INIT_PRODUCER_ID, END_TXN, TXN_OFFSET_COMMIT = 0, 10, 22, 26, 28
#: A coordinator that is read or looked for, a transaction that is not complete yet.
_AGAIN = (14, 15, 16, 51)


class Refused(Exception):
    pass


class Kip890Transactor:
    name: ClassVar = "kip-890"

    def __init__(
        self, address: str, transactional_id: str, timeout_ms: int = 60_000, *, brisk: bool = True
    ) -> None:
        self._address = address
        self._wire: Wire | None = None
        self._name = transactional_id
        self._sequences: dict[tuple[str, int], int] = {}
        self._find(transactional_id, 1)
        answer = self._ask(
            lambda answer: answer.error_code.value, INIT_PRODUCER_ID, 4, transactional_id=transactional_id,
            transaction_timeout=timeout_ms, producer_id=-1, producer_epoch=-1,
        )  # fmt: skip
        self._producer = answer.producer_id, answer.producer_epoch

    def _ask(self, code: Callable[[Any], int], key: int, version: int, **fields: Any) -> Any:
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            try:
                if self._wire is None:
                    self._wire = Wire(self._address)
                answer = self._wire.ask(key, version, **fields)
            except OSError:
                self.close()
                time.sleep(0.01)
                continue
            if code(answer) not in _AGAIN:
                if code(answer):
                    raise Refused(f"API {key}: {code(answer)}")
                return answer
            time.sleep(0.01)
        raise TimeoutError(f"API {key}")

    def _find(self, name: str, kind: int) -> None:
        self._ask(
            lambda answer: answer.coordinators[0].error_code.value, FIND_COORDINATOR, 4,
            key_type=kind, coordinator_keys=[name],
        )  # fmt: skip

    @property
    def _who(self) -> dict[str, Any]:
        producer_id, epoch = self._producer
        return {"transactional_id": self._name, "producer_id": producer_id, "producer_epoch": epoch}

    def begin(self) -> None:
        self._sequences.clear()

    def send(self, topic: str, *values: bytes, partition: int = 0) -> None:
        producer_id, epoch = self._producer
        sequence = self._sequences.get((topic, partition), 0)
        self._sequences[topic, partition] = sequence + len(values)
        batch = batch_of(
            *values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=True
        )
        rows = [{"index": partition, "records": batch}]
        self._ask(
            lambda answer: answer.responses[0].partition_responses[0].error_code.value, PRODUCE, 12,
            transactional_id=self._name, acks=-1, timeout=30_000, topic_data=[{"name": topic, "partition_data": rows}],
        )  # fmt: skip

    def flush(self) -> None:
        """Everything is sent at once."""

    def send_offsets(self, consumer: Any, offsets: dict[tuple[str, int], int]) -> None:
        self._find(consumer.group_id, 0)
        for (topic, number), offset in offsets.items():
            row = {
                "partition_index": number, "committed_offset": offset, "committed_leader_epoch": -1,
                "committed_metadata": "",
            }  # fmt: skip
            self._ask(
                lambda answer: answer.topics[0].partitions[0].error_code.value, TXN_OFFSET_COMMIT, 5, **self._who,
                group_id=consumer.group_id, generation_id=-1, member_id="", group_instance_id=None,
                topics=[{"name": topic, "partitions": [row]}],
            )  # fmt: skip

    def commit(self) -> None:
        self._end(True)

    def abort(self) -> None:
        self._end(False)

    def _end(self, commit: bool) -> None:
        answer = self._ask(lambda answer: answer.error_code.value, END_TXN, 5, **self._who, committed=commit)
        self._producer = answer.producer_id, answer.producer_epoch

    def close(self) -> None:
        if self._wire is not None:
            with suppress(OSError):
                self._wire.socket.close()
            self._wire = None
