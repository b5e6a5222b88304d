"""Plots as SVG, without a library: one panel per dimension, one line per curve, logarithmic steps."""

from collections.abc import Mapping, Sequence
from math import log10

Curve = Sequence[tuple[int, float]]

PANEL_WIDTH, PANEL_HEIGHT = 360, 240
LEFT, RIGHT, TOP, BOTTOM = 48, 16, 34, 34
LEGEND_LINE = 18
#: Distinguishable without color vision: dark to light.
COLOURS = ("#0b3d63", "#c2410c", "#15803d", "#8b5cf6")
DASHES = ("", "5 4")


def render(panels: Mapping[str, Mapping[str, Mapping[str, Curve]]], unit: str) -> str:
    """dimension -> kind -> broker -> curve, as one picture: a color per kind, a dash style per broker."""
    kinds = list({kind: None for of_panel in panels.values() for kind in of_panel})
    brokers = list(
        {name: None for of_panel in panels.values() for of_kind in of_panel.values() for name in of_kind}
    )
    columns = 2
    rows = -(-len(panels) // columns)
    legend = LEGEND_LINE * (len(kinds) * len(brokers) // 4 + 2)
    width, height = columns * PANEL_WIDTH, rows * PANEL_HEIGHT + legend
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'font-family="sans-serif" font-size="11">'
        ),
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for number, (title, of_panel) in enumerate(panels.items()):
        x, y = number % columns * PANEL_WIDTH, number // columns * PANEL_HEIGHT
        parts.append(f'<g transform="translate({x},{y})">')
        parts += _panel(f"{unit}, over {title}", of_panel, kinds, brokers)
        parts.append("</g>")
    entries = [(kind, broker) for broker in brokers for kind in kinds]
    for number, (kind, broker) in enumerate(entries):
        x, y = 20 + number % 4 * 180, rows * PANEL_HEIGHT + LEGEND_LINE * (number // 4 + 1)
        style = _style(kinds.index(kind), brokers.index(broker))
        parts.append(f'<line x1="{x}" y1="{y - 4}" x2="{x + 24}" y2="{y - 4}" {style}/>')
        parts.append(f'<text x="{x + 30}" y="{y}">{kind}, {broker}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _style(kind: int, broker: int) -> str:
    dash = DASHES[broker % len(DASHES)]
    return f'fill="none" stroke="{COLOURS[kind % len(COLOURS)]}" stroke-width="1.6"' + (
        f' stroke-dasharray="{dash}"' if dash else ""
    )


def _panel(
    title: str, curves: Mapping[str, Mapping[str, Curve]], kinds: list[str], brokers: list[str]
) -> list[str]:
    points = [point for of_kind in curves.values() for curve in of_kind.values() for point in curve]
    steps = sorted({step for step, _ in points})
    top = _round_up(max((value for _, value in points), default=1.0))

    # Zero is drawn a little left of one.
    def across(step: int) -> float:
        low, high = _place(steps[0]), _place(steps[-1])
        share = (_place(step) - low) / (high - low) if high > low else 0.5
        return LEFT + share * (PANEL_WIDTH - LEFT - RIGHT)

    def down(value: float) -> float:
        return TOP + (1 - value / top) * (PANEL_HEIGHT - TOP - BOTTOM)

    parts = [f'<text x="{LEFT}" y="18" font-weight="bold">{title}</text>']
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = down(top * share)
        parts.append(
            f'<line x1="{LEFT}" y1="{y:.1f}" x2="{PANEL_WIDTH - RIGHT}" y2="{y:.1f}" stroke="#ddd"/>'
        )
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{top * share:g}</text>')
    parts += [
        f'<text x="{across(step):.1f}" y="{PANEL_HEIGHT - BOTTOM + 16}" text-anchor="middle">{step:,}</text>'
        for step in steps
    ]
    for kind, of_kind in curves.items():
        for broker, curve in of_kind.items():
            path = " ".join(f"{across(step):.1f},{down(value):.1f}" for step, value in curve)
            parts.append(f'<polyline points="{path}" {_style(kinds.index(kind), brokers.index(broker))}/>')
    return parts


def _place(step: int) -> float:
    return log10(step) if step > 0 else -1.0


def _round_up(value: float) -> float:
    """The next of 1, 2, 4, 10, 20, 40, ..., so that a quarter of it is a round number."""
    power = 10.0 ** int(log10(value)) if value >= 1 else 1.0
    return next(each * power for each in (1, 2, 4, 8, 10, 20) if each * power >= value)
