"""The Python SDK: connection, metadata, producer, consumer and admin on asyncio, and a blocking face over them.

It works against any broker that speaks the Kafka protocol and imports nothing of this broker's own rooms. People
reach it through `ottla.Producer`, `ottla.Consumer` and `ottla.Admin`.
"""
