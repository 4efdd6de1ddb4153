"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const tip = document.getElementById("tip");
  const sources = { w: "written here", c: "copied in", p: "preloaded" };
  let hot = null;
  let pinned = false;

  const describe = (group, path) => {
    const plan = data.plans[path.closest(".boxes").dataset.plan];
    const [start, end, offset, source] = plan[path.dataset.i];
    const [name, size] = data.tensors[group.dataset.t];
    const more = sources[source] ?? source;
    return `${name}\n${size} at ${offset}\n${data.time} [${start}, ${end})${more ? `, ${more}` : ""}`;
  };

  const focus = (tensor) => {
    if (tensor === hot) return;
    for (const group of document.querySelectorAll(".boxes g.hot")) group.classList.remove("hot");
    hot = tensor;
    for (const boxes of document.querySelectorAll(".boxes")) boxes.classList.toggle("focus", tensor !== null);
    if (tensor === null) return;
    for (const group of document.querySelectorAll(`.boxes g[data-t="${tensor}"]`)) group.classList.add("hot");
  };

  const show = (event, text) => {
    tip.textContent = text;
    tip.style.display = "block";
    const { width, height } = tip.getBoundingClientRect();
    const x = Math.min(event.clientX + 14, innerWidth - width - 8);
    const y = event.clientY + 18 + height > innerHeight ? event.clientY - height - 12 : event.clientY + 18;
    tip.style.left = `${Math.max(4, x)}px`;
    tip.style.top = `${Math.max(4, y)}px`;
  };

  document.addEventListener("pointermove", (event) => {
    const target = event.target instanceof Element ? event.target : document.body;
    const group = target.closest(".boxes g");
    const told = target.closest("[data-tip]");
    if (group && target.dataset.i !== undefined) show(event, describe(group, target));
    else if (told) show(event, told.dataset.tip);
    else tip.style.display = "none";
    if (!pinned) focus(group ? group.dataset.t : null);
  });
  document.addEventListener("click", (event) => {
    const target = event.target instanceof Element ? event.target : document.body;
    const group = target.closest(".boxes g") || target.closest("tr[data-t]");
    if (!group && !pinned) return;
    const tensor = group ? group.dataset.t : null;
    pinned = tensor !== null && !(pinned && tensor === hot);
    focus(pinned ? tensor : null);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { pinned = false; focus(null); tip.style.display = "none"; }
  });

  for (const button of document.querySelectorAll("button.copy")) {
    button.addEventListener("click", async () => {
      const text = button.parentElement.querySelector("pre");
      // Where the browser forbids copying, the text is at least selected.
      getSelection().selectAllChildren(text);
      try {
        await navigator.clipboard.writeText(text.textContent);
        button.textContent = "Copied";
      } catch {
        button.textContent = "Selected";
      }
    });
  }

  // A page may have several sections of plots, each with its own buttons.
  for (const plans of document.querySelectorAll(".plans")) {
    const scrollers = [...plans.querySelectorAll(".scroller")];
    const buttons = [...plans.closest("section").querySelectorAll("button[data-zoom]")];
    for (const button of buttons) {
      button.addEventListener("click", () => {
        const first = scrollers[0];
        const middle = (first.scrollLeft + first.clientWidth / 2) / first.scrollWidth;
        plans.style.setProperty("--zoom", button.dataset.zoom);
        plans.classList.toggle("zoomed", button.dataset.zoom >= 4);
        for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
        for (const scroller of scrollers) scroller.scrollLeft = middle * scroller.scrollWidth - scroller.clientWidth / 2;
      });
    }
    for (const scroller of scrollers) {
      scroller.addEventListener("scroll", () => {
        for (const other of scrollers) {
          if (other !== scroller && Math.abs(other.scrollLeft - scroller.scrollLeft) > 1) other.scrollLeft = scroller.scrollLeft;
        }
      });
    }
  }
})();
