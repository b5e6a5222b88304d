from ottla.spark.pipeline import Pipeline
from ottla.spark.pipeline.explaining import as_json, hidden, tree
from ottla.spark.pipeline.model import Plan


def plan() -> Plan:
    pipeline = Pipeline("orders", brokers="b:1", checkpoint="/c", trigger="1 second")
    pipeline.source(
        "orders", topic="orders", value="json", schema="id BIGINT, at TIMESTAMP", watermark="at 5 s"
    )
    pipeline.source("customers", topic="customers", value="json", schema="id STRING", read="table")
    pipeline.source("ticks", format="rate")
    pipeline.sql("enriched", "SELECT *\n FROM orders JOIN customers USING (id)")

    @pipeline.step
    def large(enriched: object) -> object:
        return enriched

    pipeline.sink("totals", from_="enriched", topic="totals", key="id", value="json")
    pipeline.sink("db", from_="large", table={"url": "postgresql://me:secret@h/d", "name": "t", "key": "id"})
    return pipeline.plan("orders.py")


def test_the_tree() -> None:
    assert tree(plan(), {"large": "id bigint"}) == [
        "pipeline orders (orders.py)",
        "  checkpoint /c",
        "  trigger every 1 second",
        "",
        "totals → topic totals, key id, json, exactly-once at b:1",
        "└─ enriched  SQL SELECT * FROM orders JOIN customers USING (id)",
        "   ├─ orders  topic orders, json, watermark at 5 seconds at b:1",
        "   └─ customers  table of topic customers, json at b:1",
        "",
        "db → table t of postgresql://me:…@h/d, key id",
        "└─ large  Python large  (id bigint)",
        "   └─ enriched  SQL SELECT * FROM orders JOIN customers USING (id)  (as above)",
        "",
        "no sink uses ticks",
    ]


def test_as_json() -> None:
    found = as_json(plan(), {"large": "id bigint"})
    assert found["tables"]["enriched"]["inputs"] == ["orders", "customers"]
    assert found["tables"]["large"]["schema"] == "id bigint"
    assert found["sinks"]["db"] == {"from": "large", "what": "table t of postgresql://me:…@h/d, key id"}


def test_passwords_are_not_shown() -> None:
    assert hidden("mysql://u:p@h/d") == "mysql://u:…@h/d"
    assert hidden("sqlite:///a@b.db") == "sqlite:///a@b.db"
