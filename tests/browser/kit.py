"""What browser tests share: Chromium as it is installed, and the service of the web tests."""

import contextlib
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium.common.exceptions import StaleElementReferenceException, TimeoutException
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

PATIENCE_S = 120
"""For a machine that has a lot else to do; nothing here takes more than a second or two on an idle one."""
REMEDY = "apt-get install chromium chromium-driver"
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-prefers-reduced-motion",
)
_AXE = """
const done = arguments[arguments.length - 1];
axe.run().then(found => done(found.violations
  .filter(one => ["serious", "critical"].includes(one.impact))
  .map(one => `${one.id}: ${one.nodes.map(node => node.html).join(" | ").slice(0, 400)}`)));
"""


def programs() -> tuple[str, str]:
    """Chromium and its driver; without them a failure where everything must be there, otherwise a skip."""
    found = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if found[0] and found[1]:
        return found[0], found[1]
    if os.environ.get("CI") == "true":
        pytest.fail(f"Chromium or its driver is missing: {REMEDY}")
    pytest.skip(f"Chromium or its driver is missing: {REMEDY}")


@contextmanager
def browser(width: int = 1280, height: int = 900, scheme: str = "light") -> Iterator[Chrome]:
    """A fresh browser of its own, with a page area of this size and colour scheme."""
    chromium, driver = programs()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = ChromeOptions()
        options.binary_location = chromium
        for flag in (*_FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        chrome = Chrome(options=options, service=ChromeService(driver))
        try:
            chrome.set_script_timeout(PATIENCE_S)
            size(chrome, width, height)
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            yield chrome
        finally:
            chrome.quit()


def size(chrome: Chrome, width: int, height: int) -> None:
    """Give the page an area of this size, whatever a window may be at least."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def whole_height(chrome: Chrome, width: int, least: int) -> None:
    """Make the page area as high as the page."""
    height = chrome.execute_script("return document.documentElement.scrollHeight")
    size(chrome, width, max(least, min(int(height), 6000)))


def until(chrome: Chrome, condition: Callable[[Chrome], Any]) -> Any:
    """Wait until it holds, and give what it gave."""
    wait = WebDriverWait(chrome, PATIENCE_S, poll_frequency=0.05, ignored_exceptions=[StaleElementReferenceException])
    return wait.until(condition)


def settled(chrome: Chrome, script: str, expected: object) -> object:
    """What a script gives once it is as expected, or gives at last: a page is laid out anew after it has loaded, and
    while a part of it is exchanged."""
    with contextlib.suppress(TimeoutException):
        until(chrome, lambda c: c.execute_script(script) == expected)
    return chrome.execute_script(script)


def text(chrome: Chrome, id_: str) -> str:
    """The words under this id; nothing where it is not there."""
    found = chrome.execute_script("return document.getElementById(arguments[0])?.textContent ?? ''", id_)
    return " ".join(str(found).split())


def focused(chrome: Chrome) -> str:
    """What has the focus: its id, or where it leads, or what it is."""
    script = "const e = document.activeElement; return e.id || e.getAttribute('href') || e.tagName"
    return str(chrome.execute_script(script))


def press(chrome: Chrome, *keys: str) -> None:
    """Press keys, wherever the focus is."""
    ActionChains(chrome, duration=0).send_keys(*keys).perform()


def tab_to(chrome: Chrome, target: str, most: int = 80) -> None:
    """Go with the tabulator to what has this id or leads there."""
    for _ in range(most):
        press(chrome, Keys.TAB)
        if focused(chrome) == target:
            return
    raise AssertionError(f"{most} tabulators do not lead to {target}")


def complaints(chrome: Chrome) -> list[str]:
    """What the browser refused or failed at since the last look; a fetch that a newer one replaced is no failure."""
    told = [one["message"] for one in chrome.get_log("browser") if one["level"] == "SEVERE"]
    return [one for one in told if "htmx:sendAbort" not in one and "htmx:afterRequest" not in one]


def scripts(chrome: Chrome, *, on: bool) -> None:
    """Whether pages may run their scripts."""
    chrome.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not on})


def axe() -> str | None:
    """The checker's script, as a package brings it."""
    spec = importlib.util.find_spec("axe_core_python")
    return None if spec is None or spec.origin is None else Path(spec.origin).with_name("axe.min.js").read_text()


def serious(chrome: Chrome, script: str) -> list[str]:
    """What axe finds to be serious or critical on the page as it is now."""
    chrome.execute_script(script)
    return list(chrome.execute_async_script(_AXE))


def click(chrome: Chrome, id_: str) -> None:
    """Click what has this id, even if it is replaced just then."""
    until(chrome, lambda c: c.find_element(By.ID, id_).click() is None)


def enabled(chrome: Chrome, id_: str) -> bool:
    """Whether the button with this id can be pressed."""
    return not chrome.execute_script("return document.getElementById(arguments[0]).disabled", id_)


def services() -> Any:
    """The module with the service of the web tests."""
    name = "failsoft_web_tests"
    if name not in sys.modules:
        file = Path(__file__).resolve().parents[1] / "web" / "conftest.py"
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]
