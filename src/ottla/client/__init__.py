"""The Python SDK: asyncio clients for producing, consuming and administration, and blocking clients on top of
them.

It works with every broker that speaks the Kafka protocol and imports nothing of this broker. Users import
`ottla.Producer`, `ottla.Consumer` and `ottla.Admin`.
"""
