"""`failsoft webhooks secret`: one secret for a data directory, and none where there is no store."""

import base64
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from store.database import Paths

Failsoft = Callable[..., Any]


def test_the_secret_is_made_once_and_kept_from_others(failsoft: Failsoft, paths: Paths) -> None:
    first = failsoft("webhooks", "secret", "--data", paths.root)
    assert first.code == 0
    text = first.out.strip()
    assert len(base64.b64decode(text.removeprefix("whsec_"), validate=True)) == 32
    again = failsoft("webhooks", "secret", "--data", paths.root, "--json").json
    assert again["secret"] == text
    file = Path(again["file"])
    assert file.read_text().strip() == text
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_what_is_wrong_is_said_with_the_remedy(failsoft: Failsoft, paths: Paths, tmp_path: Path) -> None:
    nowhere = failsoft("webhooks", "secret", "--data", tmp_path / "nowhere")
    assert nowhere.code == 2
    assert "there is no store in" in nowhere.err
    assert not (tmp_path / "nowhere").exists()
    (paths.root / "webhook-secret").write_text("geheim")
    (paths.root / "webhook-secret").chmod(0o600)
    damaged = failsoft("webhooks", "secret", "--data", paths.root)
    assert damaged.code != 0
    assert "delete the file" in damaged.err
    assert "geheim" not in damaged.err + damaged.out
