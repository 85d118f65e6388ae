"""Writes the report: one HTML file that needs no network.

All content that a model, a corpus or a user wrote reaches the page as JSON whose `<` is escaped,
and is inserted as text. The page's content security policy allows no connection.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from branchwise.base import atomic_write_text

from .trees import Blobs

_FILES = Path(__file__).with_name("page")


def write_page(path: Path, facts: Mapping[str, Any], trees: Blobs, pairs: Blobs) -> None:
    """Renders the page.

    Args:
        facts: JSON data of the page, except trees and pairs.
        trees, pairs: See `report.trees`.
    """
    environment = Environment(
        loader=FileSystemLoader(_FILES), autoescape=True, undefined=StrictUndefined
    )
    template = environment.get_template("report.html")

    def file(name: str) -> Markup:
        return Markup((_FILES / name).read_text(encoding="utf-8"))

    atomic_write_text(path, template.render(facts=facts, trees=trees, pairs=pairs, file=file))
