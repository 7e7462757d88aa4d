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
    for (const one of root.querySelectorAll("time[data-due]")) {
      const now = due((Date.parse(one.dateTime) - Date.now()) / 1000);
      if (one.textContent !== now) one.textContent = now;
    }
    for (const one of root.querySelectorAll("time[data-ago]")) {
      const now = ago((Date.now() - Date.parse(one.dateTime)) / 1000);
      if (one.textContent !== now) one.textContent = now;
    }
  };
  const grow = (shown, whole) => {
    if (shown.dataset.epoch !== whole.dataset.epoch || !whole.textContent.startsWith(shown.textContent)) return;
    const following = shown.scrollHeight - shown.scrollTop - shown.clientHeight < 24;
    const added = whole.textContent.slice(shown.textContent.length);
    if (added) {
      shown.append(added);
      shown.normalize();
      delete shown.dataset.empty;
    }
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
    if (shown && whole) grow(shown, whole);
    if (listens) [target, fresh].forEach(tick);
    if (fresh.isEqualNode(target)) event.detail.shouldSwap = false;
  });

  if (listens) setInterval(() => tick(document), 1000);

  /* ---- time travel: the slider follows the links, the keys follow the links ---- */

  document.addEventListener("htmx:afterSettle", () => {
    const steps = document.getElementById("steps");
    const slider = document.getElementById("at");
    if (steps && slider && document.activeElement !== slider) slider.value = steps.dataset.at;
  });

  const help = document.getElementById("help");
  const button = document.getElementById("help-open");
  button.hidden = false;
  button.addEventListener("click", () => help.showModal());

  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, textarea, select, pre, dialog");
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const step = { ArrowLeft: "step-previous", ArrowRight: "step-next" }[event.key];
    const link = step && document.getElementById(step);
    if (link?.href) {
      event.preventDefault();
      link.click();
    } else if (event.key === "?") {
      help.showModal();
    } else if (event.key === "/" && document.querySelector("form.fields")) {
      event.preventDefault();
      document.querySelector("form.fields :is(select, input:not([type=hidden]))").focus();
    } else if (event.key === "n" && document.getElementById("prompt")) {
      event.preventDefault();
      document.getElementById("prompt").focus();
    }
  });
})();
