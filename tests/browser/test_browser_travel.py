"""Time travel by slider, link and key, in a real browser."""

from typing import Any

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

pytestmark = pytest.mark.browser


def text(chrome: Any, id_: str) -> str:
    return " ".join(str(chrome.execute_script("return document.getElementById(arguments[0]).innerText", id_)).split())


@pytest.fixture
def moved(box: Any) -> str:
    """Nine events; the sixth is the move to the CPU."""
    id_ = str(box.submit(max_tokens=40)["id"])
    gpu, cpu = box.hand("gpu"), box.hand("cpu")
    gpu.take()
    gpu.say("one ")
    gpu.say("two ")
    gpu.die()
    cpu.take()
    cpu.say("three ")
    cpu.finish("four")
    return id_


def drag_to(chrome: Any, at: int) -> None:
    """Take the slider's thumb with the mouse and put it at an event."""
    slider = chrome.find_element(By.ID, "at")
    last, now = int(slider.get_attribute("max")), int(slider.get_property("value"))
    step = (slider.size["width"] - 16) / (last - 1)
    middle = -slider.size["width"] / 2 + 8
    start, end = round(middle + step * (now - 1)), round(middle + step * (at - 1))
    mouse = ActionChains(chrome).move_to_element_with_offset(slider, start, 0).click_and_hold()
    mouse.move_by_offset((end - start) // 2, 0).move_by_offset(end - start - (end - start) // 2, 0).release().perform()


def test_drag_to_the_failover_and_read_why(box: Any, chrome: Any, kit: Any, moved: str) -> None:
    chrome.get(f"{box.url}/requests/{moved}?at=1")
    chrome.execute_script("window.sameDocument = true")
    drag_to(chrome, 6)
    kit.until(chrome, lambda c: "What event 6 changed" in text(c, "moment"))
    kit.until(chrome, lambda c: c.current_url.endswith("?at=6"))
    assert "Frozen after event 6 of 9" in text(chrome, "frozen")
    assert "continue-identical" in text(chrome, "moment")
    assert "restart-cpu: it would change or repeat text that was shown" in text(chrome, "moment")
    assert "state checkpointed rerouted-cpu" in text(chrome, "moment")
    assert "same" in text(chrome, "moment")
    assert text(chrome, "output-text") == "one two"
    assert chrome.execute_script("return window.sameDocument"), "the page was not reloaded"
    kit.click(chrome, "go-live")
    kit.until(chrome, lambda c: not c.find_elements(By.ID, "frozen"))
    assert chrome.current_url == f"{box.url}/requests/{moved}"
    assert text(chrome, "output-text") == "one two three four"


def test_links_and_keys_step_and_the_slider_follows(box: Any, chrome: Any, kit: Any, moved: str) -> None:
    chrome.get(f"{box.url}/requests/{moved}?at=2")
    kit.click(chrome, "step-next-failover")
    kit.until(chrome, lambda c: "Frozen after event 6" in text(c, "frozen"))
    kit.until(chrome, lambda c: c.find_element(By.ID, "at").get_property("value") == "6")
    body = chrome.find_element(By.TAG_NAME, "body")
    body.send_keys(Keys.ARROW_LEFT)
    kit.until(chrome, lambda c: "Frozen after event 5" in text(c, "frozen"))
    body.send_keys(Keys.ARROW_RIGHT)
    kit.until(chrome, lambda c: "Frozen after event 6" in text(c, "frozen"))
    body.send_keys(Keys.ARROW_RIGHT)
    kit.until(chrome, lambda c: c.current_url.endswith("?at=7"))
    kit.until(chrome, lambda c: c.find_element(By.ID, "at").get_property("value") == "7")
    chrome.back()
    kit.until(chrome, lambda c: "Frozen after event 6" in text(c, "frozen"))
    assert chrome.current_url.endswith("?at=6")


def test_the_slider_moves_by_keys_and_keeps_the_focus(box: Any, chrome: Any, kit: Any, moved: str) -> None:
    chrome.get(f"{box.url}/requests/{moved}?at=3")
    slider = chrome.find_element(By.ID, "at")
    for at in (4, 5, 6):
        slider.send_keys(Keys.ARROW_RIGHT)
        kit.until(chrome, lambda c, at=at: f"Frozen after event {at} " in text(c, "frozen"))
    assert chrome.execute_script("return document.activeElement.id") == "at"


def test_the_past_stays_as_it_was_while_the_request_goes_on(box: Any, chrome: Any, kit: Any) -> None:
    id_ = box.submit()["id"]
    hand = box.hand()
    hand.take()
    chrome.get(f"{box.url}/requests/{id_}?at=2")
    hand.say("later ")
    assert len(box.app.state.doorbell.listeners) == 0, "a frozen page does not listen"
    assert text(chrome, "output-text") == ""
    assert not kit.enabled(chrome, "cancel")
