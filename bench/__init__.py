"""`make bench`: ottla and Apache Kafka with the same clients, in one table.

A package of the repository, not of the product. It starts both brokers as separate processes on loopback,
drives them with librdkafka and raw sockets, and reads their cost from the kernel.
"""
