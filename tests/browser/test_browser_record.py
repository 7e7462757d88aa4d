"""The pages over the record in a real browser: with scripts, without them, by keyboard, and as axe sees every page."""

import json
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from core import events as ev
from store.laneviews import LaneRow, put_lane
from store.models.catalog import NULL_ENTRY

pytestmark = pytest.mark.browser

MIB = 1 << 20


def account(box: Any) -> None:
    """A card of 1 GiB, a model of 1 MiB a token, and a request too large for it."""
    row = LaneRow("gpu", "null", True, None, 2048, "sim-0", "null", NULL_ENTRY.contract, token_bytes=MIB)
    box.writer.run(lambda tx: put_lane(tx, row))
    box.submit(prompt="hello", max_tokens=895, allow_shrink=False)


def look(chrome: Any, box: Any, kit: Any, script: str, name: str, path: str) -> None:
    """Nothing serious on this page, and nothing that the browser complains of."""
    chrome.get(box.url + path)
    assert (name, kit.serious(chrome, script)) == (name, [])
    found = kit.complaints(chrome)
    assert (name, found if name != "missing" else []) == (name, [])


def test_axe_finds_nothing_serious_on_the_pages_of_the_record(
    box: Any, chrome: Any, scenes: Any, need: Any, kit: Any
) -> None:
    script = kit.axe() or need("axe", "make setup")
    box.completed("a", "b")
    account(box)
    kit.size(chrome, 390, 844)
    try:
        for name, path in scenes.play_record(box):
            look(chrome, box, kit, script, name, path)
        again = box.failed("said once, ")
        look(chrome, box, kit, script, "to-be-resumed", f"/requests/{again}")
        box.client.post(f"/api/requests/{again}/resume", json={"from": "start"}).raise_for_status()
        look(chrome, box, kit, script, "resumed", f"/requests/{again}")
        chrome.find_element(By.CSS_SELECTOR, "#older-0 summary").click()
        assert kit.serious(chrome, script) == [], "with an earlier run open"
        chrome.get(f"{box.url}/")
        chrome.execute_script("document.getElementById('prompt').value = 'too long '.repeat(2000)")
        kit.press(chrome, "n", Keys.TAB, Keys.TAB, Keys.ENTER)
        kit.until(chrome, lambda c: kit.text(c, "wrong"))
        assert kit.serious(chrome, script) == [], "with a form that was not taken"
    finally:
        kit.size(chrome, 1280, 900)


@pytest.mark.prove
@pytest.mark.parametrize(("scheme", "size"), [("light", (1280, 900)), ("dark", (390, 844))])
def test_axe_finds_nothing_serious_on_any_page(
    scheme: str, size: tuple[int, int], kit: Any, scenes: Any, tmp_path: Path, need: Any
) -> None:
    script = kit.axe() or need("axe", "make setup")
    box = kit.services().Box(tmp_path, scenes.settings())
    try:
        with kit.browser(*size, scheme) as chrome:
            for name, path in scenes.play(box):
                look(chrome, box, kit, script, name, path)
    finally:
        box.close()


def test_what_if_is_asked_again_while_one_types(box: Any, chrome: Any, kit: Any) -> None:
    account(box)
    chrome.get(f"{box.url}/what-if?since=1d")
    chrome.execute_script("window.sameDocument = true")
    assert "Nothing is tried yet" in kit.text(chrome, "outcome")
    field = chrome.find_element(By.ID, "headroom_mib")
    field.send_keys("0")
    chrome.find_element(By.ID, "margin_mib").send_keys("0")
    kit.until(chrome, lambda c: "1 of 1 decisions would have been others" in kit.text(c, "outcome"))
    assert "reroute-cpu" in kit.text(chrome, "outcome")
    assert chrome.execute_script("return window.sameDocument === true"), "the page was not reloaded"
    assert kit.focused(chrome) == "margin_mib"
    kit.until(chrome, lambda c: "headroom_mib=0&margin_mib=0" in c.current_url)
    tried = {"headroom_bytes": 0, "unseen_margin_bytes": 0}
    kit.until(chrome, lambda c: json.loads(kit.text(c, "body"))["policy"] == tried)
    assert kit.complaints(chrome) == []


def test_the_journal_grows_on_the_page_and_an_older_page_stays(box: Any, chrome: Any, kit: Any) -> None:
    id_ = box.submit()["id"]
    chrome.get(f"{box.url}/events")
    first = box.client.get(f"/api/requests/{id_}/events").json()["items"][0]["seq"]
    chrome.execute_script("window.sameDocument = true")
    chrome.execute_script(f"document.getElementById('raw-{first}').open = true")
    hand = box.hand()
    hand.take()
    kit.until(chrome, lambda c: kit.text(c, f"e{first + 1}").startswith("Started"))
    assert chrome.execute_script(f"return document.getElementById('raw-{first}').open")
    assert chrome.execute_script("return window.sameDocument === true")
    assert f"event {first + 1} " in kit.text(chrome, "chain")
    chrome.get(f"{box.url}/events?before={first + 1}")
    hand.say("later ")
    kit.until(chrome, lambda _c: not box.app.state.doorbell.listeners)
    assert not chrome.find_elements(By.CSS_SELECTOR, "#live[hx-get]"), "an older page does not listen"
    assert kit.complaints(chrome) == []


def test_everything_works_without_scripts(box: Any, chrome: Any, kit: Any, tmp_path: Path) -> None:
    account(box)
    id_ = box.client.get("/api/requests").json()["items"][0]["id"]
    file = tmp_path / "history.json"
    file.write_bytes(box.client.get(f"/api/requests/{id_}/export").content)
    kit.scripts(chrome, on=False)
    try:
        chrome.get(f"{box.url}/what-if")
        for name in ("headroom_mib", "margin_mib"):
            chrome.find_element(By.ID, name).send_keys("0")
        chrome.find_element(By.CSS_SELECTOR, "#what-if button").click()
        kit.until(chrome, lambda c: "1 of 1 decisions" in c.find_element(By.ID, "outcome").text)
        chrome.get(f"{box.url}/events")
        chrome.find_element(By.ID, "stream").send_keys(id_, Keys.ENTER)
        kit.until(chrome, lambda c: f"stream={id_}" in c.current_url)
        assert "Admitted" in chrome.find_element(By.ID, "events").text
        chrome.find_element(By.CSS_SELECTOR, "#events details summary").click()
        assert '"seq"' in chrome.find_element(By.ID, "events").text
        chrome.get(f"{box.url}/imports")
        chrome.find_element(By.ID, "file").send_keys(str(file))
        chrome.find_element(By.CSS_SELECTOR, "form.fields button").click()
        kit.until(chrome, lambda c: "/imports/imp_" in c.current_url)
        assert "Imported, read-only, verified" in chrome.find_element(By.ID, "frozen").text
        chrome.find_element(By.ID, "step-first").click()
        kit.until(chrome, lambda c: c.current_url.endswith("?at=1"))
        chrome.find_element(By.ID, "remove").click()
        kit.until(chrome, lambda c: c.current_url.endswith("/imports"))
        assert "None yet" in chrome.find_element(By.ID, "main").text
    finally:
        kit.scripts(chrome, on=True)


def test_an_imported_history_is_travelled_like_any_other(box: Any, chrome: Any, kit: Any) -> None:
    id_ = box.failed("abc")
    document = box.client.get(f"/api/requests/{id_}/export").json()
    import_id = box.client.post("/api/imports", json=document).json()["id"]
    chrome.get(f"{box.url}/imports/{import_id}")
    chrome.execute_script("window.sameDocument = true")
    assert "after event 5 of 5" in kit.text(chrome, "frozen")
    chrome.find_element(By.TAG_NAME, "body").send_keys(Keys.ARROW_LEFT)
    kit.until(chrome, lambda c: "after event 4 of 5" in kit.text(c, "frozen"))
    chrome.find_element(By.ID, "at").send_keys(Keys.ARROW_LEFT)
    kit.until(chrome, lambda c: "after event 3 of 5" in kit.text(c, "frozen"))
    assert chrome.execute_script("return window.sameDocument === true")
    assert len(box.app.state.doorbell.listeners) == 0, "it does not listen"
    assert kit.complaints(chrome) == []


def test_the_audit_page_by_keyboard_alone(box: Any, chrome: Any, kit: Any) -> None:
    box.writer.run(lambda tx: tx.append("device-sim-0", ev.PressureRose(1, 2), actor="test"))
    chrome.get(f"{box.url}/events")
    way = []
    for _ in range(16):
        chrome.switch_to.active_element.send_keys(Keys.TAB)
        way.append(kit.focused(chrome))
    expected = ["#main", "/", "/", "/events", "/what-if", "/models", "/imports"]
    assert way[: len(expected)] == expected
    fields = ["type", "stream", "since", "until", "BUTTON"]
    assert way[way.index("type") :][: len(fields)] == fields
    chrome.get(f"{box.url}/events")
    chrome.find_element(By.TAG_NAME, "body").send_keys("/")
    assert kit.focused(chrome) == "type"
    chrome.switch_to.active_element.send_keys("PressureRose")
    chrome.switch_to.active_element.send_keys(Keys.TAB, Keys.TAB)
    chrome.switch_to.active_element.send_keys(Keys.ENTER)
    kit.until(chrome, lambda c: "type=PressureRose" in c.current_url)
    assert "Checkpointed" not in kit.text(chrome, "events")
    assert "PressureRose" in kit.text(chrome, "events")
