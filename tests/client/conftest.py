"""A real broker for the tests of the client."""

from tests.running_broker import ottla_address, start_broker, topic_name

__all__ = ["ottla_address", "start_broker", "topic_name"]
