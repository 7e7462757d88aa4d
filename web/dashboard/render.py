"""Templates to HTML: everything is escaped, an unknown name is an error, nothing is cut out of what a person wrote."""

from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

TEMPLATES: Final = Path(__file__).resolve().parent.parent / "templates"


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )


def render(template: str, **names: Any) -> str:
    """The text of a template with these names."""
    return _environment().get_template(template).render(**names)
