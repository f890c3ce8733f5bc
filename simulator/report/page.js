(() => {
  "use strict";
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.setAttribute("role", "tooltip");
  document.body.append(tip);
  let shown = null;

  function place(x, y) {
    const box = tip.getBoundingClientRect();
    const left = Math.min(Math.max(8, x + 12), innerWidth - box.width - 8);
    const above = y - box.height - 12;
    tip.style.left = `${left}px`;
    tip.style.top = `${above > 8 ? above : y + 18}px`;
  }

  function show(target, x, y) {
    if (target !== shown) {
      shown = target;
      tip.textContent = target.dataset.tip;
      tip.style.visibility = "visible";
    }
    place(x, y);
  }

  function hide() {
    shown = null;
    tip.style.visibility = "hidden";
  }

  const asked = (event) =>
    event.target instanceof Element ? event.target.closest("[data-tip]") : null;

  function point(event) {
    const target = asked(event);
    if (target) show(target, event.clientX, event.clientY);
    else if (shown && !shown.matches(":focus-visible")) hide();
  }

  document.addEventListener("pointermove", point);
  document.addEventListener("pointerdown", point);
  function above(target) {
    const box = target.getBoundingClientRect();
    show(target, box.left + box.width / 2, box.top);
  }

  document.addEventListener("focusin", (event) => {
    const target = asked(event);
    if (target) above(target);
    else hide();
  });
  document.addEventListener("focusout", hide);
  // What is tabbed to is scrolled into view: its tooltip goes with it.
  const scrolled = () => (shown && shown.matches(":focus") ? above(shown) : hide());
  document.addEventListener("scroll", scrolled, { capture: true, passive: true });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
  });

  document.addEventListener("click", async (event) => {
    const button = event.target instanceof Element && event.target.closest("[data-copy]");
    if (!button) return;
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
})();
