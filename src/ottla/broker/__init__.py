"""The core of a broker: bytes and time come in, effects go out. No socket, clock, disk or thread of its own."""
