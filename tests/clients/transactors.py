"""The transactional producers of three libraries under one set of names. Each is begun with its transactional id.

`brisk` ones look for a broker that is away more often than their libraries do by themselves.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ClassVar

import aiokafka
import aiokafka.errors
import aiokafka.structs
import confluent_kafka
import kafka
import kafka.errors

from tests.clients.adapters import PATIENCE_S, QUIET

#: For a broker that is away for a moment again and again: look for it often.
_BRISK_CONFLUENT = {
    "retry.backoff.ms": 10, "retry.backoff.max.ms": 50, "reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 50,
    # A broker that was the only one and away makes librdkafka begin anew with its bootstrap servers (KIP-899). Its coordinator of
    # groups is then still the one that it has given up, and send_offsets_to_transaction waits for that for ever (librdkafka #5511).
    "metadata.recovery.strategy": "none",
}  # fmt: skip
_BRISK_KAFKA_PYTHON = {
    "retry_backoff_ms": 10,
    "reconnect_backoff_ms": 10,
    "reconnect_backoff_max_ms": 50,
}
#: After this a request of kafka-python's was lost.
_BRISK_S = 10
_BRISK_AIOKAFKA = {"retry_backoff_ms": 10}


class ConfluentTransactor:
    name: ClassVar = "confluent-kafka"

    def __init__(
        self, address: str, transactional_id: str, timeout_ms: int = 60_000, *, brisk: bool = False
    ) -> None:
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": address, "transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms,
                "linger.ms": 0, "delivery.timeout.ms": min(timeout_ms, 30_000), **QUIET,
                **(_BRISK_CONFLUENT if brisk else {}),
            }
        )  # fmt: skip
        self._producer.init_transactions(PATIENCE_S)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, *values: bytes, partition: int = 0) -> None:
        for value in values:
            self._producer.produce(topic, value, partition=partition)

    def flush(self) -> None:
        self._producer.flush(PATIENCE_S)

    def send_offsets(self, consumer: Any, offsets: dict[tuple[str, int], int]) -> None:
        rows = [confluent_kafka.TopicPartition(*place, offset) for place, offset in offsets.items()]
        self._producer.send_offsets_to_transaction(rows, consumer.consumer_group_metadata(), PATIENCE_S)

    def commit(self) -> None:
        self._producer.commit_transaction(PATIENCE_S)

    def abort(self) -> None:
        self._producer.abort_transaction(PATIENCE_S)

    def is_fencing(self, error: BaseException) -> bool:
        fenced = confluent_kafka.KafkaError._FENCED
        return isinstance(error, confluent_kafka.KafkaException) and error.args[0].code() == fenced

    def close(self) -> None:
        pass


class KafkaPythonTransactor:
    name: ClassVar = "kafka-python"

    def __init__(
        self, address: str, transactional_id: str, timeout_ms: int = 60_000, *, brisk: bool = False
    ) -> None:
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=address, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms,
            **(_BRISK_KAFKA_PYTHON if brisk else {}),
        )  # fmt: skip
        self._patience_s = _BRISK_S if brisk else PATIENCE_S
        try:
            self._within(self._producer.init_transactions)
        except BaseException:
            self.close()
            raise

    def _within(self, call: Callable[..., Any], *arguments: Any) -> None:
        """The library waits without end, and drops a request whose coordinator refuses connections just then: whoever
        waits for that one has to give up by himself.
        """
        outcome: Future[None] = Future()

        def run() -> None:
            try:
                outcome.set_result(call(*arguments))
            except Exception as error:
                outcome.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        outcome.result(self._patience_s)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, *values: bytes, partition: int = 0) -> None:
        for value in values:
            self._producer.send(topic, value, partition=partition)

    def flush(self) -> None:
        self._producer.flush(PATIENCE_S)

    def send_offsets(self, consumer: Any, offsets: dict[tuple[str, int], int]) -> None:
        rows = {
            kafka.TopicPartition(*place): kafka.structs.OffsetAndMetadata(offset, "", -1)
            for place, offset in offsets.items()
        }
        self._within(self._producer.send_offsets_to_transaction, rows, _group_id(consumer))

    def commit(self) -> None:
        self._within(self._producer.commit_transaction)

    def abort(self) -> None:
        self._within(self._producer.abort_transaction)

    def is_fencing(self, error: BaseException) -> bool:
        return isinstance(error, kafka.errors.KafkaError) and (
            "fenced" in repr(error).lower() or "epoch" in repr(error).lower()
        )

    def close(self) -> None:
        sender = self._producer._sender
        self._producer.close(timeout=1)
        # One that is closed by force goes on for a moment in its own thread, with its sockets.
        sender.join(PATIENCE_S)


class AioKafkaTransactor:
    name: ClassVar = "aiokafka"

    def __init__(
        self, address: str, transactional_id: str, timeout_ms: int = 60_000, *, brisk: bool = False
    ) -> None:
        self._loop = asyncio.new_event_loop()

        async def start() -> Any:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=address,
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
                **(_BRISK_AIOKAFKA if brisk else {}),
            )
            await producer.start()
            return producer

        self._producer = self._run(start())
        self._sent: list[Any] = []

    def _run(self, what: Any) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(what, PATIENCE_S))

    def begin(self) -> None:
        self._sent = []
        self._run(self._producer.begin_transaction())

    def send(self, topic: str, *values: bytes, partition: int = 0) -> None:
        for value in values:
            self._sent.append(self._run(self._producer.send(topic, value, partition=partition)))

    def flush(self) -> None:
        self._run(asyncio.gather(*self._sent))

    def send_offsets(self, consumer: Any, offsets: dict[tuple[str, int], int]) -> None:
        rows = {aiokafka.structs.TopicPartition(*place): offset for place, offset in offsets.items()}
        self._run(self._producer.send_offsets_to_transaction(rows, _group_id(consumer)))

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def is_fencing(self, error: BaseException) -> bool:
        return isinstance(error, aiokafka.errors.ProducerFenced)

    def close(self) -> None:
        try:
            self._run(self._producer.stop())
        except (TimeoutError, aiokafka.errors.KafkaError):
            pass
        finally:
            self._loop.close()


def _group_id(consumer: Any) -> str:
    """Of a consumer of confluent-kafka, which the other two know nothing of."""
    name: str = consumer.group_id
    return name


TRANSACTORS = (ConfluentTransactor, KafkaPythonTransactor, AioKafkaTransactor)
