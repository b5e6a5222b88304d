"""The Kafka protocol as bytes: APIs and versions, encoding and decoding of messages, and the client side of a
connection.

Nothing here does I/O, and nothing here knows the meaning of a message.
"""
