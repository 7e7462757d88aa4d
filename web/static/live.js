/* The doorbell and the keys. The page is whole without this file.

1. The stream says only "something changed"; the page then asks for its own parts (htmx, hx-get of #live).
2. It listens only while the page can be seen, and asks at most a few times a second.
3. A part that came back as it was is left alone; in the others open <details>, scroll and focus stay.
4. Output only grows: what was added is appended, what is there is not touched. */
(() => {
  "use strict";
  const GAP_MS = 200;
  const SLOW_MS = 5000;
  const live = document.getElementById("live");
  const listens = live !== null && live.hasAttribute("hx-get");
  let stream = null;
  let timer = null;
  let asked = 0;

  const ask = () => {
    timer = null;
    asked = performance.now();
    if (!document.hidden) htmx.trigger(live, "ring");
  };
  const ring = () => {
    timer ??= setTimeout(ask, Math.max(0, GAP_MS - (performance.now() - asked)));
  };
  const listen = () => {
    if (document.hidden) {
      stream?.close();
      stream = null;
    } else if (stream === null) {
      stream = new EventSource("/api/stream");
      stream.onmessage = ring;
      stream.onopen = ring;
    }
  };
  if (listens) {
    document.addEventListener("visibilitychange", listen);
    window.addEventListener("pagehide", () => { stream?.close(); stream = null; });
    window.addEventListener("pageshow", listen);
    setInterval(ring, SLOW_MS);
    listen();
  }

  /* ---- swaps that do not disturb ---- */

  const ago = (seconds) => {
    const whole = Math.max(0, Math.floor(seconds));
    if (whole < 60) return `${whole} s ago`;
    if (whole < 3600) return `${Math.floor(whole / 60)} min ago`;
    return whole < 86400 ? `${Math.floor(whole / 3600)} h ago` : `${Math.floor(whole / 86400)} d ago`;
  };
  const due = (seconds) => {
    const whole = Math.max(0, Math.floor(seconds));
    if (whole < 1) return "now";
    return whole < 60 ? `in ${whole} s` : `in ${Math.floor(whole / 60)} min ${whole % 60} s`;
  };
  const tick = (root) => {
    for (const one of root.querySelectorAll("time[data-due], time[data-ago]")) {
      const passed = (Date.now() - Date.parse(one.dateTime)) / 1000;
      const now = "due" in one.dataset ? due(-passed) : ago(passed);
      if (one.textContent !== now) one.textContent = now;
    }
  };
  const grow = (shown, whole) => {
    if (shown.dataset.epoch !== whole.dataset.epoch) return;
    const left = whole.dataset.start - shown.dataset.start;
    const cut = left > 0 ? [...shown.textContent].slice(0, left).join("").length : 0;
    const kept = shown.textContent.slice(cut);
    if (left < 0 || !whole.textContent.startsWith(kept)) return;
    const below = shown.scrollHeight - shown.scrollTop;
    const following = below - shown.clientHeight < 24;
    if (cut) {
      shown.firstChild.deleteData(0, cut);
      shown.scrollTop = shown.scrollHeight - below;
    }
    if (whole.textContent.length > kept.length) {
      shown.append(whole.textContent.slice(kept.length));
      shown.normalize();
      delete shown.dataset.empty;
    }
    shown.dataset.start = whole.dataset.start;
    if (following) shown.scrollTop = shown.scrollHeight;
  };
  document.addEventListener("htmx:oobBeforeSwap", (event) => {
    const { target, fragment } = event.detail;
    const fresh = fragment.firstElementChild;
    if (target.getAttribute("role") === "status") {
      if (target.textContent !== fresh.textContent) target.textContent = fresh.textContent;
      event.detail.shouldSwap = false;
      return;
    }
    for (const one of fresh.querySelectorAll("details[id]")) {
      const old = document.getElementById(one.id);
      if (old) one.open = old.open;
    }
    const shown = target.querySelector("#output-text");
    const whole = fresh.querySelector("#output-text");
    if (shown && whole) {
      grow(shown, whole);
      const [note, now] = [target, fresh].map((part) => part.querySelector("#output-cut"));
      if (!note.isEqualNode(now)) note.replaceWith(now.cloneNode(true));
    }
    if (listens) [target, fresh].forEach(tick);
    if (fresh.isEqualNode(target)) event.detail.shouldSwap = false;
  });

  if (listens) setInterval(() => tick(document), 1000);

  /* ---- time travel: the slider follows the links ---- */

  document.addEventListener("htmx:afterSettle", () => {
    const steps = document.getElementById("steps");
    const slider = document.getElementById("at");
    if (steps && slider && document.activeElement !== slider) slider.value = steps.dataset.at;
  });

  /* ---- keys: each answers whether there was something to do ---- */

  const help = document.getElementById("help");
  const button = document.getElementById("help-open");
  button.hidden = false;
  button.addEventListener("click", () => help.showModal());

  const go = (element) => element && (element.focus(), true);
  const follow = (id) => document.getElementById(id)?.href && (document.getElementById(id).click(), true);
  const walk = (by) => {
    const rows = [...document.querySelectorAll("[data-row]")].filter((one) => one.checkVisibility());
    const at = rows.findIndex((one) => one.closest("tr, .event").contains(document.activeElement));
    return go(rows[at < 0 ? 0 : Math.min(Math.max(at + by, 0), rows.length - 1)]);
  };
  const keys = {
    j: () => walk(1),
    k: () => walk(-1),
    n: () => go(document.getElementById("prompt")),
    "/": () => go(document.querySelector("form.fields :is(select, input:not([type=hidden])), .boxes a")),
    "?": () => (help.showModal(), true),
    ArrowLeft: () => follow("step-previous"),
    ArrowRight: () => follow("step-next"),
  };
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, textarea, select, pre, dialog");
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (keys[event.key]?.()) event.preventDefault();
  });
})();
