from ottla.spark.pipeline import Pipeline
from ottla.spark.pipeline.explain import as_json, tree, without_passwords
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
    assert without_passwords("mysql://u:p@h/d") == "mysql://u:…@h/d"
    assert without_passwords("sqlite:///a@b.db") == "sqlite:///a@b.db"
    assert without_passwords("postgresql://h/db?user=u&password=pw") == "postgresql://h/db?user=u&password=…"
    assert without_passwords("postgresql://u:a?b@h/db") == "postgresql://u:…@h/db"
    assert (
        without_passwords("mysql://u:p@h/d?sslPassword=x&a=b;Pwd=z#end")
        == "mysql://u:…@h/d?sslPassword=…&a=b;Pwd=…#end"
    )
    assert without_passwords("s3a://id:secret@bucket/x") == "s3a://id:…@bucket/x"
    assert without_passwords("./checkpoints/a") == "./checkpoints/a"


def test_nothing_that_is_shown_has_a_secret() -> None:
    settings = {"sasl.password": "hush", "sasl.jaas.config": 'x required password="hush";'}
    pipeline = Pipeline(
        "p", brokers="b:1", checkpoint="s3a://u:hush@b/c", kafka=settings, spark={"x": "hush"}
    )
    pipeline.source("rows", topic="t", kafka={"ssl.key.password": "hush"})
    pipeline.source("files", format="json", path="http://u:hush@h/d", options={"token": "hush"})
    pipeline.sink("a", from_="rows", topic="o", kafka={"sasl.password": "hush"})
    pipeline.sink("b", from_="files", table={"url": "mysql://h/d?password=hush", "name": "t", "key": "id"})
    pipeline.sink("c", from_="files", parquet="s3a://u:hush@b/c")
    pipeline.sink("d", from_="files", format="csv", path="s3a://u:hush@b/c", options={"password": "hush"})
    own = pipeline.plan("p.py")
    assert "hush" not in f"{tree(own)} {as_json(own)}"
    assert "hush" not in f"{own.sources['rows']} {own.sinks['a']} {own.sinks['b']}"
