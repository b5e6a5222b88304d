from bench import table


def results(kafka: dict[str, list[float]], ottla: dict[str, list[float]]) -> table.Results:
    return {table.PAGE_CACHE: {table.KAFKA: kafka, table.OTTLA: ottla}}


def line(text: str, label: str) -> list[str]:
    (found,) = [line for line in text.splitlines() if line.startswith(f"| {label} ")]
    return [cell.strip() for cell in found.strip("|").split("|")]


def test_medians_are_shown_with_ratio_goal_and_verdict() -> None:
    found = results({"request_cpu_us": [80.0, 70.0, 500.0]}, {"request_cpu_us": [20.0, 22.0, 1.0]})
    text = table.render(found, {table.KAFKA: "Kafka 4.3", table.OTTLA: "ottla"})
    label = "broker CPU µs per request, librdkafka"
    assert line(text, label) == [label, "80.0", "20.0", "0.25", "≤ 0.5 × Kafka", "pass"]


def test_a_missed_goal_is_named() -> None:
    found = results({"request_cpu_us": [80.0]}, {"request_cpu_us": [41.0]})
    assert "MISS" in table.render(found, {})
    assert [(verdict.label, verdict.met) for verdict in table.verdicts(found)] == [
        ("broker CPU µs per request, librdkafka", False)
    ]


def test_without_kafka_a_comparison_is_left_open_and_a_bound_is_judged() -> None:
    found: table.Results = {
        table.PAGE_CACHE: {table.OTTLA: {"round_trip_p50_ms": [0.1]}},
        table.START: {table.OTTLA: {"start_s": [0.6]}},
    }
    assert [verdict.met for verdict in table.verdicts(found)] == [None, False]


def test_the_durable_mode_has_no_goals() -> None:
    found: table.Results = {
        table.DURABLE: {table.KAFKA: {"request_cpu_us": [1.0]}, table.OTTLA: {"request_cpu_us": [9.0]}}
    }
    assert table.verdicts(found) == []
    assert "MISS" not in table.render(found, {})
