"""Three workers are killed, and an open page says what that means, until it is over; in a real browser."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from house import House, house, until
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

pytestmark = pytest.mark.browser

CONFIG = """\
[policy]
breaker_faults = 3
breaker_cooldown_s = 600.0
breaker_window_s = 3600.0
lane_out_after = 1000
restart_backoff_s = 0.02
restart_backoff_max_s = 0.1
hang_grace_s = 120.0
"""
"""On a machine that has a lot else to do no worker is taken to hang: it is killed here, or it lives."""


@pytest.fixture
def home(kit: Any, tmp_path: Path, chrome: Any) -> Iterator[House]:
    kit.programs()
    with house(tmp_path / "house", config=CONFIG) as made:
        yield made
        chrome.get("about:blank")


def text(chrome: Any, id_: str) -> str:
    return " ".join(str(chrome.execute_script("return document.getElementById(arguments[0]).innerText", id_)).split())


def kill_workers(home: House) -> None:
    """Kill the lane's worker once it has its model, three times, until the breaker has had enough."""
    dead: set[int] = set()

    def next_worker() -> int | None:
        rows = home.rows("SELECT pid FROM runners WHERE lane='gpu' AND state IN ('idle','busy')")
        return next((pid for (pid,) in rows if pid not in dead), None)

    for _ in range(3):
        pid = until(next_worker, "the next worker")
        home.send(pid, signal.SIGKILL)
        dead.add(pid)
    until(lambda: home.rows("SELECT 1 FROM devices WHERE breaker='open'"), "the breaker to open")


def test_the_banner_tells_of_the_breaker_and_goes_when_it_closes(home: House, chrome: Any) -> None:
    chrome.get(f"{home.client.base_url}/")
    chrome.execute_script("window.sameDocument = true")
    assert text(chrome, "alarm") == ""
    kill_workers(home)
    until(lambda: "Nothing begins on the device for 600 s" in text(chrome, "alarm"), "the banner")
    alarm = text(chrome, "alarm")
    assert re.search(r"next probe in [5-9] min", alarm), alarm
    assert "Answers instead: CPU lane · null" in alarm
    assert "breaker open" in text(chrome, "devices")
    order = "return document.getElementById('alarm').compareDocumentPosition(document.querySelector('h1'))"
    assert chrome.execute_script(order) & 4, "the banner comes before the heading"
    tried = home.client.post("/api/devices/sim-0/reset-breaker", json={"reason": "it is well"})
    assert tried.status_code == 200
    until(home.serves, "the canaries to be answered and the breaker to close")
    until(lambda: text(chrome, "alarm") == "", "the banner to go")
    assert "breaker closed" in text(chrome, "devices")
    assert chrome.execute_script("return window.sameDocument === true"), "the page was not reloaded"
    kinds = [row[0] for row in home.rows("SELECT type FROM events WHERE stream='device-sim-0' ORDER BY version")]
    assert kinds.count("FaultCounted") == 3
    assert [kind for kind in kinds if kind.startswith("Breaker")] == [
        "BreakerOpened",
        "BreakerHalfOpened",
        "BreakerClosed",
    ]


def test_what_is_being_written_into_the_form_stays_while_the_page_changes(
    box: Any, chrome: Any, kit: Any, scenes: Any
) -> None:
    scenes.lose(box)
    chrome.get(f"{box.url}/")
    chrome.find_element(By.CSS_SELECTOR, "#try-sim-0 summary").click()
    field = chrome.find_element(By.NAME, "reason")
    field.send_keys("I put another")
    box.submit()
    kit.until(chrome, lambda c: "moved to the CPU CPU" in text(c, "requests"))
    scenes.reading(box, "sim-0", state="ok", used=333 << 20, simulated=True)
    box.submit()
    kit.until(chrome, lambda c: "333 MiB" in text(c, "devices"))
    assert kit.until(chrome, lambda c: c.find_element(By.NAME, "reason").is_displayed())
    assert kit.until(chrome, lambda c: c.find_element(By.NAME, "reason").get_property("value")) == "I put another"
    assert chrome.execute_script("return document.activeElement.name") == "reason"
    kit.press(chrome, " card in.", Keys.ENTER)
    kit.until(chrome, lambda c: "breaker half-open" in text(c, "devices"))
    (said,) = box.client.get("/api/events?type=BreakerHalfOpened").json()["items"]
    assert said["data"]["reason"] == "device-back"
    (back,) = box.client.get("/api/events?type=DeviceBack").json()["items"]
    assert back["data"]["reason"] == "I put another card in."
