"""SASL mechanisms without I/O: each an `Exchange` of messages, driven by `client/authentication.py`."""
