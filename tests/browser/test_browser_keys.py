"""Everything by keyboard: the way through lists, the main path from a prompt to its history, and what keys never do."""

from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

pytestmark = pytest.mark.browser

FREE = """
const one = document.activeElement, box = one.getBoundingClientRect();
return one.contains(document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2));
"""
"""Whether what has the focus can be seen: nothing lies on it, and it is not off the screen."""


def opened(chrome: Any, kit: Any) -> str:
    """The id of the request whose page has opened."""
    kit.until(chrome, lambda c: "/requests/req_" in c.current_url and kit.text(c, "head"))
    return str(chrome.current_url).rpartition("/")[2].partition("?")[0]


def to_overview(chrome: Any, kit: Any) -> None:
    kit.tab_to(chrome, "/")
    kit.press(chrome, Keys.ENTER)
    kit.until(chrome, lambda c: kit.text(c, "requests") and c.current_url.endswith("/"))


def ask(chrome: Any, kit: Any, prompt: str) -> str:
    """Write a prompt into the form of the overview and send it; the id of the request that opens."""
    kit.press(chrome, "n")
    kit.until(chrome, lambda c: kit.focused(c) == "prompt")
    kit.press(chrome, prompt, Keys.TAB, Keys.TAB, Keys.TAB, Keys.ENTER)
    return opened(chrome, kit)


def test_the_main_path_by_keyboard_alone(shared: Any, chrome: Any, kit: Any) -> None:
    box = shared
    older = box.completed("Something ", "else.")
    chrome.get(f"{box.url}/")
    kit.press(chrome, Keys.TAB)
    assert kit.focused(chrome) == "#main", "the first stop leads over the navigation"
    kit.press(chrome, Keys.ENTER)
    assert kit.focused(chrome) == "main"
    kit.tab_to(chrome, "prompt")
    kit.press(chrome, "Tell me of jays and larks?", Keys.TAB, Keys.TAB, Keys.TAB)
    assert kit.focused(chrome) == "BUTTON"
    kit.press(chrome, Keys.ENTER)
    id_ = opened(chrome, kit)
    assert "Tell me of jays and larks?" in kit.text(chrome, "asked"), "keys pressed in a field are text"

    to_overview(chrome, kit)
    kit.press(chrome, "j")
    assert kit.focused(chrome) == f"row-{id_}"
    kit.press(chrome, "j")
    assert kit.focused(chrome) == f"row-{older}"
    kit.press(chrome, "k")
    kit.press(chrome, Keys.ENTER)
    assert opened(chrome, kit) == id_
    chrome.execute_script("window.sameDocument = true")
    hand = box.hand()
    assert hand.take() == id_
    hand.say("They sing ")
    kit.until(chrome, lambda c: kit.text(c, "output-text") == "They sing")
    hand.finish("alike.")
    kit.until(chrome, lambda c: kit.text(c, "output-text") == "They sing alike." and not kit.enabled(c, "cancel"))
    assert chrome.execute_script("return window.sameDocument === true"), "the page was not reloaded"

    kit.press(chrome, "j", "j")
    assert kit.focused(chrome) == "row-2"
    kit.press(chrome, Keys.ENTER)
    kit.until(chrome, lambda c: c.current_url.endswith("?at=2") and kit.text(c, "frozen"))
    assert kit.text(chrome, "output-text") == ""
    for key, at in ((Keys.ARROW_RIGHT, 3), (Keys.ARROW_RIGHT, 4), (Keys.ARROW_LEFT, 3)):
        kit.press(chrome, key)
        kit.until(
            chrome, lambda c, at=at: c.current_url.endswith(f"?at={at}") and kit.text(c, "steps").find(f"{at} of") >= 0
        )
    assert kit.text(chrome, "output-text") == "They sing"
    kit.tab_to(chrome, "go-live")
    kit.press(chrome, Keys.ENTER)
    kit.until(chrome, lambda c: c.current_url.endswith(id_) and not kit.text(c, "frozen"))
    assert kit.text(chrome, "output-text") == "They sing alike."

    to_overview(chrome, kit)
    unwanted = ask(chrome, kit, "Never mind.")
    kit.tab_to(chrome, "cancel")
    kit.press(chrome, Keys.ENTER)
    kit.until(chrome, lambda c: kit.text(c, "head") and not kit.enabled(c, "cancel"))
    assert box.show(unwanted)["state"] == "cancelled"

    stopped = box.failed("So far ")
    to_overview(chrome, kit)
    kit.press(chrome, "j", Keys.ENTER)
    assert opened(chrome, kit) == stopped
    kit.tab_to(chrome, "resume-checkpoint")
    kit.press(chrome, Keys.ENTER)
    kit.until(chrome, lambda c: kit.text(c, "head") and not kit.text(c, "resume-checkpoint"))
    hand = box.hand()
    assert hand.take() == stopped
    hand.finish("so good.")
    kit.until(chrome, lambda c: kit.text(c, "output-text") == "So far so good." and not kit.enabled(c, "cancel"))
    assert box.show(stopped)["state"] == "completed"
    assert kit.complaints(chrome) == []


def test_the_focus_stays_on_its_request_while_the_list_changes(shared: Any, chrome: Any, kit: Any) -> None:
    box = shared
    below, chosen, above = (box.submit()["id"] for _ in range(3))
    chrome.get(f"{box.url}/")
    kit.press(chrome, "j", "j")
    assert kit.focused(chrome) == f"row-{chosen}"
    chrome.execute_script("window.oldRow = document.activeElement")
    newest = box.submit()["id"]
    kit.until(chrome, lambda c: kit.text(c, f"row-{newest}"))
    assert not chrome.execute_script("return window.oldRow.isConnected"), "the list was really swapped"
    assert kit.focused(chrome) == f"row-{chosen}"
    assert chrome.execute_script("return document.activeElement.matches(':focus-visible')")
    kit.press(chrome, "j")
    assert kit.focused(chrome) == f"row-{below}"
    kit.press(chrome, "k", "k", "k", "k", "k")
    assert kit.focused(chrome) == f"row-{newest}", "it ends at the top"
    kit.press(chrome, "j", Keys.ENTER)
    assert opened(chrome, kit) == above


def test_the_journal_and_the_models_are_walked_the_same_way(shared: Any, chrome: Any, kit: Any) -> None:
    box = shared
    for _ in range(20):
        id_ = box.submit()["id"]
        box.client.post(f"/api/requests/{id_}/cancel", json={})
    chrome.get(f"{box.url}/events")
    kit.press(chrome, *"j" * 30)
    down = kit.focused(chrome)
    assert chrome.execute_script(FREE)
    kit.press(chrome, *"k" * 27)
    assert chrome.execute_script(FREE), "what is above comes out from under the bar at the top"
    chosen, stream = kit.focused(chrome), chrome.execute_script("return document.activeElement.title")
    assert chosen.startswith("row-")
    assert chosen != down
    newest = box.submit()["id"]
    kit.until(chrome, lambda c: newest in c.find_element("id", "events").get_attribute("innerHTML"))
    assert kit.focused(chrome) == chosen
    kit.press(chrome, Keys.ENTER)
    assert opened(chrome, kit) == stream
    chrome.get(f"{box.url}/models")
    kit.press(chrome, "k")
    assert kit.focused(chrome) == "row-null"
    kit.press(chrome, Keys.ENTER)
    kit.until(chrome, lambda c: c.current_url.endswith("/models/null"))


def test_the_help_names_every_key_and_keeps_them_to_itself(shared: Any, chrome: Any, kit: Any, need: Any) -> None:
    shared.submit()
    chrome.get(f"{shared.url}/")
    kit.press(chrome, "?")
    assert chrome.execute_script("return document.getElementById('help').open")
    named = chrome.execute_script("return [...document.querySelectorAll('#help kbd')].map(one => one.textContent)")
    assert set(named) == {"?", "j", "k", "Enter", "←", "→", "n", "/", "Esc"}
    inside = kit.focused(chrome)
    kit.press(chrome, "j", "n", "/")
    assert kit.focused(chrome) == inside
    script = kit.axe() or need("axe", "make setup")
    assert kit.serious(chrome, script) == []
    kit.press(chrome, Keys.ESCAPE)
    assert not chrome.execute_script("return document.getElementById('help').open")
    kit.press(chrome, "j")
    assert kit.focused(chrome).startswith("row-")
    assert kit.serious(chrome, script) == [], "with a row that is marked"
    kit.press(chrome, "/")
    assert "state=" in kit.focused(chrome), "the overview is narrowed by its states"
