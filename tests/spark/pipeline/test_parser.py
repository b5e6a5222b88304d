import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ottla.spark.pipeline import Pipeline, setting
from ottla.spark.pipeline.explain import as_json, tree
from ottla.spark.pipeline.loader import load
from ottla.spark.pipeline.model import Function, PipelineError, Plan, Watermark

YAML = """\
name: orders
brokers: ${BROKERS:-127.0.0.1:9092}
checkpoint: ./checkpoints/orders
trigger: 1 second
limits: {records: 1000, stop: 5 seconds}
kafka: {security.protocol: PLAINTEXT}
spark: {spark.sql.shuffle.partitions: 3}
sources:
  orders: {topic: orders, value: json, schema: "id BIGINT, customer STRING, at TIMESTAMP", watermark: "at 10 seconds"}
  customers: {topic: customers, value: json, schema: "id STRING, name STRING", read: table}
steps:
  named: SELECT * FROM enriched WHERE name IS NOT NULL
  enriched: |
    SELECT o.id, c.name, o.at FROM orders o JOIN Customers c ON o.customer = c.id
sinks:
  totals: {from: named, topic: totals, key: id, value: json}
  db: {from: enriched, table: {url: "sqlite:///t.db", name: totals, key: [id]}}
"""


def written(tmp_path: Path, text: str, name: str = "orders.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.fixture(autouse=True)
def forget_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has files of the same names."""
    monkeypatch.delitem(sys.modules, "words", raising=False)


def problems(path: Path, **variables: str) -> list[str]:
    with pytest.raises(PipelineError) as caught:
        load(path, variables)
    return [str(problem).removeprefix(f"{path}") for problem in caught.value.problems]


def in_python() -> Pipeline:
    pipeline = Pipeline(
        "orders",
        brokers=setting("NOWHERE", "127.0.0.1:9092"),
        checkpoint="./checkpoints/orders",
        trigger="1 second",
        limits={"records": 1000, "stop": 5},
        kafka={"security.protocol": "PLAINTEXT"},
        spark={"spark.sql.shuffle.partitions": 3},
    )
    pipeline.source(
        "orders", topic="orders", value="json", schema="id BIGINT, customer STRING, at TIMESTAMP", watermark="at 10 seconds"
    )  # fmt: skip
    pipeline.source(
        "customers", topic="customers", value="json", schema="id STRING, name STRING", read="table"
    )
    pipeline.sql("named", "SELECT * FROM enriched WHERE name IS NOT NULL")
    pipeline.sql("enriched", "SELECT o.id, c.name, o.at FROM orders o JOIN Customers c ON o.customer = c.id")
    pipeline.sink("totals", from_="named", topic="totals", key="id", value="json")
    pipeline.sink("db", from_="enriched", table={"url": "sqlite:///t.db", "name": "totals", "key": ["id"]})
    return pipeline


def test_a_file_becomes_a_plan_with_its_steps_in_order(tmp_path: Path) -> None:
    plan = load(written(tmp_path, YAML)).plan
    assert plan.name == "orders" and plan.trigger == "1 seconds".replace("1 seconds", "1 second")
    assert plan.stop_within_s == 5 and plan.spark == {"spark.sql.shuffle.partitions": "3"}
    orders = plan.sources["orders"]
    assert orders.watermark == Watermark("at", "10 seconds") and orders.records_max == 1000
    assert orders.brokers == "127.0.0.1:9092" and orders.kafka == {"security.protocol": "PLAINTEXT"}
    assert list(plan.steps) == ["enriched", "named"]
    assert plan.steps["enriched"].inputs == ("orders", "customers")
    assert plan.sinks["db"].mode == "update" and plan.sinks["totals"].mode == "append"
    assert plan.upstream("named") == ["orders", "customers", "enriched", "named"]


def test_python_and_yaml_make_the_same_plan(tmp_path: Path) -> None:
    plan = load(written(tmp_path, YAML)).plan
    from_python = in_python().plan(plan.file)
    assert dataclasses.replace(from_python) == plan


def test_variables_come_from_the_caller_then_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, YAML)
    monkeypatch.setenv("BROKERS", "environment:1")
    assert load(path).plan.sources["orders"].brokers == "environment:1"
    assert load(path, {"BROKERS": "caller:1"}).plan.sources["orders"].brokers == "caller:1"


def test_a_variable_that_is_not_set_is_named_and_a_doubled_sign_is_none(tmp_path: Path) -> None:
    path = written(tmp_path, YAML.replace("orders\ntrigger", "${NOT_SET_ANYWHERE}\ntrigger"))
    (said,) = problems(path)
    assert (
        said.startswith(":3: checkpoint: NOT_SET_ANYWHERE is not set") and "--set NOT_SET_ANYWHERE=" in said
    )
    plan = load(written(tmp_path, YAML.replace("IS NOT NULL", "NOT IN ('$${x}', '$${a.b}', '$${')"))).plan
    assert "('${x}', '${a.b}', '${')" in (plan.steps["named"].sql or "")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("trigger: 1 second", "triger: 1 second", ":4: triger: a pipeline has no field triger: did you mean trigger?"),
        ("trigger: 1 second", "trigger: often", ":4: trigger: must be a duration as in 1 second, available-now, or once, not 'often'"),
        ("checkpoint: ./checkpoints/orders\n", "", ":1: checkpoint is missing"),
        ("FROM enriched", "FROM enrichd", ":12: steps.named: reads enrichd, which is neither a source nor a step: did you mean enriched?"),
        ("FROM orders o", "FROM named o", "reads itself: break the cycle "),
        ("from: named", "from: nmed", ":16: sinks.totals.from: nmed is neither a source nor a step: did you mean named?"),
        ("from: named, ", "", ":16: sinks.totals: from is missing"),
        ("topic: totals, ", "", ":16: sinks.totals: has neither topic nor table, parquet, python or format"),
        ("topic: totals,", "topic: totals, format: console,", "has topic and format: keep one of them"),
        ("read: table", "read: tabel", ":10: sources.customers.read: must be one of stream, batch, table, not 'tabel'"),
        ('"at 10 seconds"', '"10 seconds"', ":9: sources.orders.watermark: must be a column and a delay"),
        ("topic: customers", "pattern: c.*, topic: customers", "sources.customers: has topic and pattern"),
        ("topic: customers, ", "", ":10: sources.customers: has neither topic nor pattern nor format"),
        (', schema: "id STRING, name STRING"', "", "sources.customers: value: json needs a schema"),
        ("read: table}", "read: table, start: latest}", "sources.customers.start: is for streams, but this source has read: table"),
        ("records: 1000", "records: many", ":5: limits.records: must be a whole number, not 'many'"),
        ("records: 1000", "records: 0", "must be 1 or more, not 0"),
        ("key: [id]", "keys: [id]", "a table has no field keys: did you mean key?"),
        (", key: [id]}", "}", "sinks.db.table: key is missing: the columns that identify a row"),
        ("  db:", "  totals:", ":17: sinks.totals: is defined twice"),
        ("  named: SELECT", "  orders: SELECT", "steps.orders: there is also a source orders"),
        ("name: orders\nbrokers", "name: or/ders\nbrokers", "name: 'or/ders' is part of the queries' names"),
        ("brokers: ${BROKERS:-127.0.0.1:9092}\n", "", "sources.orders: brokers is missing"),
        ("sources:\n", "sources: [\n", "no YAML"),
        ('  customers: {topic: customers, value: json, schema: "id STRING, name STRING", read: table}', "  customers: customers",
         ":10: sources.customers: must be fields with their values; a source has topic, pattern"),
        ("named: SELECT * FROM enriched", "named: {python: steps.py}\n  n2: SELECT * FROM enriched", "steps.named.python: must be FILE.py:FUNCTION"),
        ("named: SELECT * FROM enriched", "named: {watermark: at 1 s}\n  n2: SELECT * FROM enriched", "steps.named: has neither sql nor python"),
        ("topic: orders, value: json", "topic: orders, read: batch, value: json", "no source of enriched is a stream"),
        ("value: json}", "value: json, guarantee: maybe}", "guarantee: must be one of exactly-once, at-least-once"),
        ("topic: customers, value: json", "topic: customers, value: avro", "sources.customers: value: avro needs a registry"),
        ('topic: customers, value: json, schema: "id STRING, name STRING"', "pattern: c.*, value: json, registry: 'http://r'", "sources.customers: subject is missing"),
        ("value: json}", "value: avro}", "sinks.totals: value: avro needs a registry"),
        ("table: {url", "value: json, table: {url", "sinks.db.value: is for topics only"),
        ("table: {url", "key: id, table: {url", "sinks.db.key: belongs inside table"),
        ("read: table}", "read: table, dead_letters: d}", "sources.customers.dead_letters: is for streams, but this source has read: table"),
        ("read: table}", "read: batch, dead_letters: d}", "sources.customers.dead_letters: is for streams, but this source has read: batch"),
        ("read: table}", "read: table, subject: s}", "sources.customers.subject: needs a registry"),
        ("read: table}", "read: table, path: p}", "sources.customers.path: is for other formats"),
        ("read: table}", "read: table, message: m}", "sources.customers.message: is for value: protobuf, not json"),
        ("topic: customers, value: json", "topic: customers, registry: 'http://r', subject: s, value: json", "sources.customers.subject: cannot be combined with schema"),
        ("topic: customers, value: json", "topic: customers, registry: 'http://r'", "sources.customers.registry: is for decoded values"),
        ("topic: customers, value: json", "topic: customers, registry: 'http://u:p@r', value: json", "to registry_auth"),
        ("topic: customers, value: json", "topic: customers, registry: 'http://r', registry_auth: secret, value: json", "registry_auth: must be USER:PASSWORD"),
        ("trigger: 1 second", "registry_auth: 'u:p'", ":4: registry_auth: needs registry"),
        ("value: json}", "value: json, dead_letters: d}", "sinks.totals.dead_letters: is for tables"),
        ("value: json}", "value: json, guarantee: at-least-once, reset: true}", "sinks.totals.reset: has no effect with guarantee"),
        ("value: json}", "value: json, path: p}", "sinks.totals.path: is for other formats"),
        ("value: json}", "value: json, schema: s}", "sinks.totals.schema: needs a registry"),
        ("value: json}", "value: json, subject: s}", "sinks.totals.subject: needs a registry"),
        ("value: json}", "value: string, subject: s}", "sinks.totals.subject: is for values with a schema"),
        ("value: json}", "value: json, order_by: at}", "sinks.totals.order_by: is for tables and for parquet with a key"),
        ("table: {url", "options: {a: b}, table: {url", "sinks.db.options: is for topics and for other formats"),
        ("table: {url", "path: p, table: {url", "sinks.db.path: is for other formats"),
        ("table: {url", "brokers: 'b:1', table: {url", "sinks.db.brokers: is for the dead letters of a table"),
        ("table: {url", "tombstones: maybe, table: {url", "sinks.db.tombstones: must be one of true, false, not 'maybe'"),
        ("topic: totals, key: id, value: json", "parquet: p, options: {a: b}", "sinks.totals.options: is for topics"),
        ("topic: totals, key: id, value: json", "parquet: p, mode: complete", "sinks.totals.mode: complete would append the whole result"),
        ("topic: totals, key: id, value: json", "parquet: p, tombstones: true", "sinks.totals.tombstones: needs key"),
        ("topic: totals, key: id, value: json", "python: 'f.py:g', path: p", "sinks.totals.path: is for other formats"),
        ("topic: totals, key: id, value: json", "format: console, reset: true", "sinks.totals.reset: is for topics, tables and parquet"),
        ("127.0.0.1:9092}", "127.0.0.1:9092}${a.b}", ":2: brokers: ${ must be followed by NAME}"),
        ("./checkpoints/orders", "./${X:?not set}", ":3: checkpoint: ${ must be followed by NAME}"),
        ("  customers: {", "  Orders: {format: rate}\n  customers: {", ":10: sources.Orders: there is also a source orders: sources and steps share their names, and case is ignored"),
        ("name: orders", "name: !secret orders", ":1: name: has the unsupported tag !secret"),
        ("sources:\n", "sources: !include\n", ":8: sources: has the unsupported tag !include"),
        ("name: orders", "name: !!int orders", ":1: name: cannot be read: invalid literal for int()"),
        ("name: orders", "name: &again [*again]", ":1: name: contains itself through an alias"),
        ("name: orders", "? [a, b]\n: orders", ":1: has a name that is not a string"),
        ("  named: SELECT", "  ORDERS: SELECT 1\n  named: SELECT", ":12: steps.ORDERS: there is also a source orders"),
        ("  named: SELECT", "  orders: SELECT 1\n  named: SELECT", ":12: steps.orders: there is also a source orders: sources and steps share their names"),
        ("named: SELECT * FROM enriched", "named: {sql: SELECT 1, inputs: [enrichd]}\n  n2: SELECT * FROM enriched", "steps.named: reads enrichd, which is neither a source nor a step: did you mean enriched?"),
    ],
)  # fmt: skip
def test_mistakes_are_told_with_their_line_and_the_nearest_name(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    assert old in YAML
    assert any(said in each for each in problems(written(tmp_path, YAML.replace(old, new)))), problems(
        written(tmp_path, YAML.replace(old, new))
    )


def test_paths_are_taken_from_the_folder_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the checkpoint is: called from elsewhere, a checkpoint would go on with a table that has nothing."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    text = YAML + "  files: {from: named, parquet: ./out, key: id, order_by: at, tombstones: true}\n"
    text += "  away: {from: named, parquet: 'file:/data/out'}\n  lines: {from: named, format: json, path: lines}\n"
    written(folder, text)
    plan = load(Path("a folder/orders.yaml")).plan
    assert plan.checkpoint_path == str(folder / "checkpoints/orders")
    files, away, lines, table = (plan.sinks[name] for name in ("files", "away", "lines", "db"))
    assert (files.parquet, away.parquet, lines.path) == (
        str(folder / "out"),
        "file:/data/out",
        str(folder / "lines"),
    )
    assert (files.order_by, files.tombstones, away.tombstones) == ("at", True, False)
    assert table.table is not None
    from ottla.spark.table_sinks.sqlite import SQLite

    assert SQLite(table.table.url).path == str(folder / "t.db")
    absolute = (
        load(written(folder, YAML.replace("sqlite:///t.db", "sqlite:////data/t.db"))).plan.sinks["db"].table
    )
    assert absolute is not None and absolute.url == "sqlite:////data/t.db"
    source = "  customers: {format: json, path: c, schema: 'id STRING, name STRING', read: batch}"
    old = next(line for line in YAML.splitlines() if line.startswith("  customers:"))
    assert load(written(folder, YAML.replace(old, source))).plan.sources["customers"].path == str(
        folder / "c"
    )


def test_a_password_goes_to_its_own_registry_alone_and_is_not_shown(tmp_path: Path) -> None:
    text = YAML.replace(
        "trigger: 1 second", "registry: http://r:1\nregistry_auth: ${AUTH}\nregistry_ca: ca.pem"
    )
    text += "  same: {from: named, topic: t, value: avro}\n"
    text += "  other: {from: named, topic: t, value: avro, registry: 'http://o:1'}\n"
    text += "  own: {from: named, topic: t, value: protobuf, message: a.B, registry: 'http://o:1', registry_auth: 'v:w'}\n"
    sinks = load(written(tmp_path, text), {"AUTH": "me:secret"}).plan.sinks
    told = {
        name: (sinks[name].registry_auth, sinks[name].registry_ca)
        for name in ("same", "other", "own", "totals")
    }
    ca = str(tmp_path / "ca.pem")
    assert told == {
        "same": ("me:secret", ca),
        "other": (None, None),
        "own": ("v:w", None),
        "totals": (None, None),
    }
    plan = load(written(tmp_path, text), {"AUTH": "me:secret"}).plan
    shown = "\n".join(
        [
            repr(plan),
            *tree(plan),
            json.dumps(as_json(plan)),
            *problems(path=written(tmp_path, text + "  x: 1\n"), AUTH="me:secret"),
        ]
    )
    assert "secret" not in shown and "v:w" not in shown


def test_a_query_may_say_itself_what_it_reads(tmp_path: Path) -> None:
    text = YAML.replace(
        "named: SELECT * FROM enriched WHERE name IS NOT NULL",
        "named: {sql: \"SELECT * FROM IDENTIFIER('enriched'), a_table_of_sparks\", inputs: [enriched]}",
    )
    assert load(written(tmp_path, text)).plan.steps["named"].inputs == ("enriched",)
    pipeline = in_python()
    pipeline.sql("again", "SELECT * FROM IDENTIFIER('named')", inputs=["named"], watermark="at 1 s")
    step = pipeline.plan("x.py").steps["again"]
    assert step.inputs == ("named",) and step.watermark == Watermark("at", "1 seconds")


def test_what_looks_like_a_date_is_a_text(tmp_path: Path) -> None:
    for group in ("2024-13-45", "2024-01-31", "2024-01-31 10:00:00"):
        path = written(tmp_path, YAML.replace("topic: orders", f"group: {group}, topic: orders"))
        assert load(path).plan.sources["orders"].group == group


def test_a_file_in_another_encoding_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "orders.yaml"
    path.write_bytes(YAML.replace("name: orders", "name: orders # é").encode("latin-1"))
    assert problems(path) == [
        ":1: is not UTF-8: it contains the byte 0xe9; save the file as UTF-8",
    ]
    path = tmp_path / "flow.py"
    path.write_bytes(PYTHON.replace("words", "wörds").encode("latin-1"))
    assert "no Python: (unicode error) 'utf-8' codec" in problems(path)[0]


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    text = (
        YAML.replace("trigger:", "triger:")
        .replace("from: named", "from: nmed")
        .replace("FROM enriched", "FROM xyz")
    )
    assert len(problems(written(tmp_path, text))) == 3


PYTHON = """\
from ottla.spark.pipeline import Pipeline
from words import split

pipeline = Pipeline("words", brokers="b:1", checkpoint="./c")
pipeline.source("lines", topic="lines", value="string")

@pipeline.step
def words(lines):
    return split(lines)

pipeline.sink("words", from_="words", topic="words", value="string")
"""


def test_a_python_file_is_run_and_the_modules_beside_it_are_known(tmp_path: Path) -> None:
    written(tmp_path, "def split(lines):\n    return lines\n", "words.py")
    loaded = load(written(tmp_path, PYTHON, "json.py"))
    assert loaded.plan.steps["words"].inputs == ("lines",)
    function = loaded.plan.steps["words"].function
    assert function is not None and function.call is not None and function.call("x") == "x"
    assert [path.name for path in loaded.modules] == ["words.py"]
    assert json.loads("1") == 1


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("def words(lines)", "def words(line)", ":7: steps.words: reads line, which is neither a source nor a step: did you mean lines?"),
        ("@pipeline.step\n", "pipeline.source('lines', topic='x')\n@pipeline.step\n", ":7: sources.lines: is defined twice"),
        ('value="string")\n\n@', 'vallue="string")\n\n@', ":5: sources.lines.vallue: a source has no field vallue: did you mean value?"),
        ("pipeline = ", "1 / 0\npipeline = ", ":4: ZeroDivisionError: division by zero"),
        ("pipeline = ", "raise SystemExit\npipeline = ", ":4: SystemExit: "),
        ("pipeline = ", "import sys; sys.exit('not today')\npipeline = ", ":4: SystemExit: not today"),
        ("@pipeline.step", "raise RuntimeError('[SESSION_OR_CONTEXT_NOT_EXISTS] x')\n@pipeline.step", ":7: this needs a Spark session"),
        ("@pipeline.step", "@pipeline.step(", "no Python"),
        ("pipeline = Pipeline", "other = pipeline = Pipeline('x')\npipeline = Pipeline", "has several pipelines"),
        ('brokers="b:1"', "brokers=setting('NOT_SET_ANYWHERE')", ":4: NOT_SET_ANYWHERE is not set"),
    ],
)  # fmt: skip
def test_mistakes_in_python_are_told_with_their_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    written(tmp_path, "def split(lines):\n    return lines\n", "words.py")
    text = PYTHON.replace("import Pipeline\n", "import Pipeline, setting\n")
    assert old in text
    path = written(tmp_path, text.replace(old, new, 1), "flow.py")
    assert any(said in each for each in problems(path)), problems(path)


def test_a_file_that_is_named_from_its_folder_is_told_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, "1 / 0\n", "flow.py")
    monkeypatch.chdir(tmp_path)
    assert problems(Path("flow.py")) == [":1: ZeroDivisionError: division by zero"]


def test_functions_that_yaml_names_are_found_beside_it(tmp_path: Path) -> None:
    written(tmp_path, "def keep(orders):\n    return orders\n", "own_steps.py")
    text = YAML.replace(
        "named: SELECT * FROM enriched WHERE name IS NOT NULL",
        "named: {python: own_steps.py:keep, inputs: enriched}",
    )
    step = load(written(tmp_path, text)).plan.steps["named"]
    assert (
        isinstance(step.function, Function) and step.function.call is not None and step.function.call(3) == 3
    )
    assert step.inputs == ("enriched",)
    assert "has no function gone" in problems(written(tmp_path, text.replace(":keep", ":gone")))[0]
    assert "no such file" in problems(written(tmp_path, text.replace("own_steps.py", "nowhere.py")))[0]


def test_other_files_are_refused(tmp_path: Path) -> None:
    assert problems(written(tmp_path, "x", "pipeline.txt")) == [
        ": is not a pipeline file: use a name that ends in .yaml, .yml or .py"
    ]
    assert "must be names and values" in problems(written(tmp_path, "- x\n"))[0]
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "nothing.yaml")


def test_the_plan_says_nothing_of_the_kind_of_file() -> None:
    plan: Any = in_python().plan("x")
    assert isinstance(plan, Plan)
