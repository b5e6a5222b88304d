"""Settings of topics, brokers and groups: tables of name, type, default, unit and description.

- `topic.py` and `broker.py` have the resolved, typed settings that all other packages read.
- `describe.py` and `alter.py` serve the admin APIs.
- `properties.py` parses a configuration text.
- `markdown.py` renders `docs/configuration.md`, `limits_page.py` renders `docs/limits.md`.

Nothing here reads files, the environment or a clock. Kafka's dotted names are used in this package only.
"""
