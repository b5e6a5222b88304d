"""The program of docs/offsets.md on other stores: `python own_store.py redis|mariadb ADDRESS TOPIC PORT NAME`.

It adds up amounts by name, with the result and the place in one transaction, and begins where the store says.
"""

import sys
from collections.abc import Sequence
from typing import Any

import confluent_kafka
import pymysql
import redis

#: One record: topic, partition, offset, name, amount.
Taken = tuple[str, int, int, str, int]


class RedisStore:
    """A script is one transaction: nothing else happens in between, and all of it is in the log of changes or nothing."""

    TAKE = """
    for at = 1, #ARGV, 4 do
        if tonumber(redis.call('HGET', KEYS[1], ARGV[at]) or '0') <= tonumber(ARGV[at + 1]) then
            redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1] + 1)
            redis.call('HINCRBY', KEYS[2], ARGV[at + 2], ARGV[at + 3])
        end
    end
    """

    def __init__(self, port: int) -> None:
        self._redis = redis.Redis(port=port, decode_responses=True)
        self._take = self._redis.register_script(self.TAKE)

    def place(self, topic: str, partition: int) -> int:
        return int(self._redis.hget("places", f"{topic}/{partition}") or 0)  # type: ignore[arg-type]

    def take(self, records: Sequence[Taken]) -> None:
        arguments = [
            part
            for topic, partition, offset, name, amount in records
            for part in (f"{topic}/{partition}", offset, name, amount)
        ]
        self._take(keys=["places", "totals"], args=arguments)

    def progress(self) -> int:
        return sum(int(each) for each in self._redis.hvals("places"))  # type: ignore[union-attr]

    def totals(self) -> dict[str, int]:
        return {name: int(total) for name, total in self._redis.hgetall("totals").items()}  # type: ignore[union-attr]

    def is_free(self) -> bool:
        return True


class MariadbStore:
    def __init__(self, port: int) -> None:
        self._connection = pymysql.connect(
            host="127.0.0.1", port=port, user="root", database="totals", autocommit=True
        )
        for columns in (
            "places (topic VARCHAR(100), part INT, next BIGINT, PRIMARY KEY (topic, part))",
            "totals (name VARCHAR(100) PRIMARY KEY, total BIGINT)",
        ):
            self._do(f"CREATE TABLE IF NOT EXISTS {columns} ENGINE = InnoDB")

    def _do(self, statement: str, values: Sequence[Any] = ()) -> int:
        with self._connection.cursor() as cursor:
            return int(cursor.execute(statement, values))

    def _rows(self, statement: str, values: Sequence[Any] = ()) -> Any:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, values)
            return cursor.fetchall()

    def place(self, topic: str, partition: int) -> int:
        rows = self._rows("SELECT next FROM places WHERE topic = %s AND part = %s", (topic, partition))
        return int(rows[0][0]) if rows else 0

    def take(self, records: Sequence[Taken]) -> None:
        # Places are locked in one order by everybody, so that two members do not wait for each other.
        places = sorted({(topic, partition) for topic, partition, *_ in records})
        for place in places:
            self._do("INSERT IGNORE INTO places VALUES (%s, %s, 0)", place)
        self._connection.begin()
        for place in places:
            self._do("SELECT next FROM places WHERE topic = %s AND part = %s FOR UPDATE", place)
        sums: dict[str, int] = {}
        for topic, partition, offset, name, amount in records:
            moved = self._do(
                "UPDATE places SET next = %s WHERE topic = %s AND part = %s AND next <= %s",
                (offset + 1, topic, partition, offset),
            )
            if moved:
                sums[name] = sums.get(name, 0) + amount
        for name, amount in sorted(sums.items()):
            self._do(
                "INSERT INTO totals VALUES (%s, %s) ON DUPLICATE KEY UPDATE total = total + VALUES(total)",
                (name, amount),
            )
        self._connection.commit()

    def progress(self) -> int:
        return int(self._rows("SELECT coalesce(sum(next), 0) FROM places")[0][0])

    def totals(self) -> dict[str, int]:
        return {name: int(total) for name, total in self._rows("SELECT name, total FROM totals")}

    def is_free(self) -> bool:
        """Whether no row is locked by somebody."""
        try:
            self._rows("SELECT * FROM places FOR UPDATE NOWAIT")
        except pymysql.err.OperationalError:
            return False
        return True


STORES: dict[str, Any] = {"redis": RedisStore, "mariadb": MariadbStore}


def main(kind: str, address: str, topic: str, port: str, name: str) -> None:
    store = STORES[kind](int(port))

    def begin_where_we_were(consumer: Any, partitions: Any) -> None:
        for each in partitions:
            each.offset = store.place(each.topic, each.partition)
        consumer.assign(partitions)

    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address, "group.id": f"totals-{kind}", "group.instance.id": name, "log_level": 0,
            "enable.auto.commit": False, "auto.offset.reset": "earliest",
        }
    )  # fmt: skip
    consumer.subscribe([topic], on_assign=begin_where_we_were)
    while True:
        messages = consumer.consume(100, timeout=1)
        for message in messages:
            if message.error():
                sys.exit(f"{message.error()}")
        if messages:
            store.take(
                [
                    (each.topic(), each.partition(), each.offset(), each.key().decode(), int(each.value()))
                    for each in messages
                ]
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
