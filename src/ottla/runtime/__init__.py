"""Adapters for sockets, files, clocks and threads: they perform the core's effects and decide nothing."""
