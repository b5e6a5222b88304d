"""Offsets in a store of the user's own, so that they move in one transaction with what was made of the records."""
