"""Interfaces of the core to the world: disk, store, entropy, and the effects that it requests."""
