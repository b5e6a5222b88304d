"""The group and transaction coordinators: partitions, loader, transaction markers and verification."""
