"""Text of strangers, and far too much of it: the page shows it, runs none of it, and can still be used."""

import json
from typing import Any

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from store import breakers

pytestmark = pytest.mark.browser

RUNS = (
    "<script>window.ran = 1</script><img src=x onerror='window.ran = 1'><svg onload='window.ran = 1'></svg>"
    "<iframe srcdoc='<script>parent.ran = 1</script>'></iframe><a href='javascript:window.ran = 1'>here</a>"
    "<div hx-get='/submit' hx-trigger='load' hx-on:load='window.ran = 1'></div><style>body { display: none }</style>"
)
HOSTILE = (
    f"\n\n  </pre></textarea></details></title>{RUNS}\u202egnp.exe\u2066 {'w' * 500} \U0001f98a{{{{ 7*7 }}}}&lt;b&gt;"
)
LOOK = """
const width = document.documentElement.clientWidth;
return {
  ran: window.ran ?? null,
  foreign: document.querySelectorAll('img, iframe, svg[onload], [hx-trigger=load], [href^=javascript]').length,
  scripts: [...document.scripts].map(one => one.getAttribute('src')),
  styles: document.querySelectorAll('style').length,
  sideways: [...document.body.querySelectorAll('*')].filter(one => one.checkVisibility()
    && !one.closest('.hidden, .skip, pre *') && one.getBoundingClientRect().right > width + 0.5)
    .map(one => `${one.tagName}#${one.id}.${one.className}`),
};
"""
INERT = {
    "ran": None,
    "foreign": 0,
    "scripts": ["/static/vendor/htmx.min.js", "/static/live.js"],
    "styles": 0,
    "sideways": [],
}
MIB = 1 << 20


def assert_inert(chrome: Any, kit: Any) -> None:
    """Nothing of it runs or pushes the page sideways."""
    assert (chrome.current_url, kit.settled(chrome, LOOK, INERT)) == (chrome.current_url, INERT)


def shown(chrome: Any) -> str:
    return str(chrome.execute_script("return document.getElementById('output-text').textContent"))


def test_hostile_text_is_shown_and_does_nothing(box: Any, chrome: Any, kit: Any, scenes: Any, need: Any) -> None:
    box.paths.models.mkdir(exist_ok=True)
    (box.paths.models / "evil.json").write_text(
        json.dumps({"id": "evil", "engine": "llamacpp", "name": HOSTILE, "contract": "c", "prepared": HOSTILE})
    )
    policy = box.settings.policy
    id_ = box.submit(prompt=HOSTILE, max_tokens=400)["id"]
    hand = box.hand()
    assert hand.take() == id_
    hand.say(HOSTILE, tokens=(1,))
    script = kit.axe() or need("axe", "make setup")
    kit.size(chrome, 390, 844)
    try:
        chrome.get(f"{box.url}/requests/{id_}")
        assert shown(chrome) == HOSTILE
        assert chrome.execute_script("return document.querySelector('#asked pre').textContent") == HOSTILE
        hand.say(HOSTILE, tokens=(2,))  # this time it comes to the open page
        kit.until(chrome, lambda c: shown(c) == HOSTILE * 2)
        chrome.find_element(By.CSS_SELECTOR, "#asked summary").click()
        assert_inert(chrome, kit)
        lost = HOSTILE.strip()
        box.writer.run(lambda tx: breakers.device_lost(tx, "sim-0", policy, reason=lost, actor=HOSTILE))
        scenes.reading(box, "sim-0", state="lost", reason=lost, simulated=True)
        chrome.get(f"{box.url}/")
        assert RUNS[:31] in kit.text(chrome, "alarm")
        assert_inert(chrome, kit)
        scenes.reading(box, "sim-0", state="ok", used=333 << 20, simulated=True)
        why = RUNS[:400]
        tried = box.client.post("/api/devices/sim-0/reset-breaker", json={"reason": why})
        assert tried.status_code == 200, tried.text
        chrome.get(f"{box.url}/events?type=DeviceBack")
        assert why[:90] in kit.text(chrome, "events")
        for path in ("/", f"/requests/{id_}?at=3", "/events", "/events?stream=device-sim-0", "/models", "/models/evil"):
            chrome.get(box.url + path)
            assert_inert(chrome, kit)
            assert (path, kit.serious(chrome, script)) == (path, [])
        chrome.get(f"{box.url}/models")
        kit.press(chrome, "j", "j")
        assert kit.focused(chrome) == "row-evil"
        kit.press(chrome, Keys.ENTER)
        kit.until(chrome, lambda c: c.current_url.endswith("/models/evil"))
        assert kit.complaints(chrome) == [], "nothing was even tried"
    finally:
        kit.size(chrome, 1280, 900)


def test_ten_megabytes_of_output_leave_the_page_small_and_usable(shared: Any, chrome: Any, kit: Any, need: Any) -> None:
    box = shared
    lines = "".join(f"line {n} <script>window.ran = 1</script>\n" for n in range(24_000))
    whole = ""
    id_ = box.submit(max_tokens=1500, failover="boundary")["id"]
    hand = box.hand()
    assert hand.take() == id_
    for _ in range(9):
        whole += lines
        hand.say(lines, tokens=(1,))
    chrome.get(f"{box.url}/requests/{id_}")
    chrome.execute_script("window.outputBox = document.getElementById('output-text')")
    word = "w" * MIB
    whole += word
    hand.say(word, tokens=(2,))
    assert len(whole) > 10_000_000
    kit.until(chrome, lambda c: shown(c).endswith("ww"))
    assert whole.endswith(shown(chrome))
    assert len(shown(chrome)) >= 32_768
    for headers in ({}, {"HX-Request": "true"}):
        page = box.client.get(f"/requests/{id_}", headers=headers)
        assert len(page.content) < 256 * 1024
    assert_inert(chrome, kit)
    assert kit.serious(chrome, kit.axe() or need("axe", "make setup")) == []
    assert box.show(id_)["output"]["text"] == whole, "the API leaves nothing out"
    hand.say("\nthe end", tokens=(3,))
    kit.until(chrome, lambda c: shown(c).endswith("\nthe end"))
    assert chrome.execute_script("return window.outputBox === document.getElementById('output-text')")
    kit.click(chrome, "cancel")
    kit.until(chrome, lambda c: kit.text(c, "head") and not kit.enabled(c, "cancel"))
    assert "CancelAsked" in kit.text(chrome, "events")
    hand.die()
    chrome.get(f"{box.url}/requests/{id_}?at=5")
    assert whole.startswith(lines * 3)
    assert (lines * 3).endswith(shown(chrome))
    chrome.find_element(By.CSS_SELECTOR, "#output-cut a").click()
    kit.until(chrome, lambda c: "/output" in c.current_url)
    assert chrome.execute_script("return document.contentType") == "text/plain"
    assert chrome.execute_script("return document.body.textContent.length") == len(lines * 3)
    assert box.client.get(f"/requests/{id_}/output").text == f"{whole}\nthe end"


def test_a_long_output_moves_on_under_the_reader(shared: Any, chrome: Any, kit: Any) -> None:
    box = shared
    id_ = box.submit(max_tokens=1500)["id"]
    hand = box.hand()
    assert hand.take() == id_
    fox = "\n\U0001f98a fox\n"  # 7 characters, 8 as scripts count them
    whole = fox * 5900 + "HERE" + fox * 100
    hand.say(whole, tokens=(1,))
    chrome.get(f"{box.url}/requests/{id_}")
    assert shown(chrome) == whole
    assert not chrome.find_element(By.ID, "output-cut").is_displayed()
    at = "const box = document.getElementById('output-text');"
    place = f"{at} const mark = document.createRange(), text = box.firstChild; "
    place += "mark.setStart(text, text.data.indexOf('HERE')); mark.setEnd(text, text.data.indexOf('HERE') + 4); "
    place += "return mark.getBoundingClientRect().top"
    chrome.execute_script(f"{at} window.outputBox = box; box.scrollTop = box.scrollHeight - 5000; box.focus()")
    before = chrome.execute_script(place)
    more = "\n\U0001f98a den\n" * 2000
    hand.say(more, tokens=(2,))
    kit.until(chrome, lambda c: shown(c).endswith(more))
    # 56,004 characters: more than 32,768 and one step of 16,384, so that the first step is left out.
    assert shown(chrome) == (whole + more)[16_384:]
    assert chrome.find_element(By.ID, "output-cut").is_displayed()
    assert chrome.execute_script(f"{at} return box === window.outputBox && document.activeElement === box")
    assert chrome.execute_script(place) == pytest.approx(before, abs=2), "the reader's line stayed where it was"
    chrome.execute_script(f"{at} box.scrollTop = box.scrollHeight")
    hand.finish("the end")
    kit.until(chrome, lambda c: shown(c).endswith("the end"))
    assert chrome.execute_script(f"{at} return box.scrollHeight - box.scrollTop - box.clientHeight") < 2, "it follows"
