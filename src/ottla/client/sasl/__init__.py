"""SASL mechanisms without I/O: each is an `Exchange` of messages; `client/authentication.py` drives it."""
