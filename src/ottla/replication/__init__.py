"""A partition's replicas: what the leader decides about acknowledgement and visibility."""
