"""Plots as SVG files."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from base.atomic import make_folder


@contextmanager
def svg(path: Path, panels: int, width: float, height: float, **shared: bool) -> Iterator[Any]:
    """Yields the axes of panels side by side; writes the file at the end.

    Args:
        path: File to write.
        panels: Number of panels.
        width: Width of the whole figure in inches.
        height: Height of the figure in inches.
        shared: Options of `pyplot.subplots`, such as `sharey`.
    """
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    size = {"figsize": (width, height), "layout": "constrained", "squeeze": False}
    figure, axes = pyplot.subplots(1, panels, **size, **shared)
    yield axes[0]
    make_folder(path.parent)
    figure.savefig(path)
    pyplot.close(figure)
