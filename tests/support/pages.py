"""A page as a browser without scripts reads it, and what no page may do with text of strangers."""

from html.parser import HTMLParser
from typing import Any

HOSTILE = "</pre></details><script>alert(1)</script><img src=x onerror=alert(1)>\"'`{{ 7*7 }}`"
APART = {"td", "th", "dt", "dd", "li", "p", "h1", "h2", "h3", "span", "a", "caption", "summary"}
VOID = {"meta", "link", "input", "br", "hr", "img"}


class Page(HTMLParser):
    """Elements with their attributes, and the text under each id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: dict[str, str] = {}
        self.order: list[str] = []
        self._open: list[tuple[str, str]] = []
        self._pre = False
        self.feed(text)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        self.elements.append((tag, named))
        if named.get("id"):
            assert named["id"] not in self.texts, f"id {named['id']} is there twice"
            self.texts[named["id"]] = ""
            self.order.append(named["id"])
        if tag == "h1":
            self.order.append("h1")
        if tag in APART:
            self.handle_data(" ")
        if tag not in VOID:
            self._open.append((tag, named.get("id", "")))
        self._pre = tag == "pre"

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        self._pre = False
        opened, _ = self._open.pop()
        assert opened == tag, f"<{opened}> is closed by </{tag}>"

    def handle_data(self, data: str) -> None:
        if self._pre:
            data = data.removeprefix("\n")  # as browsers do
            self._pre = False
        for _tag, id_ in self._open:
            if id_:
                self.texts[id_] += data

    def text(self, id_: str) -> str:
        return " ".join(self.texts[id_].split())

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attrs for name, attrs in self.elements if name == tag]


def read(box: Any, path: str, **headers: str) -> Page:
    answer = box.client.get(path, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    return Page(answer.text)


def inert(box: Any, path: str) -> Page:
    """The page, after a look at what `HOSTILE` would have made of it."""
    answer = box.client.get(path)
    assert answer.status_code == 200, answer.text
    page = Page(answer.text)
    assert not [one for one in page.all("script") if "src" not in one]
    assert not page.all("img")
    assert "<script>alert" not in answer.text
    return page
