"""Templates to HTML: everything is escaped, an unknown name is an error, nothing is cut out of what a person wrote."""

import re
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from core.explain import sizes

TEMPLATES: Final = Path(__file__).resolve().parent.parent / "templates"


_TICKS: Final = re.compile(r"`([^`]+)`")


def words(sentence: str) -> Markup:
    """A sentence with its bytes for people and what is between backticks as code; all of it is escaped first."""
    return Markup(_TICKS.sub(r"<code>\1</code>", str(escape(sizes(sentence)))))  # noqa: S704 -- escaped just here


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters["words"] = words
    return environment


def render(template: str, **names: Any) -> str:
    """The text of a template with these names."""
    return _environment().get_template(template).render(**names)
