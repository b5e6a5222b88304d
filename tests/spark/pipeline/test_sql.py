import pytest

from ottla.spark.pipeline.sql import tables


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("SELECT * FROM orders", ["orders"]),
        ("select o.id from orders o join customers c on o.customer = c.id", ["orders", "customers"]),
        ("SELECT * FROM a, b AS x, `c-d` WHERE a.id = b.id", ["a", "b", "c-d"]),
        ("SELECT * FROM a LEFT OUTER JOIN (SELECT id FROM b) q ON a.id = q.id", ["a", "b"]),
        ("WITH w AS (SELECT * FROM a), v (x) AS (SELECT * FROM w) SELECT * FROM v JOIN w", ["a"]),
        ("SELECT extract(YEAR FROM at), trim(BOTH 'x' FROM name) FROM a", ["a"]),
        ("SELECT * FROM a WHERE x IS NOT DISTINCT FROM y", ["a"]),
        ("SELECT DISTINCT x FROM a", ["a"]),
        ("SELECT * FROM a -- JOIN b\n /* FROM c */ WHERE x = 'FROM d'", ["a"]),
        ("SELECT * FROM range(3) JOIN catalog.db.t JOIN a", ["a"]),
        ("SELECT * FROM a WHERE id IN (SELECT id FROM b) UNION ALL SELECT * FROM a", ["a", "b"]),
        ("SELECT (SELECT max(x) FROM b), coalesce(x, y) FROM a", ["b", "a"]),
        ("SELECT * FROM (a JOIN b USING (id, x)), c", ["a", "b", "c"]),
        ("SELECT x FROM a GROUP BY x, y HAVING count(*) > 1 ORDER BY x, z", ["a"]),
        ("SELECT window(at, '1 minute', '10 s'), count(*) FROM clicks GROUP BY 1, window(at, '1 minute')", ["clicks"]),
        ("SELECT * FROM a LATERAL VIEW explode(x) t AS y", ["a"]),
        ("SELECT * FROM a, LATERAL explode(x)", ["a"]),
        ("SELECT * FROM a LATERAL VIEW posexplode(items) t AS pos, item", ["a"]),
        ("SELECT * FROM a, b LATERAL VIEW OUTER explode(m) t AS k, v LATERAL VIEW explode(x) u AS y, z WHERE y IN (SELECT y FROM c)", ["a", "b", "c"]),
        ("WITH orders AS (SELECT * FROM orders WHERE x), o AS (SELECT * FROM orders) SELECT * FROM orders, o", ["orders"]),
        ("WITH RECURSIVE t (n) AS (SELECT n FROM a UNION ALL SELECT n + 1 FROM t) SELECT * FROM t", ["a"]),
        ("WITH w AS (SELECT 1) SELECT * FROM (WITH v AS (SELECT * FROM w) SELECT * FROM v, a) JOIN v", ["a", "v"]),
        ("SELECT sum(x) OVER w FROM w WINDOW w AS (PARTITION BY y, z)", ["w"]),
        ("SELECT * FROM a JOIN b ON a.id = b.id AND a.x IN (1, 2), c", ["a", "b", "c"]),
        ("SELECT * FROM a JOIN b USING (id, x), c AS window, d", ["a", "b", "c", "d"]),
        ("SELECT * FROM TABLE(orders)", ["orders"]),
        ("SELECT * FROM TABLE(range(3)), STREAM(orders), STREAM clicks s", ["orders", "clicks"]),
        ("SELECT * FROM udtf(TABLE(orders) PARTITION BY id, 1), other(x => TABLE clicks), third(TABLE(SELECT x, y FROM a))", ["orders", "clicks", "a"]),
        ("TABLE orders", ["orders"]),
        ("SELECT table, x FROM a", ["a"]),
        ("SELECT * FROM window", ["window"]),
        ("SELECT * FROM window w JOIN offset ON true GROUP BY window(at, '1 s'), x", ["window", "offset"]),
        ("SELECT * FROM stream", ["stream"]),
        ("SELECT * FROM VALUES (1, null), (2, x) AS t(a, b), c", ["c"]),
        ("FROM a |> JOIN b ON a.x = b.x |> EXTEND 1 AS y, z |> WHERE q IN (SELECT q FROM c)", ["a", "b", "c"]),
        ("SELECT * FROM ((SELECT * FROM a) UNION (SELECT * FROM b)) u, c", ["a", "b", "c"]),
        ("SELECT * FROM a WHERE (x, y) IN (SELECT x, y FROM b) AND z IS DISTINCT FROM q", ["a", "b"]),
        ("SELECT * FROM (a", ["a"]),
        ("SELECT * FROM a) WHERE b, c", ["a"]),
        ("SELECT 1", []),
    ],
)  # fmt: skip
def test_the_tables_of_a_text(text: str, names: list[str]) -> None:
    assert tables(text) == names
