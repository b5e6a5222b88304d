"""The clients for asyncio: the methods of `ottla.Producer`, `ottla.Consumer` and `ottla.Admin`, with `await`.

async with ottla.aio.Producer("127.0.0.1:9092") as producer:
    sent = await producer.send("orders", b"value")
    print((await sent).offset)
"""

from ottla.client.admin.core import AsyncAdmin as Admin
from ottla.client.consumer.core import AsyncConsumer as Consumer
from ottla.client.producer.core import AsyncProducer as Producer

__all__ = ["Admin", "Consumer", "Producer"]
