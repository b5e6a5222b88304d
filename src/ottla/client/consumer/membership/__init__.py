"""A consumer's membership in its group, as pure state machines: `classic` and `consumer` (KIP-848), with one face (`member`)."""
