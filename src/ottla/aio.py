"""The clients on asyncio: the same names and methods as `ottla.Producer`, `ottla.Consumer` and `ottla.Admin`, with await.

async with ottla.aio.Producer("127.0.0.1:9092") as producer:
    await (await producer.send("orders", b"value"))
"""

from ottla.client.admin.core import AsyncAdmin as Admin
from ottla.client.consumer.core import AsyncConsumer as Consumer
from ottla.client.producer.core import AsyncProducer as Producer

__all__ = ["Admin", "Consumer", "Producer"]
