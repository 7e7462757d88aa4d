"""The report of the long proofs, made from what pytest wrote down: `python docs/proofs.py REPORT.xml > docs/proofs.md`.

Each line is one proof: the promise (its module), what it does, how it ended, how long it took, what it measured.
The machine and the revision are those this is called on, so it is called where the proofs have just been run.
"""

import os
import platform
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEAD = """# Proofs

The last run of `make prove`: what takes too long for every change. {passed} of {all} passed{rest}, in {minutes:.0f}
minutes, with {kills} kills where a number of them is asked for. Made by `python docs/proofs.py`.

- {machine}
- revision {revision}, {when}

| promise | proof | ended | took | measured |
|---|---|---|---|---|
"""


def words(name: str) -> str:
    """`test_a_thing[case]` as people say it."""
    plain, _, case = name.removeprefix("test_").partition("[")
    return plain.replace("_", " ") + (f" ({case.removesuffix(']')})" if case else "")


def row(case: ET.Element) -> tuple[str, str, str, str, str]:
    """One proof: promise, proof, how it ended, how long it took, what it measured."""
    bad = {"failure": "**failed**", "error": "**failed**", "skipped": "skipped"}
    ended = next((word for tag, word in bad.items() if case.find(tag) is not None), "passed")
    figures = "; ".join(f"{one.get('name')}: {one.get('value')}" for one in case.iter("property")).replace("|", "/")
    promise = case.get("classname", "").rsplit(".", 1)[-1]
    return words(promise), words(case.get("name", "")), ended, f"{float(case.get('time', 0)):.0f} s", figures


def machine() -> str:
    """What it ran on, in a line."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    system = f"Linux {platform.release()}, Python {platform.python_version()}"
    return f"{os.cpu_count()} cores, {pages / (1 << 30):.0f} GiB of memory, {system}"


def report(file: Path) -> str:
    """The page, whole.

    Raises:
        OSError, ET.ParseError: there is no such report, or it is none.
    """
    suite = ET.parse(file).getroot().find("testsuite")  # noqa: S314 -- our own pytest has just written it
    if suite is None:
        raise ET.ParseError(f"{file} holds no suite")
    rows = sorted(row(case) for case in suite.iter("testcase"))
    ended = [one[2] for one in rows]
    counts = ", ".join(f"{ended.count(word)} {word}" for word in ("skipped", "**failed**") if word in ended)
    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    head = HEAD.format(
        passed=ended.count("passed"),
        all=len(rows),
        rest=f" ({counts})" if counts else "",
        minutes=float(suite.get("time", 0)) / 60,
        kills=os.environ.get("FAILSOFT_KILLS", "as few as always"),
        machine=machine(),
        revision=subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip(),
        when=suite.get("timestamp", "")[:16].replace("T", " "),
    )
    return head + "".join(f"| {' | '.join(one)} |\n" for one in rows)


if __name__ == "__main__":
    print(report(Path(sys.argv[1])), end="")
