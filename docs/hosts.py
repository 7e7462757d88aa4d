"""Does any file name the host of a package registry? `python docs/hosts.py`; exit status 1 and the places if so.

Where packages come from is the business of whoever installs; a name written down here would decide it for them.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Written so that this file does not name one itself.
HOSTS = re.compile(
    r"py[p]i\.org|python[h]osted\.org|anacon[d]a\.(?:org|com)|registry\.np[m]js\.org|cdn\.js[d]elivr\.net|un[p]kg\.com"
    r"|registry\.y[a]rnpkg\.com|crate[s]\.io|ruby[g]ems\.org|proxy\.go[l]ang\.org|dock[e]r\.io|gh[c]r\.io",
    re.IGNORECASE,
)
_MADE = {"__pycache__", "build", "failsoft.egg-info"}


def files(root: Path) -> list[Path]:
    """What belongs to the program: all that git tracks, or would; without git, all that does not look made."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True).stdout.decode()
    except (OSError, subprocess.CalledProcessError):
        plain = (file.relative_to(root) for file in root.rglob("*") if file.is_file())
        return [root / name for name in plain if not any(part.startswith(".") or part in _MADE for part in name.parts)]
    return [file for name in listed.split("\0") if name and (file := root / name).is_file()]


def named(text: str) -> list[str]:
    """The hosts that a text names."""
    return HOSTS.findall(text)


def main() -> int:
    """Print each place."""
    found = [
        f"{file.relative_to(ROOT)}:{number}: {host}"
        for file in files(ROOT)
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), start=1)
        for host in named(line)
    ]
    print("\n".join(found) or "no file names a package registry's host")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
