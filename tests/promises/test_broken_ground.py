"""What the service stands on goes wrong: directories, disks, addresses, settings, readers that walk away."""

import asyncio
import shutil
import signal
import socket
from pathlib import Path

import httpx
import pytest
from desk import Desk
from house import House, house, until
from sqlalchemy import event

from core.errors import Malformed, NoSpace
from runners import supervisor
from runners.corebook import CoreBook
from runners.pulse import Pulse
from store.database import Paths
from store.gate import Gate
from store.reads import Reader, async_read_engine
from store.settings import load


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What is said by a service that does not start."""
    assert supervisor.main(list(arguments)) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return said


def test_a_data_directory_that_is_a_file_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.touch()
    assert f"cannot use {file} as the data directory" in refused(capsys, "--data", str(file))


def test_a_store_that_is_no_database_is_told(empty: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    empty.database.write_bytes(b"no database " * 1000)
    said = refused(capsys, "--data", str(empty.root), "--port", "0")
    assert f"the store in {empty.root} cannot be opened: file is not a database" in said


def test_an_open_host_is_refused_before_anything_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "--data", str(tmp_path / "data"), "--host", "0.0.0.0")
    assert "no API keys yet" in said
    assert not Paths(tmp_path / "data").database.exists()


def test_a_port_in_use_is_found_before_anything_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        said = refused(capsys, "--data", str(tmp_path / "data"), "--port", port)
    assert f"cannot listen on 127.0.0.1:{port}" in said
    assert not Paths(tmp_path / "data").database.exists()


def test_the_other_loopback_address_is_served(tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback; enable it with: sysctl net.ipv6.conf.lo.disable_ipv6=0")
    with house(tmp_path / "data", gpu=None) as made:
        made.stop()
        made.start({"FAILSOFT_HOST": "::1"})
        assert str(made.client.base_url).startswith("http://[::1]:")
        assert made.settled(made.submit("hello"))["state"] == "completed"


@pytest.mark.parametrize("text", [b'host = "\xff"', b"[policy]\nlease_s = inf\n", b"[policy]\nhang_factor = 1e300\n"])
def test_a_configuration_that_no_process_could_use_is_refused(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "failsoft.toml"
    file.write_bytes(text)
    with pytest.raises(Malformed):
        load(file, {})


def test_mapped_files_have_no_holes(tmp_path: Path) -> None:
    """Touching a hole of a mapped file on a full disk is SIGBUS, in whoever touches it: the supervisor, too."""
    Pulse(tmp_path / "pulse").close()
    CoreBook(tmp_path / "cores", total=2, reserve=1)
    for name in ("pulse", "cores"):
        facts = (tmp_path / name).stat()
        assert facts.st_blocks * 512 >= facts.st_size > 0


def test_a_runner_that_cannot_be_started_is_tried_again(null_house: House) -> None:
    run, away = null_house.paths.run, null_house.paths.root / "run.away"
    victim = null_house.runner("gpu")
    run.rename(away)
    null_house.send(victim, signal.SIGKILL)
    until(lambda: b"cannot start gpu-null-" in null_house.log.read_bytes(), "a start that fails")
    away.rename(run)
    assert null_house.runner("gpu") != victim
    assert null_house.settled(null_house.submit("hello"))["state"] == "completed"
    assert null_house.verify().problem is None


def test_nothing_is_accepted_once_the_data_directory_was_deleted(tmp_path: Path) -> None:
    with house(tmp_path / "data") as made:
        made.settled(made.submit("hello"))
        children = made.children()
        shutil.rmtree(made.paths.root)
        try:
            answer = made.client.post("/api/requests", json={"model": "null", "prompt": "x"})
        except httpx.TransportError:
            pass  # it has stopped already
        else:
            assert answer.status_code in {503, 507}
        assert made.process is not None
        assert made.process.wait(60) == 2
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), "the children to be gone")
        assert not made.paths.root.exists()


def test_a_deleted_gate_lets_nobody_in(tmp_path: Path) -> None:
    gate = Gate(tmp_path / "writer.lock")
    with gate.hold():
        pass
    (tmp_path / "writer.lock").unlink()
    with pytest.raises(NoSpace, match="was deleted"), gate.hold():
        raise AssertionError
    with pytest.raises(NoSpace, match="was deleted"), gate.hold():  # and it was let go of
        raise AssertionError
    gate.close()


def test_readers_that_walk_away_cost_no_connections(desk: Desk) -> None:
    request = desk.admit()
    opened = []

    async def work() -> None:
        engine = async_read_engine(desk.paths)
        event.listen(engine.sync_engine, "connect", lambda *_: opened.append(1))
        reader = Reader(engine)
        for turns in range(60):
            assert (await reader.state(request)).id == request
            task = asyncio.ensure_future(reader.history(request))
            for _ in range(turns % 12):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            while engine.sync_engine.pool.checkedout():  # noqa: ASYNC110 -- a pool tells nobody
                await asyncio.sleep(0.001)
        await engine.dispose()

    asyncio.run(work())
    assert len(opened) == 1
