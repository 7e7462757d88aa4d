"""With scripts off: every page is read whole, and every action is a plain form."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.expected_conditions import staleness_of

pytestmark = pytest.mark.browser


@pytest.fixture(autouse=True)
def plain(chrome: Any, kit: Any) -> Iterator[None]:
    kit.scripts(chrome, on=False)
    yield
    kit.scripts(chrome, on=True)


def words(chrome: Any, id_: str) -> str:
    return " ".join(chrome.find_element(By.ID, id_).text.split())


def press(chrome: Any, kit: Any, find: tuple[str, str], then: str) -> None:
    """Press a button, and wait for the page that answers."""
    old = chrome.find_element(By.TAG_NAME, "html")
    chrome.find_element(*find).click()
    kit.until(chrome, staleness_of(old))
    assert re.search(then, chrome.current_url), chrome.current_url


def test_pages_are_read_whole_without_scripts(shared: Any, chrome: Any, kit: Any) -> None:
    box = shared
    id_ = box.moved()
    waits = box.submit()["id"]
    chrome.get(f"{box.url}/")
    assert not chrome.find_element(By.ID, "help-open").is_displayed(), "scripts are really off"
    told = [one["id"] for one in box.client.get("/api/requests").json()["items"]]
    assert {id_, waits} <= set(told)
    rows = [one.get_attribute("id") for one in chrome.find_elements(By.CSS_SELECTOR, "#requests tbody a[id]")]
    assert rows == [f"row-{one}" for one in told]
    for part in ("devices", "lanes", "requests"):
        assert chrome.find_element(By.ID, part).is_displayed()

    chrome.find_element(By.ID, f"row-{id_}").click()
    assert chrome.current_url == f"{box.url}/requests/{id_}"
    assert words(chrome, "output-text") == "one two three four"
    events = box.client.get(f"/api/requests/{id_}/events").json()["items"]
    shown = [one.get_attribute("id") for one in chrome.find_elements(By.CSS_SELECTOR, "#events .event")]
    assert sorted(shown) == sorted(f"v{one['version']}" for one in events)
    chrome.find_element(By.CSS_SELECTOR, "#raw-1 summary").click()
    assert '"Admitted"' in words(chrome, "raw-1")

    chrome.find_element(By.ID, "row-2").click()
    assert chrome.current_url.endswith("?at=2")
    last = len(events)
    for step, at, text in (
        ("step-next", 3, "one"),
        ("step-last", last, "one two three four"),
        ("step-previous-failover", 6, "one two"),
        ("step-first", 1, ""),
    ):
        chrome.find_element(By.ID, step).click()
        assert chrome.current_url.endswith(f"?at={at}")
        assert chrome.find_element(By.ID, "at").get_property("value") == str(at)
        assert (step, words(chrome, "output-text")) == (step, text)
    chrome.find_element(By.ID, "at").send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    press(chrome, kit, (By.CSS_SELECTOR, "#travel button"), r"\?at=3$")
    assert words(chrome, "output-text") == "one"
    assert not chrome.find_element(By.ID, "cancel").is_enabled()
    chrome.find_element(By.ID, "go-live").click()
    assert chrome.current_url == f"{box.url}/requests/{id_}"

    chrome.get(f"{box.url}/events?stream={id_}")
    page = words(chrome, "events")
    assert [one["type"] for one in events if one["type"] not in page and one["type"] != "Checkpointed"] == []
    assert words(chrome, "chain")


def test_cancel_and_resume_are_plain_forms(shared: Any, chrome: Any, kit: Any) -> None:
    box = shared
    waits = box.submit()["id"]
    chrome.get(f"{box.url}/requests/{waits}")
    press(chrome, kit, (By.ID, "cancel"), f"/requests/{waits}$")
    assert not chrome.find_element(By.ID, "cancel").is_enabled()
    assert box.show(waits)["state"] == "cancelled"

    runs = box.submit()["id"]
    hand = box.hand()
    assert hand.take() == runs
    chrome.get(f"{box.url}/requests/{runs}")
    press(chrome, kit, (By.ID, "cancel"), f"/requests/{runs}$")
    assert not chrome.find_element(By.ID, "cancel").is_enabled()
    assert box.show(runs)["state"] != "cancelled", "whoever works on it has yet to see it"
    hand.stop_as_asked()
    chrome.refresh()
    assert box.show(runs)["state"] == "cancelled"
    assert chrome.find_elements(By.ID, "cancel-why")

    for button, text in (("resume-checkpoint", "abc and on"), ("resume-start", "and on")):
        stopped = box.failed("abc ")
        chrome.get(f"{box.url}/requests/{stopped}")
        press(chrome, kit, (By.ID, button), f"/requests/{stopped}$")
        assert not chrome.find_elements(By.ID, button)
        again = box.hand()
        assert again.take() == stopped
        again.finish("and on")
        chrome.refresh()
        assert (button, words(chrome, "output-text")) == (button, text)
        assert bool(chrome.find_elements(By.ID, "older-0")) == (button == "resume-start")
