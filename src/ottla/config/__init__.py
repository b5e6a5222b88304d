"""One table of settings: name, type, default, unit and meaning, for topics and for brokers.

`topic` and `broker` hold the resolved, typed settings that everything above reads; `describe` and `alter`
serve the admin APIs; `properties` turns a configuration text into names and values; `markdown` renders the
manual page. Nothing here reads files, the environment or a clock. Kafka's dotted names live in this room
only.
"""
