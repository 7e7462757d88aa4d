"""What is wrong with a server of others is told at the start, with the place, and without its password."""

from pathlib import Path

import pytest

from core.errors import Malformed
from store.settings import load

GOOD = 'name = "fake"\nmodel = "null"\nurl = "http://127.0.0.1:8000"\n'


def read(tmp_path: Path, *tables: str, more: str = "") -> None:
    file = tmp_path / "failsoft.toml"
    file.write_text('models = ["null"]\n' + more + "".join(f"[[upstreams]]\n{table}\n" for table in tables))
    load(file, {})


@pytest.mark.parametrize(
    "table",
    [
        GOOD,
        GOOD.replace("http://127.0.0.1:8000", "https://gpu.lan/v1"),
        GOOD.replace('url = "http://127.0.0.1:8000"', 'cmd = "serve --port ${PORT} --model ${MODEL}"'),
    ],
)
def test_what_is_well(tmp_path: Path, table: str) -> None:
    read(tmp_path, table)
    read(tmp_path, table, GOOD.replace("fake", "other") + 'lane = "cpu"\n')


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (('"fake"', '"A b/.."'), "is no name"),
        (('"fake"', '""'), "is no name"),
        (('"null"', '"elsewhere"'), "not among the `models`"),
        (("url =", 'cmd = "x ${PORT}"\nurl ='), "one of the two"),
        (('url = "http://127.0.0.1:8000"', ""), "one of the two"),
        (("http://127.0.0.1:8000", "not a url"), "not the address"),
        (("http://", "ftp://"), "not the address"),
        ((":8000", ":99999"), "not the address"),
        (('url = "http://127.0.0.1:8000"', 'cmd = "serve"'), "must say ${PORT}"),
        (('url = "http://127.0.0.1:8000"', "cmd = 'serve \" ${PORT}'"), "cannot be read"),
        (("http://", "http://bob:SECRETPW@"), "key_env"),
    ],
)
def test_what_is_refused(tmp_path: Path, change: tuple[str, str], told: str) -> None:
    with pytest.raises(Malformed) as refused:
        read(tmp_path, GOOD.replace(*change))
    assert told in str(refused.value)
    assert "failsoft.toml: upstreams: " in str(refused.value)
    assert "SECRETPW" not in str(refused.value)


def test_one_lane_and_one_name_have_one_server(tmp_path: Path) -> None:
    with pytest.raises(Malformed, match="gpu lane of null is taken"):
        read(tmp_path, GOOD, GOOD.replace("fake", "other"))
    with pytest.raises(Malformed, match="name fake is taken"):
        read(tmp_path, GOOD, GOOD + 'lane = "cpu"\n')


@pytest.mark.parametrize("tokens", [1, 15, 255])
def test_a_cache_too_small_to_share_is_refused(tmp_path: Path, tokens: int) -> None:
    with pytest.raises(Malformed, match="pool_tokens is"):
        read(tmp_path, more=f"pool_tokens = {tokens}\n")
    read(tmp_path, more="pool_tokens = 256\n")
