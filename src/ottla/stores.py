"""Offset stores: keep a consumer's offsets in the database of its results, and commit both in one transaction.

Pass a store as `offset_store=`. `SQLiteOffsets` needs no driver; for the others run `pip install 'ottla[stores]'`.
A store of your own implements the three methods of `OffsetStore`.
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
