"""Decisions of the controller: pure functions from the metadata image to records."""
