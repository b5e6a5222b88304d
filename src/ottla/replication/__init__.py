"""Replicas of partitions: roles, replica fetchers, ISR updates and the high watermark."""
