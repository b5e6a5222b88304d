"""The group and transaction coordinators: their partitions, the loader, transaction markers and verification."""
