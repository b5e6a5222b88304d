"""Offset stores: keep offsets in a database of the user, in one transaction with the results."""
