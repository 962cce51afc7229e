"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const say = (text) => { document.getElementById("said").textContent = text; };

  // After these, a line of a key or path may end. The file of the page has each key in one piece,
  // which `imagenet-prep forget` and users can search.
  for (const element of document.querySelectorAll(".path")) {
    for (const node of [...element.childNodes].filter((child) => child.nodeType === Node.TEXT_NODE)) {
      const parts = node.data.split(/(?<=[\/_]|:(?=[a-z]))/i);
      node.replaceWith(...parts.flatMap((part) => [part, document.createElement("wbr")]).slice(0, -1));
    }
  }

  for (const button of document.querySelectorAll("[data-copy]")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const code = document.getElementById(button.dataset.copy);
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch {
        // A page from file:// may have no access to the clipboard, so select the text instead.
        getSelection().selectAllChildren(code);
        button.textContent = "Selected";
      }
      say(button.textContent);
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }

  const search = document.getElementById("search");
  if (!search) return;
  const tiles = [...document.querySelectorAll("#grid > li")];
  const more = document.getElementById("more");
  const found = document.getElementById("found");
  const FIRST = 96;
  let all = tiles.length <= FIRST;
  let visible = tiles;

  const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : word.endsWith("s") ? "es" : "s"}`;

  function filter() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (text) => words.every((word) => text.includes(word));
    visible = tiles.filter((tile) => fits(tile.dataset.words));
    const shown = new Set(all || words.length ? visible : visible.slice(0, FIRST));
    for (const tile of tiles) tile.hidden = !shown.has(tile);
    more.hidden = shown.size === visible.length;
    const classes = data.classes.filter((line) => fits(line.text));
    let text = `${plural(shown.size, "image")} of ${plural(visible.length, "image")}`;
    if (words.length) {
      const examples = classes.reduce((sum, line) => sum + line.examples, 0);
      text = `${plural(visible.length, "image")} here; ${plural(classes.length, "class")} with ${plural(examples, "example")} in the dataset`;
    }
    found.textContent = text;
  }
  search.addEventListener("input", filter);
  more.addEventListener("click", () => { all = true; filter(); tiles[FIRST].firstElementChild.focus(); });
  filter();

  const dialog = document.getElementById("dialog");
  const part = (name) => dialog.querySelector(`[data-part="${name}"]`);
  const slide = part("slide");
  let at = null;

  function open(tile) {
    at = tile;
    const facts = data.tiles[Number(tile.dataset.tile)];
    part("title").textContent = facts.title;
    const paired = facts.before !== null;
    part("image").src = paired ? facts.after : tile.querySelector("img").src;
    part("image").alt = paired ? `${facts.title}, as it is stored` : facts.title;
    for (const element of dialog.querySelectorAll(".paired")) element.hidden = !paired;
    if (paired) part("before").src = facts.before; else part("before").removeAttribute("src");
    slide.value = 50;
    slid();
    part("facts").replaceChildren(...facts.rows.flatMap(([name, value]) => {
      const term = document.createElement("dt");
      const detail = document.createElement("dd");
      term.textContent = name;
      detail.textContent = value;
      return [term, detail];
    }));
    if (!dialog.open) dialog.showModal();
  }

  function slid() {
    dialog.style.setProperty("--at", `${slide.value}%`);
    slide.setAttribute("aria-valuetext", `${slide.value} % of the picture shows the source`);
  }

  function step(by) {
    const place = visible.indexOf(at) + by;
    if (place >= 0 && place < visible.length) open(visible[place]);
  }

  for (const tile of tiles) tile.firstElementChild.addEventListener("click", () => open(tile));
  slide.addEventListener("input", slid);
  part("previous").addEventListener("click", () => step(-1));
  part("next").addEventListener("click", () => step(1));
  part("close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("keydown", (event) => {
    if (event.target === slide) return;
    if (event.key === "ArrowRight") step(1);
    if (event.key === "ArrowLeft") step(-1);
  });
  dialog.addEventListener("close", () => { if (!at.hidden) at.firstElementChild.focus(); });
})();
