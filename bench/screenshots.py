"""Pictures of the dashboard: `python bench/screenshots.py DIR` saves each page for desktop and phone, light and dark.

The service is a real one on a fresh store in a temporary directory; its runners are worked by hand, so that every
state a page can show is there: a failover that went on, one that had to stop, a queue, an empty service.
"""

import importlib.util
import sys
import tempfile
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}


def part(name: str, path: str) -> Any:
    """A module of the tests, by its file."""
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "screenshots")
    target.mkdir(parents=True, exist_ok=True)
    scenes = part("browser_scenes", "tests/browser/scenes.py")
    browser_kit = part("browser_kit", "tests/browser/kit.py")
    with tempfile.TemporaryDirectory() as folder:
        box = browser_kit.services().Box(Path(folder), scenes.settings())
        try:
            for name, path in scenes.play(box):
                shoot(browser_kit, box, target, name, path)
        finally:
            box.close()


def shoot(browser_kit: Any, box: Any, target: Path, name: str, path: str) -> None:
    for size, (width, height) in SIZES.items():
        for scheme in ("light", "dark"):
            with browser_kit.browser(width, height, scheme) as driver:
                driver.get(box.url + path)
                browser_kit.whole_height(driver, width, height)
                file = target / f"{name}-{size}-{scheme}.png"
                driver.save_screenshot(str(file))
                print(file)


if __name__ == "__main__":
    main()
