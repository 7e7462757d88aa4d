"""Runs a model file's chat template, which is a stranger's program, without letting it do harm.

1. Jinja's immutable sandbox decides what may be touched. On top of it, everything here is about *how much*.
2. Work is counted: each line of template code is a step, and a rendering has a budget of steps. Loops, macros and
   recursion all pay. The count hangs on the template's own code, so what a template defines cannot avoid it.
3. Text is bounded wherever it is made: by `~`, `+`, `*`, blocks, `replace`, `join`, `tojson`, and at the end.
   Ways to make much text at once that no chat template needs (padding, formatting) are not there at all.
4. Only text and plain numbers are printed; a list that holds itself twice over prints without end.
5. Whatever goes wrong in the template becomes `ModelFileError`; `raise_exception`, by which templates refuse a
   conversation, becomes `core.errors.Impossible`.
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from types import FrameType
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from core.errors import Impossible, ModelFileError

MAX_TEMPLATE = 256 * 1024
MAX_OUTPUT = 8 * 1024 * 1024
"""Characters, in any text the template makes."""
MAX_STEPS = 500_000
"""Lines of template code run in one rendering: a thousand messages take some ten thousand."""
MAX_JSON_PARTS = 50_000
"""Brackets, commas, keys and values of one `tojson`."""

_FILTERS = frozenset(
    {
        "abs",
        "capitalize",
        "count",
        "d",
        "default",
        "dictsort",
        "e",
        "escape",
        "first",
        "float",
        "int",
        "items",
        "join",
        "last",
        "length",
        "list",
        "lower",
        "map",
        "max",
        "min",
        "reject",
        "rejectattr",
        "replace",
        "reverse",
        "round",
        "safe",
        "select",
        "selectattr",
        "sort",
        "string",
        "title",
        "trim",
        "unique",
        "upper",
    }
)
_TEXT_FILTERS = ("capitalize", "e", "escape", "float", "int", "lower", "safe", "title", "trim", "upper")
"""Filters that turn whatever they get into text first."""
_BARRED = frozenset({"ljust", "rjust", "center", "zfill", "expandtabs", "format", "format_map", "translate", "encode"})


class _TooMuch(Exception):
    """A limit of this module was passed."""


class _Refused(Exception):
    """The template called `raise_exception`."""


class _Generator(CodeGenerator):
    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 -- Jinja's name
        self.write("environment.concat((")
        for part in node.nodes:
            self.write("environment.finalized(")
            self.visit(part, frame)
            self.write("), ")
        self.write("))")


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})
    code_generator_class = _Generator

    @staticmethod
    def concat(parts: Iterable[Any]) -> str:
        return _joined("", parts)

    @staticmethod
    def finalized(value: Any) -> Any:
        return _printable(value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator in {"*", "**", "%"} and not (_is_number(left) and _is_number(right)):
            raise _TooMuch(f"the operator {operator} is for numbers only")
        if operator == "**" and (abs(left) > 10_000 or abs(right) > 8):
            raise _TooMuch("a power of too large numbers")
        if operator == "*" and max(abs(left), abs(right)) > 1 << 64:
            raise _TooMuch("a product of too large numbers")
        if operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
            _allow(len(left) + len(right))
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in _BARRED and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, _value: Any) -> None:
        """Jinja would offer `str.format` in a wrapping of its own before asking `is_safe_attribute`."""

    def call(*args: Any, **kwargs: Any) -> Any:
        # Without names of its own, so that a template may use any keyword.
        self, context, function, *rest = args
        owner = getattr(function, "__self__", None)
        if isinstance(owner, str):
            # Jinja hands over the variables of the place of the call, for functions that ask for them.
            given = {key: value for key, value in kwargs.items() if key not in {"_loop_vars", "_block_vars"}}
            name = function.__name__
            if name == "replace":
                return _replaced(owner, *rest, **given)
            if name == "join":
                return _joined(owner, *rest, **given)
        return ImmutableSandboxedEnvironment.call(self, context, function, *rest, **kwargs)


class _Generation(Extension):
    """`{% generation %}` marks what a model is trained to write; here it is what stands between."""

    tags = {"generation"}  # noqa: RUF012 -- as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class Sandbox:
    """One compiled chat template. `render` may be called from several threads."""

    def __init__(self, source: str, *, name: str) -> None:
        """Compile `source`; `name` is the model file's, for messages. Raises `ModelFileError`."""
        self._name = name
        if len(source) > MAX_TEMPLATE:
            raise self._broken(f"it is longer than {MAX_TEMPLATE} characters")
        environment = _Environment(
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_printable,
            keep_trailing_newline=False,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        environment.filters = {key: value for key, value in environment.filters.items() if key in _FILTERS}
        for key in _TEXT_FILTERS:
            environment.filters[key] = _on_printable(environment.filters[key])
        environment.filters |= {
            "tojson": _tojson,
            "replace": _replaced,
            "join": _join_filter,
            "string": lambda value: str(_printable(value)),
        }
        environment.globals = {
            "range": environment.globals["range"],
            "namespace": environment.globals["namespace"],
            "dict": dict,
            "raise_exception": _raise_exception,
        }
        try:
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, _TooMuch, RecursionError, MemoryError, ValueError, SyntaxError) as error:
            raise self._broken(f"it cannot be compiled ({error})") from error
        self._code = self._template.root_render_func.__code__.co_filename

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text for `variables`.

        Raises `core.errors.Impossible` when the template refuses the conversation, `ModelFileError` when it fails
        or goes over a limit.
        """
        steps = 0

        def line(_frame: FrameType, event: str, _arg: Any) -> Any:
            nonlocal steps
            if event == "line":
                steps += 1
                if steps > MAX_STEPS:
                    raise _TooMuch(f"it runs for more than {MAX_STEPS} steps")
            return line

        def call(frame: FrameType, _event: str, _arg: Any) -> Any:
            return line(frame, "line", None) if frame.f_code.co_filename == self._code else None

        before = sys.gettrace()
        sys.settrace(call)
        try:
            return self._template.render(variables)
        except _Refused as error:
            msg = f"the model's chat template refuses this conversation: {error}"
            raise Impossible(msg) from error
        except RecursionError as error:
            raise self._broken("it calls itself without end") from error
        except Exception as error:
            raise self._broken(f"it fails ({type(error).__name__}: {error})") from error
        finally:
            sys.settrace(before)

    def _broken(self, cause: str) -> ModelFileError:
        return ModelFileError(
            f"{self._name}: the chat template cannot be used: {cause[:300]}. "
            "Use a file with a current template, or send plain text instead of messages."
        )


def _allow(length: int) -> None:
    if length > MAX_OUTPUT:
        raise _TooMuch(f"it makes more than {MAX_OUTPUT} characters of text")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _printable(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float | jinja2.Undefined):
        return value
    raise _TooMuch(f"it prints a {type(value).__name__}; only text and numbers are printed")


def _on_printable(text_filter: Callable[..., Any]) -> Callable[..., Any]:
    def checked(value: Any, *args: Any, **kwargs: Any) -> Any:
        return text_filter(_printable(value), *args, **kwargs)

    return checked


def _joined(between: str, parts: Iterable[Any]) -> str:
    found: list[str] = []
    length = 0
    for part in parts:
        text = part if isinstance(part, str) else str(_printable(part))
        length += len(text) + len(between)
        _allow(length)
        found.append(text)
    return between.join(found)


def _join_filter(value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    if attribute is None:
        return _joined(d, value)
    # Only mappings: attributes of anything else are the sandbox's to judge.
    return _joined(d, (part[attribute] for part in value))


def _replaced(text: Any, old: str, new: str, count: int = -1) -> str:
    source = str(_printable(text))
    found = source.count(old) if count is None or count < 0 else min(count, source.count(old))
    _allow(len(source) + found * max(0, len(new) - len(old)))
    return source.replace(old, new, found)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if indent is not None and not 0 <= indent <= 16:
        raise _TooMuch(f"tojson with an indent of {indent}")
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    parts = list(islice(encoder.iterencode(value), MAX_JSON_PARTS + 1))
    if len(parts) > MAX_JSON_PARTS:
        raise _TooMuch(f"tojson makes more than {MAX_JSON_PARTS} parts")
    return _joined("", parts)


def _raise_exception(message: Any) -> NoReturn:
    raise _Refused(str(_printable(message))[:300])
