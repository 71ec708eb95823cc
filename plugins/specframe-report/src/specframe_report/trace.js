// Shows one cycle at a time. Without this script the page lists them all.
"use strict";
(() => {
  const cycles = [...document.querySelectorAll("article.cycle")];
  if (!cycles.length) return;
  const find = (id) => document.getElementById(id);
  const [previous, slider, next, shown, all] = ["previous", "slider", "next", "shown", "all"].map(find);
  const parts = new Map([...document.querySelectorAll("a.part")].map((part) => [part.hash, part]));
  let current = 1;

  const show = (number) => {
    current = Math.min(Math.max(number, 1), cycles.length);
    cycles.forEach((cycle, index) => {
      cycle.hidden = !all.checked && index + 1 !== current;
    });
    slider.value = current;
    shown.value = `${current} of ${cycles.length}`;
    previous.disabled = current === 1;
    next.disabled = current === cycles.length;
    for (const [hash, part] of parts) {
      if (hash === `#cycle-${current}`) part.setAttribute("aria-current", "true");
      else part.removeAttribute("aria-current");
    }
    if (all.checked) cycles[current - 1].scrollIntoView({ block: "nearest" });
  };

  const follow = () => {
    const found = /^#cycle-(\d+)$/.exec(location.hash);
    if (found) show(Number(found[1]));
    return Boolean(found);
  };

  previous.addEventListener("click", () => show(current - 1));
  next.addEventListener("click", () => show(current + 1));
  slider.addEventListener("input", () => show(Number(slider.value)));
  all.addEventListener("change", () => show(current));
  // The tree is shown before the browser follows the link, so that there is something to scroll to.
  for (const part of parts.values()) part.addEventListener("click", () => show(Number(part.hash.slice(7))));
  addEventListener("hashchange", follow);
  addEventListener("keydown", (event) => {
    const taken = event.target.closest("input, [tabindex]") || event.altKey || event.ctrlKey || event.metaKey;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step && !taken) show(current + step);
  });
  find("previous").parentElement.hidden = false;
  if (!follow()) show(1);
})();
