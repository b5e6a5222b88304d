"""The Kafka protocol as bytes: which APIs and versions exist, how each message is encoded and decoded,
and the client's side of a connection. Nothing here does I/O, and nothing here knows what a message means.
"""
