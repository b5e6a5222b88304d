from pathlib import Path
from xml.etree import ElementTree

from bench import growth, plot, table

CURVES: growth.Curves = {
    "partitions": {
        "produce": {"ottla": [(1, 20.0), (1000, 21.0)], "kafka": [(1, 100.0)]},
        "fetch": {"ottla": [(1, 40.0), (1000, 39.5)]},
    },
    "waiting fetches": {"produce": {"ottla": [(0, 20.0), (100_000, 22.5)]}},
}


def test_the_table_has_a_column_a_step_and_a_row_a_curve() -> None:
    lines = growth.render(CURVES).splitlines()
    assert lines[0] == "| partitions | 1 | 1,000 |"
    assert "| produce, ottla | 20.0 | 21.0 |" in lines
    assert "| produce, kafka | 100.0 | – |" in lines
    assert "| produce, ottla | 20.0 | 22.5 |" in lines


def test_the_picture_is_well_formed_and_has_every_curve_within_its_panel() -> None:
    picture = ElementTree.fromstring(plot.render(CURVES, "µs"))
    lines = picture.findall(".//{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 4
    for line in lines:
        for point in line.attrib["points"].split():
            x, y = map(float, point.split(","))
            assert 0 < x < plot.PANEL_WIDTH and 0 < y < plot.PANEL_HEIGHT


def test_every_dimension_grows_on_a_real_broker(tmp_path: Path) -> None:
    """With next to nothing: that every request is answered without an error, and each step is measured."""
    sizes = growth.Sizes((1, 3), (1, 10), (0, 5), (1,), 16)
    curves: growth.Curves = {}
    growth.run({table.OTTLA: growth.start_ottla}, {table.OTTLA: sizes}, tmp_path, curves)
    assert curves.keys() == growth.DIMENSIONS.keys()
    for dimension, steps in zip(growth.DIMENSIONS, ([1, 3], [1, 10], [0, 5], [1]), strict=True):
        assert curves[dimension].keys() == growth.KINDS.keys()
        for of_kind in curves[dimension].values():
            assert [step for step, _ in of_kind[table.OTTLA]] == steps
            assert all(us > 0 for _, us in of_kind[table.OTTLA])
