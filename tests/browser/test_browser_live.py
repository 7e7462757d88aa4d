"""What changes on an open page without a reload, in a real browser."""

from typing import Any

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

pytestmark = pytest.mark.browser


def mark(chrome: Any) -> None:
    """Leave a note in the page that a reload would wipe out."""
    chrome.execute_script("window.sameDocument = true")


def not_reloaded(chrome: Any) -> bool:
    return bool(chrome.execute_script("return window.sameDocument === true"))


def text(chrome: Any, id_: str) -> str:
    return str(chrome.execute_script("return document.getElementById(arguments[0]).textContent", id_))


def complaints(chrome: Any) -> list[str]:
    """What the browser refused or failed at since the last look."""
    return [one["message"] for one in chrome.get_log("browser") if one["level"] == "SEVERE"]


def test_tokens_arrive_as_they_become_durable(box: Any, chrome: Any, kit: Any) -> None:
    id_ = box.submit()["id"]
    chrome.get(f"{box.url}/requests/{id_}")
    mark(chrome)
    hand = box.hand()
    hand.take()
    hand.say("first words ")
    kit.until(chrome, lambda c: text(c, "output-text") == "first words ")
    chrome.execute_script("window.outputBox = document.getElementById('output-text')")
    hand.say("and <b>more</b>")
    kit.until(chrome, lambda c: text(c, "output-text") == "first words and <b>more</b>")
    assert chrome.execute_script("return window.outputBox === document.getElementById('output-text')"), "it only grows"
    hand.finish(".")
    kit.until(chrome, lambda c: "completed" in text(c, "head"))
    assert text(chrome, "output-text") == "first words and <b>more</b>."
    assert not kit.enabled(chrome, "cancel")
    assert not_reloaded(chrome)
    assert complaints(chrome) == []


def test_a_failover_shows_itself(box: Any, chrome: Any, kit: Any, scenes: Any) -> None:
    gpu = box.hand()
    id_ = box.submit()["id"]
    gpu.take()
    gpu.say("some words ")
    chrome.get(f"{box.url}/")
    mark(chrome)
    assert text(chrome, "alarm").strip() == ""
    scenes.lose(box)
    kit.until(chrome, lambda c: "Degraded" in text(c, "alarm"))
    kit.until(chrome, lambda c: "out" in text(c, "lanes"))
    assert "fell off the bus" in text(chrome, "alarm")
    assert "CPU lane · null" in text(chrome, "alarm")
    assert "moved to the CPU" in text(chrome, "requests")
    assert text(chrome, "spoken").startswith("Degraded.")
    tops = "return ['.alarm', 'h1'].map(one => document.querySelector(one).getBoundingClientRect().top)"
    banner, heading = chrome.execute_script(tops)
    assert banner < heading
    assert not_reloaded(chrome)
    chrome.get(f"{box.url}/requests/{id_}")
    mark(chrome)
    assert "continue-identical" in text(chrome, "turns")
    cpu = box.hand("cpu")
    cpu.take()
    cpu.finish("to the end")
    kit.until(chrome, lambda c: "Completed after failover" in text(c, "head"))
    assert text(chrome, "output-text") == "some words to the end"
    assert not_reloaded(chrome)
    assert complaints(chrome) == []


def test_what_a_reader_does_survives_a_change(box: Any, chrome: Any, kit: Any) -> None:
    id_ = box.submit()["id"]
    hand = box.hand()
    hand.take()
    hand.say("a\n" * 80)
    chrome.get(f"{box.url}/requests/{id_}")
    chrome.execute_script("document.getElementById('raw-2').open = true")
    chrome.execute_script("document.getElementById('output-text').scrollTop = 40")
    chrome.execute_script("document.getElementById('cancel').focus({preventScroll: true})")
    chrome.execute_script("window.scrollTo(0, 300)")
    hand.say("b")
    kit.until(chrome, lambda c: text(c, "output-text").endswith("b"))
    kit.until(chrome, lambda c: "v4" in text(c, "events"))
    assert chrome.execute_script("return document.getElementById('raw-2').open")
    assert not chrome.execute_script("return document.getElementById('raw-1').open")
    assert chrome.execute_script("return document.getElementById('raw-3') !== null"), "the part was really swapped"
    assert chrome.execute_script("return document.getElementById('output-text').scrollTop") == 40
    assert chrome.execute_script("return document.activeElement.id") == "cancel"
    assert chrome.execute_script("return window.scrollY") == 300


def test_a_hidden_page_hangs_up_and_rings_again_when_seen(box: Any, chrome: Any, kit: Any) -> None:
    id_ = box.submit()["id"]
    chrome.get(f"{box.url}/requests/{id_}")
    hide = (
        "Object.defineProperty(document, 'hidden', {configurable: true, get: () => arguments_hidden});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    doorbell = box.app.state.doorbell
    kit.until(chrome, lambda _c: len(doorbell.listeners) == 1)
    chrome.execute_script("window.arguments_hidden = true;" + hide)
    kit.until(chrome, lambda _c: len(doorbell.listeners) == 0)
    hand = box.hand()
    hand.take()
    hand.say("unseen ")
    assert text(chrome, "output-text") == ""
    chrome.execute_script("window.arguments_hidden = false;" + hide)
    kit.until(chrome, lambda c: text(c, "output-text") == "unseen ")
    assert len(doorbell.listeners) == 1


def test_cancel_with_a_click(box: Any, chrome: Any, kit: Any) -> None:
    id_ = box.submit()["id"]
    hand = box.hand()
    hand.take()
    chrome.get(f"{box.url}/requests/{id_}")
    kit.click(chrome, "cancel")
    kit.until(chrome, lambda c: "CancelAsked" in text(c, "events"))
    assert not kit.enabled(chrome, "cancel")
    mark(chrome)
    hand.stop_as_asked()
    kit.until(chrome, lambda c: "cancelled" in text(c, "head"))
    assert not_reloaded(chrome)


def test_a_prompt_sent_from_the_page_leads_to_its_request(box: Any, chrome: Any, kit: Any) -> None:
    chrome.get(f"{box.url}/")
    chrome.find_element(By.TAG_NAME, "body").send_keys("n")
    chrome.switch_to.active_element.send_keys("hello")
    chrome.find_element(By.CSS_SELECTOR, ".try button").click()
    kit.until(chrome, lambda c: "/requests/req_" in c.current_url)
    assert "admitted" in text(chrome, "head")


def test_help_opens_and_closes_by_key(box: Any, chrome: Any) -> None:
    chrome.get(f"{box.url}/")
    body = chrome.find_element(By.TAG_NAME, "body")
    body.send_keys("?")
    assert chrome.execute_script("return document.getElementById('help').open")
    chrome.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert not chrome.execute_script("return document.getElementById('help').open")
