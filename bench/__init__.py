"""`make bench`: ottla beside Apache Kafka, the same clients, one table.

A package of the repository, not of the product: it starts both brokers as processes of their own, on loopback,
drives them with librdkafka and with a raw socket, and reads what they cost from the kernel.
"""
