"""The world behind the ports: sockets, files, clocks and threads. It performs what the core asks for and decides nothing."""
