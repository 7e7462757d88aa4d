"""One secret for an installation, and signatures that the libraries of receivers accept."""

import base64
import stat
from pathlib import Path

import pytest
from desk import python

from core.errors import Malformed
from store.database import Paths
from store.signing import secret, secret_file, secret_text, signature

PATIENCE_S = 60


def test_the_published_example() -> None:
    """The example that the libraries for Standard Webhooks are tested with."""
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    made = signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, '{"test": 2432232314}')
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_it_is_made_once_and_for_its_owner_only(empty: Paths) -> None:
    text = secret_text(empty)
    assert text.startswith("whsec_")
    assert base64.b64decode(text.removeprefix("whsec_")) == secret(empty)
    assert len(secret(empty)) == 32
    assert secret_text(empty) == text
    assert stat.S_IMODE(secret_file(empty).stat().st_mode) == 0o600
    assert [file.name for file in empty.root.iterdir() if "webhook" in file.name] == ["webhook-secret"]


def test_those_who_make_it_at_once_agree(empty: Paths) -> None:
    program = "import sys; from pathlib import Path; from store.database import Paths; from store.signing import *\n"
    program += "print('ready', flush=True); sys.stdin.readline(); print(secret_text(Paths(Path(sys.argv[1]))))"
    others = [python(program, str(empty.root), stdin=-1, stdout=-1) for _ in range(4)]
    for other in others:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
    for other in others:
        assert other.stdin is not None
        other.stdin.write("\n")
        other.stdin.flush()
    assert {other.communicate(timeout=PATIENCE_S)[0] for other in others} == {secret_text(empty) + "\n"}


@pytest.mark.parametrize("text", ["", "whsec_", "whsec_!!!", "whsec_YWJj", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "ä"])
def test_a_damaged_file_is_refused_with_the_remedy(empty: Paths, text: str) -> None:
    file: Path = secret_file(empty)
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(Malformed, match="delete the file"):
        secret(empty)


def test_a_file_that_others_may_read_is_refused(empty: Paths) -> None:
    secret(empty)
    secret_file(empty).chmod(0o640)
    with pytest.raises(Malformed, match="chmod 600"):
        secret(empty)
