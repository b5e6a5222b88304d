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
        ("SELECT 1", []),
    ],
)  # fmt: skip
def test_the_tables_of_a_text(text: str, names: list[str]) -> None:
    assert tables(text) == names
