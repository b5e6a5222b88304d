"""Stores for a consumer's offsets outside Kafka, in one transaction with what was made of the records: `offset_store=`.

SQLite needs nothing; the others need the driver of their database (`pip install 'ottla[stores]'`). One's own has three methods: `OffsetStore`.
"""

from ottla.client.consumer.stores.mysql import MySQLOffsets
from ottla.client.consumer.stores.postgresql import PostgreSQLOffsets
from ottla.client.consumer.stores.redis import RedisOffsets
from ottla.client.consumer.stores.sqlite import SQLiteOffsets
from ottla.client.consumer.stores.store import OffsetsMoved, OffsetStore

__all__ = [
    "MySQLOffsets",
    "OffsetStore",
    "OffsetsMoved",
    "PostgreSQLOffsets",
    "RedisOffsets",
    "SQLiteOffsets",
]
