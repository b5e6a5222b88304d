"""The producer id of an idempotent producer without a transactional id.

Any broker gives one. A new one is needed when the epochs of the old one are used up.
"""

from __future__ import annotations

import asyncio

from ottla.client.cluster import Cluster, backoff_ms
from ottla.client.errors import KafkaError, refused
from ottla.client.producer.accumulator import Accumulator
from ottla.client.producer.batches import ProducerId
from ottla.client.producer.settings import ProducerConfig
from ottla.model.api_key import ApiKey

TRANSACTION_TIMEOUT_NONE_MS = (1 << 31) - 1


class Identity:
    """Gets producer ids. `asking` is the running request; `woken` is set when it is answered."""

    def __init__(
        self, cluster: Cluster, settings: ProducerConfig, accumulator: Accumulator, woken: asyncio.Event
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._accumulator = accumulator
        self._woken = woken
        self._producer: ProducerId | None = None
        self._attempts = 0
        self.asking: asyncio.Task[None] | None = None

    def current(self) -> ProducerId | None:
        """The producer id and epoch to send with; None while a request for one is in flight."""
        if self.asking is None and (self._producer is None or self._accumulator.exhausted):
            self._accumulator.exhausted = False
            self._producer = None
            self.asking = asyncio.get_running_loop().create_task(self._ask())
        return self._producer

    async def _ask(self) -> None:
        body = {
            "transactional_id": None,
            "transaction_timeout": TRANSACTION_TIMEOUT_NONE_MS,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        try:
            response = await self._cluster.ask_any(ApiKey.INIT_PRODUCER_ID, body)
            if response.error_code:
                raise refused(int(response.error_code), "getting a producer id")
            self._producer = (int(response.producer_id), int(response.producer_epoch))
            self._attempts = 0
        except KafkaError as error:
            if error.retriable:
                self._accumulator.unreachable([batch.tp for batch in self._accumulator.outstanding()], error)
            else:
                self._accumulator.fail_waiting(error)
            # The coordinator is loading or brokers are unreachable: batches wait, and can expire.
            self._attempts += 1
            await asyncio.sleep(backoff_ms(self._settings, self._attempts) / 1000)
        finally:
            self.asking = None
            self._woken.set()
