"""The documentation says what the program does: states, settings, commands, exit codes."""

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
import pytest

from core.machine import START, allowed
from core.policy import Policy
from core.state import RequestState
from core.words import ALL_STATES
from store.settings import Settings, load
from web.cli import parser
from web.commands import failed

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "failsoft.example.toml"
KEY = re.compile(r"#([a-z_]+) = (.*)")


def program(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"failsoft_docs_{name}", ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- the state diagram ----


def run_diagram(*arguments: object) -> int:
    command = [sys.executable, str(ROOT / "docs" / "diagram.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, check=False).returncode


def test_the_state_diagram_is_current(tmp_path: Path) -> None:
    assert run_diagram("--check") == 0
    page = tmp_path / "concepts.md"
    page.write_text(
        (ROOT / "docs" / "concepts.md").read_text().replace("--> cancelled: Cancelled", "--> cancelled: Nobody")
    )
    assert run_diagram("--check", "--page", page) == 1
    assert run_diagram("--page", page) == 0
    assert page.read_text() == (ROOT / "docs" / "concepts.md").read_text()


def test_the_diagram_shows_exactly_the_moves_that_the_machine_makes() -> None:
    """Read from the page, and compared with what the machine allows in each state."""
    page = (ROOT / "docs" / "concepts.md").read_text()
    arrows = re.findall(r"^    (\S+) --> (\S+): (.+)$", page, re.MULTILINE)
    drawn = {(source.replace("_", "-"), event) for source, _target, events in arrows for event in events.split(", ")}
    kept = {
        (state, event)
        for state, events in re.findall(r"^\| `([a-z-]+)` \| \w+ \| (.*) \|$", page, re.MULTILINE)
        for event in re.findall(r"`(\w+)`", events)
    }
    begins = {("[*]", event) for event in START}
    states = {state: _in(state) for state in ALL_STATES}
    types = {event for _, event in drawn | kept}
    legal = {(state, event) for state, fact in states.items() for event in types if allowed(fact, event)}
    assert drawn | kept == legal | begins


def _in(state: Any) -> RequestState:
    return RequestState(
        id="r",
        owner="o",
        workload="generate",
        model="m",
        served_model="m",
        state=state,
        version=1,
        created_us=0,
        updated_us=0,
    )


# ---- the example configuration ----


class Entry(msgspec.Struct):
    """A key of the example file: the comment above it, and its value as written."""

    comment: str
    value: Any


def entries() -> dict[str, Entry]:
    """By name, `policy.` before those of the table."""
    found: dict[str, Entry] = {}
    comment: list[str] = []
    table = ""
    for line in EXAMPLE.read_text().splitlines():
        if line.startswith("["):
            table = line.strip("[]") + "."
        elif match := KEY.fullmatch(line):
            found[table + match[1]] = Entry(" ".join(comment), tomllib.loads(f"x = {match[2]}")["x"])
        elif line.startswith("# "):
            comment.append(line.removeprefix("# "))
            continue
        comment = []
    return found


def fields() -> Iterator[tuple[str, Any, Any]]:
    """(name, annotation, default) of everything that may be set."""
    for prefix, cls in (("", Settings), ("policy.", Policy)):
        hints = get_type_hints(cls, include_extras=True)
        for field in msgspec.structs.fields(cls):
            if field.name != "policy":
                yield prefix + field.name, hints[field.name], field.default


def test_the_example_has_every_key_and_no_other() -> None:
    assert list(entries()) == [name for name, _, _ in fields()]


def test_the_example_changes_nothing_as_it_is() -> None:
    assert load(EXAMPLE, {}) == Settings()


def test_the_example_tells_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "failsoft.toml"
    file.write_text(re.sub(r"(?m)^#(?=[a-z_]+ = )", "", EXAMPLE.read_text()))
    assert load(file, {}) == msgspec.structs.replace(Settings(), simulate_gpu=1 << 30)
    assert "Default: none" in entries()["simulate_gpu"].comment


def limits(annotation: Any) -> str | None:
    """What an annotation allows, in the words of the example; None when it names no bounds."""
    if get_origin(annotation) is not Annotated:
        return None
    meta = next(part for part in get_args(annotation) if isinstance(part, msgspec.Meta))
    if meta.le is not None:
        return f"{meta.ge} to {meta.le}" if meta.ge is not None else f"above {meta.gt}, at most {meta.le}"
    return f"above {meta.gt}" if meta.gt is not None else f"at least {meta.ge}"


@pytest.mark.parametrize(("name", "annotation"), [(name, annotation) for name, annotation, _ in fields()])
def test_the_example_tells_meaning_and_limits(name: str, annotation: Any) -> None:
    meaning, _, told = entries()[name].comment.partition("Limits: ")
    assert len(meaning) > 30
    assert told
    wanted = limits(annotation)
    assert wanted is None or told == f"{wanted}."


def test_every_setting_says_its_meaning_where_it_is_defined() -> None:
    """The example is for people; the types are documented as well."""
    for file, cls in ((ROOT / "store" / "settings.py", "Settings"), (ROOT / "core" / "policy.py", "Policy")):
        body = next(
            node.body
            for node in ast.parse(file.read_text()).body
            if isinstance(node, ast.ClassDef) and node.name == cls
        )
        for node, after in zip(body, [*body[1:], None], strict=True):
            if isinstance(node, ast.AnnAssign):
                assert isinstance(after, ast.Expr), ast.unparse(node)


# ---- README, commands, files ----


def commands() -> set[str]:
    """What `failsoft` understands."""
    actions = [action for action in parser()._actions if action.choices]
    return set(actions[0].choices or ())


def test_the_readme_names_commands_that_exist() -> None:
    text = (ROOT / "README.md").read_text()
    named = set(re.findall(r"(?:\.venv/bin/|`)failsoft ([a-z][a-z-]*)", text))
    assert named
    assert named <= commands()
    targets = set(re.findall(r"(?m)^([a-z]+):.*## ", (ROOT / "Makefile").read_text()))
    assert set(re.findall(r"make ([a-z]+)", text)) <= targets


def test_links_of_the_documents_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert len(pages) > 4
    for page in pages:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_every_exit_code_has_a_meaning() -> None:
    codes = {value for name, value in vars(failed).items() if name.isupper() and isinstance(value, int)}
    assert codes == set(failed.MEANINGS)


def test_make_help_lists_every_target() -> None:
    told = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    phony = re.search(r"(?m)^\.PHONY: (.*)$", (ROOT / "Makefile").read_text())
    assert phony is not None
    assert re.findall(r"(?m)^  make (\w+)", told) == phony[1].split()


def test_no_file_names_the_host_of_a_package_registry() -> None:
    hosts = program("hosts")
    assert hosts.named("see https://" + "py" + "pi.org/simple") == ["py" + "pi.org"]
    assert hosts.named("registry." + "npm" + "js.org") == ["registry." + "npm" + "js.org"]
    assert hosts.named("a file about pip, npm and cargo") == []
    listed = hosts.files(ROOT)
    assert ROOT / "Makefile" in listed
    assert [file for file in listed if hosts.named(file.read_text(errors="replace"))] == []


def test_every_rule_is_explained() -> None:
    """Each word with a hyphen that a decider writes down as a rule stands in docs/rules.md."""
    told = set(re.findall(r"`([a-z]+(?:-[a-z]+)*)`", (ROOT / "docs" / "rules.md").read_text()))
    not_rules = {"continue-cpu", "restart-cpu", "run-gpu", "reroute-cpu", "gpu-queue-full", "cpu-queue-full"}
    not_rules |= {"half-open", "return-gpu", "stay-cpu", "reserve-max"}
    kinds = {"service-stopped", "output-in-doubt", "model-changed", "load-failed", "not-on-device"}
    written: set[str] = set()
    for name in ("admission", "safepoint", "residency", "pool", "returning", "breaker"):
        for node in ast.walk(ast.parse((ROOT / "core" / f"{name}.py").read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                written |= {node.value} if re.fullmatch(r"[a-z]+(-[a-z]+)+", node.value) else set()
    assert written - not_rules - kinds - told == set()
    assert "pair-none" in written
