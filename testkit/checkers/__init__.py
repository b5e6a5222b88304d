"""Checkers: anomalies that a history of sends and reads must not show."""
