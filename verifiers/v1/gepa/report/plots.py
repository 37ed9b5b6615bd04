"""The plot of a report: scores over rollouts, as SVG that takes its colours from the page.

matplotlib writes fixed colours into its SVG. Each one used here stands for one of the page's, and
is replaced by the CSS variable of that name, so that one plot serves light and dark. It is drawn
once for a screen and once for a phone: scaled down, the text of the one could not be read.
"""

import io
import re
from typing import TYPE_CHECKING, Any

from verifiers.v1.gepa.report.views import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = {
    "ink": "#010101",
    "muted": "#020202",
    "line": "#030303",
    "val": "#040404",
    "best": "#050505",
    "before": "#060606",
    "after": "#070707",
}
"""The page's colours by the ones that are drawn with."""

SIZES = {"wide": (9.6, 3.6), "narrow": (4.6, 3.8)}
"""Inches, of 72 points; text is 10 points."""

MARGINS = {"left": 0.55, "bottom": 0.5, "right": 0.1, "top": 0.15}
"""Inches around the axes."""


def score_plots(curve: Curve, deployed: int) -> dict[str, str]:
    """The plot as `wide` and `narrow` SVG, empty where no score is on record. The same run gives
    the same bytes."""
    if not curve.val:
        return {}
    return {name: _svg(curve, deployed, name, size) for name, size in SIZES.items()}


def _svg(curve: Curve, deployed: int, name: str, size: tuple[float, float]) -> str:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.style import context

    settings: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": f"gepa {name}",  # of the ids, which must differ between the two
        "font.family": "sans-serif",
        "font.size": 10,
        "text.color": COLORS["ink"],
        "axes.edgecolor": COLORS["line"],
        "axes.labelcolor": COLORS["muted"],
        "xtick.color": COLORS["line"],
        "xtick.labelcolor": COLORS["muted"],
        "ytick.color": COLORS["line"],
        "ytick.labelcolor": COLORS["muted"],
        "grid.color": COLORS["line"],
        "grid.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with context(["default", settings]):  # whatever the user's matplotlibrc says
        figure = Figure(figsize=size)
        FigureCanvasSVG(figure)
        axes = figure.add_axes(_place(*size))
        _draw(axes, curve, deployed)
        out = io.StringIO()
        empty = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(out, format="svg", transparent=True, metadata=empty)
    return _as_part_of_the_page(out.getvalue())


def _place(width: float, height: float) -> tuple[float, float, float, float]:
    """Left, bottom, width and height of the axes as shares of the figure's."""
    across = width - MARGINS["left"] - MARGINS["right"]
    up = height - MARGINS["bottom"] - MARGINS["top"]
    return MARGINS["left"] / width, MARGINS["bottom"] / height, across / width, up / height


def _draw(axes: "Axes", curve: Curve, deployed: int) -> None:
    x, y = [point[0] for point in curve.val], [point[1] for point in curve.val]
    last = max([*x, *(point[0] for point in [*curve.before, *curve.after])])
    best = [max(y[: position + 1]) for position in range(len(y))]
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    axes.step([*x, last], [*best, best[-1]], where="post", color=COLORS["best"], lw=2)
    if curve.before:
        axes.plot(*zip(*curve.before, strict=True), "v", ms=5, color=COLORS["before"], mfc="none")
    if curve.after:
        axes.plot(*zip(*curve.after, strict=True), "^", ms=5, color=COLORS["after"])
    axes.plot(x, y, "o", ms=8, color=COLORS["val"])
    for position, value, index in curve.val:
        weight = "bold" if index == deployed else "normal"
        axes.annotate(
            str(index),
            (position, value),
            xytext=(0, 8),
            textcoords="offset points",
            ha="center",
            fontweight=weight,
            color=COLORS["ink"],
        )
    axes.margins(y=0.14)
    axes.set_xlim(left=0, right=max(last, curve.budget or 0) * 1.03)
    axes.set_xlabel("rollouts charged")
    axes.set_ylabel("mean score")


def _as_part_of_the_page(svg: str) -> str:
    """The `<svg>` element alone, with the page's colours and fonts, and as wide as its place."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<style[^>]*>.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
    svg = re.sub(r"font-family: [^;\"]*", "font-family: var(--sans)", svg)
    svg = re.sub(r'<g id="[\w.]+">', "<g>", svg)
    for name, color in COLORS.items():
        svg = svg.replace(color, f"var(--{name})")
    return svg
