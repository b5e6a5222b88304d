"""The metadata log: its records, the immutable image they build, and the records of Kafka's own metadata log
(KRaft)."""
