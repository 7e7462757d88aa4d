"""How pages hold up on a phone and in the dark: nothing overflows, everything can be read."""

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser

CONTRAST = """
const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
const rgba = (css) => {
  canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = css; canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
};
const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
  .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const ground = (element) => {
  for (let one = element; one; one = one.parentElement) {
    const colour = rgba(getComputedStyle(one).backgroundColor);
    if (colour[3] === 255) return colour;
  }
  return rgba(getComputedStyle(document.body).backgroundColor);
};
const weak = [];
let looked = 0;
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement;
  if (!walker.currentNode.textContent.trim() || element.closest('svg, .hidden, .skip, dialog, option')) continue;
  if (!element.checkVisibility()) continue;
  looked += 1;
  const [a, b] = [light(rgba(getComputedStyle(element).color)), light(ground(element))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const words = walker.currentNode.textContent.trim();
  if (ratio < 4.5) weak.push(`${ratio.toFixed(2)} ${element.tagName}.${element.className}: ${words}`);
}
return [looked, weak];
"""
TOO_WIDE = """
const width = document.documentElement.clientWidth;
const wide = [...document.body.querySelectorAll('*')]
  .filter(e => e.checkVisibility() && !e.closest('pre *, .hidden, .skip'))
  .filter(e => e.getBoundingClientRect().right > width + 0.5).map(e => `${e.tagName}.${e.className}`);
return [document.documentElement.scrollWidth, width, wide];
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_a_phone_and_can_be_read(scheme: str, kit: Any, scenes: Any, tmp_path: Path) -> None:
    box = kit.services().Box(tmp_path, scenes.settings())
    try:
        with kit.browser(390, 844, scheme) as chrome:
            dark = chrome.execute_script("return matchMedia('(prefers-color-scheme: dark)').matches")
            assert dark == (scheme == "dark")
            for name, path in scenes.play(box):
                chrome.get(box.url + path)
                assert (name, kit.settled(chrome, TOO_WIDE, [390, 390, []])) == (name, [390, 390, []])
                looked, weak = chrome.execute_script(CONTRAST)
                assert looked > 5, name
                assert weak == [], name
    finally:
        box.close()
