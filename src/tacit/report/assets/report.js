"use strict";
// Draws the figures, sorts the tables, and in a live view asks for news. Needs no network.
(() => {
  const root = document.documentElement;
  const views = new Map();
  let figures = JSON.parse(document.getElementById("data").textContent);

  const objects = (f) => f.rows.map((row) => Object.fromEntries(f.columns.map((c, i) => [c, row[i]])));

  function config() {
    const css = getComputedStyle(root);
    const [text, line, back] = ["--text", "--line", "--back"].map((v) => css.getPropertyValue(v).trim());
    const words = { labelColor: text, titleColor: text, labelFontSize: 12, titleFontSize: 12 };
    return {
      background: back, font: "system-ui, sans-serif",
      view: { stroke: line }, range: { category: { scheme: "tableau20" } },
      axis: { ...words, gridColor: line, domainColor: line, tickColor: line, labelLimit: 110 },
      legend: { ...words, labelLimit: 160 }, mark: { tooltip: true },
    };
  }

  async function draw(figure) {
    const place = document.querySelector(`.chart[data-name="${CSS.escape(figure.name)}"]`);
    if (!place) return;
    const title = place.closest("figure").querySelector("h2").textContent;
    const spec = {
      $schema: "https://vega.github.io/schema/vega-lite/v6.json", description: title,
      data: { values: objects(figure) }, width: "container",
      autosize: { type: "fit-x", contains: "padding" }, ...figure.spec,
    };
    // the expressions of a chart are interpreted: the page allows no eval
    const made = await vegaEmbed(place, spec, { actions: false, renderer: "svg", config: config(), ast: true });
    views.get(figure.name)?.finalize();
    views.set(figure.name, made.view);
  }

  const drawAll = async () => { for (const f of figures) await draw(f); root.dataset.drawn = String(figures.length); };

  function save(name, address) {
    const a = document.createElement("a");
    a.download = name; a.href = address; a.click();
  }

  const quoted = (v) => { const t = v == null ? "" : String(v); return /[",\n]/.test(t) ? `"${t.replaceAll('"', '""')}"` : t; };
  const csv = (rows) => rows.map((row) => row.map(quoted).join(",") + "\n").join("");
  const saveCsv = (name, rows) => save(`${name}.csv`, URL.createObjectURL(new Blob([csv(rows)], { type: "text/csv" })));

  function sort(button) {
    const th = button.closest("th"), table = th.closest("table"), body = table.tBodies[0];
    const column = th.cellIndex, up = th.getAttribute("aria-sort") !== "ascending";
    const key = (row) => { const k = row.cells[column].dataset.key, n = Number(k); return k !== "" && !Number.isNaN(n) ? n : k; };
    const order = (a, b) => typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1;
    const rows = [...body.rows].sort((a, b) => (up ? 1 : -1) * order(key(a), key(b)));
    for (const other of th.parentNode.cells) other.setAttribute("aria-sort", "none");
    th.setAttribute("aria-sort", up ? "ascending" : "descending");
    body.append(...rows);
  }

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    const name = button.dataset.name, figure = figures.find((f) => f.name === name);
    if (button.classList.contains("png")) save(`${name}.png`, await views.get(name).toImageURL("png", 2));
    else if (button.classList.contains("csv")) saveCsv(name, [figure.columns, ...figure.rows]);
    else if (button.classList.contains("table-csv")) {
      const table = document.querySelector(`table[data-name="${CSS.escape(name)}"]`);
      saveCsv(name, [...table.rows].map((row) => [...row.cells].map((cell) => cell.textContent)));
    } else if (button.closest("th")) sort(button);
    else if (button.id === "theme") theme(root.dataset.theme === "dark" ? "light" : "dark");
    else if (button.id === "print") window.print();
  });

  async function theme(name, redraw = true) {
    root.dataset.theme = name;
    document.getElementById("theme").textContent = name === "dark" ? "light" : "dark";
    if (redraw) await drawAll();
  }
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", () => theme(dark.matches ? "dark" : "light"));
  // paper is white
  let before = null;
  addEventListener("beforeprint", () => { before = root.dataset.theme; root.dataset.theme = "light"; });
  addEventListener("afterprint", () => { root.dataset.theme = before; });

  async function follow(address, stamp) {
    await new Promise((resume) => setTimeout(resume, 1000));
    const news = document.getElementById("news");
    try {
      const reply = await fetch(address + "&stamp=" + encodeURIComponent(stamp));
      if (!reply.ok) throw new Error(`status ${reply.status}`);
      const fresh = await reply.json();
      if (fresh.stamp !== stamp) await show(fresh);
      stamp = fresh.stamp;
      news.textContent = "following: updates by itself";
    } catch (error) {
      news.textContent = "the viewer does not answer; trying again";
    }
    return follow(address, stamp);
  }

  async function show(fresh) {
    const open = [...document.querySelectorAll("details[open]")].map((d) => d.id);
    const chosen = new Set([...document.querySelectorAll("input:checked")].map((box) => box.value));
    document.getElementById("main").innerHTML = fresh.body; // made and escaped by the same templates
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    for (const box of document.querySelectorAll("input")) box.checked = chosen.has(box.value);
    figures = fresh.figures;
    await drawAll();
  }

  theme(dark.matches ? "dark" : "light", false);
  drawAll().then(() => { if (document.body.dataset.live) follow(document.body.dataset.live, document.body.dataset.stamp); });
})();
