"""Checkers: what a history of sends and reads must never show."""
