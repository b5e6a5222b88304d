"""Brokers that tests start, kill and start again on one data directory."""

from tests.running_broker import start_broker

__all__ = ["start_broker"]
