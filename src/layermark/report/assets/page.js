"use strict";
// Data only ever becomes text nodes and attribute values: nothing in it is parsed as markup.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = new Map(data.rows.map((row) => [row.id, row]));
  const PAGE = 150; // rows drawn at once: the time of a filter hardly depends on how many results there are
  const PRINTED = 2000;
  const SHAPES = [...document.querySelectorAll(".legend .marker path")].map((path) => path.getAttribute("d"));
  const SVG = "http://www.w3.org/2000/svg";
  const $ = (selector) => document.querySelector(selector);

  function make(name, attributes = {}, ...children) {
    const svg = ["svg", "path", "rect", "text", "circle", "title"].includes(name);
    const element = svg ? document.createElementNS(SVG, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }

  // --- theme ---

  const root = document.documentElement;
  function remembered(action) {
    try { return action(localStorage); } catch { return null; } // a file:// page may have no storage
  }
  const theme = remembered((storage) => storage.getItem("layermark-theme"));
  if (theme) root.dataset.theme = theme;
  $("#theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    remembered((storage) => storage.setItem("layermark-theme", root.dataset.theme));
  });

  // --- the table ---

  const head = $(".results thead"), body = $(".results tbody"), more = $("#more"), count = $("#count");
  const state = { words: [], hidden: new Set(), column: -1, down: false, shown: PAGE, rows: data.rows };
  for (const row of data.rows) {
    const cells = row.cells.map((cell) => (Array.isArray(cell) ? cell.join(" ") : cell));
    row.keys = row.keys.map((key, index) => (key === true ? cells[index] : key));
    row.haystack = [row.title, row.runtime, row.status, row.mark, ...cells].join(" ").toLowerCase();
  }

  function marker(row) {
    const shape = SHAPES[row.style];
    const svg = make("svg", { class: `marker s${row.style % 8}`, viewBox: "-6 -6 12 12", "aria-hidden": "true" });
    if (shape) svg.append(make("path", { d: shape }));
    return svg;
  }

  function line(row) {
    const cells = row.cells.map((cell, index) => {
      const [text, unit] = Array.isArray(cell) ? cell : [cell, ""];
      const td = make("td", data.columns[index].left ? {} : { class: "n" });
      const href = `#result-${row.id}`;
      if (index === 0) td.append(marker(row), make("a", { href, "aria-label": row.title }, text));
      // Numbers lead to their samples, too; the keyboard needs no second stop for the same place.
      else if (!data.columns[index].left && text !== "-") td.append(make("a", { href, tabindex: "-1" }, text));
      else td.append(text);
      if (unit && text !== "-" && data.columns[index].header !== unit) td.append(make("span", { class: "unit" }, ` ${unit}`));
      return td;
    });
    const tone = row.mark === "fastest" ? "won" : row.status === "failed" ? "bad" : "";
    return make("tr", {}, ...cells, make("td", { class: `mark ${tone}` }, row.mark || (row.status === "ok" ? "" : row.status)));
  }

  function matches(row) {
    if (state.hidden.has(row.runtime)) return false;
    return state.words.every((word) =>
      word.length > 1 && word[0] === "-" ? !row.haystack.includes(word.slice(1)) : row.haystack.includes(word));
  }

  function compare(a, b) {
    const x = a.keys[state.column], y = b.keys[state.column];
    if (x === null || y === null) return (x === null) - (y === null); // what is missing comes last, either way
    const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
    return state.down ? -order : order;
  }

  function refresh() {
    state.rows = data.rows.filter(matches);
    if (state.column >= 0) state.rows.sort(compare);
    state.shown = PAGE;
    draw();
  }

  function draw() {
    body.replaceChildren(...state.rows.slice(0, state.shown).map(line));
    more.hidden = state.rows.length <= state.shown;
    count.textContent = `${state.rows.length} of ${data.rows.length} results`;
  }

  function sortBy(index, th) {
    const lower = data.columns[index].best !== "higher"; // the better end first
    state.down = state.column === index ? !state.down : !lower;
    state.column = index;
    for (const each of head.querySelectorAll("th")) each.removeAttribute("aria-sort");
    th.setAttribute("aria-sort", state.down ? "descending" : "ascending");
    refresh();
  }

  head.append(make("tr", {}, ...data.columns.map((column, index) => {
    const button = make("button", { type: "button", title: column.help }, column.header);
    const th = make("th", { scope: "col", class: column.left ? "" : "n" }, button);
    button.addEventListener("click", () => sortBy(index, th));
    return th;
  }), make("th", { scope: "col" }, "mark")));

  $("#filter").addEventListener("input", (event) => {
    state.words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
    refresh();
  });
  more.addEventListener("click", () => { state.shown += 5 * PAGE; draw(); });
  addEventListener("beforeprint", () => { state.shown = PRINTED; draw(); });

  // --- runtimes on and off, in plots and table ---

  for (const button of document.querySelectorAll(".legend button")) {
    button.addEventListener("click", () => {
      const name = button.dataset.runtime, shown = state.hidden.has(name);
      if (shown) state.hidden.delete(name); else state.hidden.add(name);
      button.setAttribute("aria-pressed", String(shown));
      for (const group of document.querySelectorAll(".plot g[data-runtime]"))
        if (group.dataset.runtime === name) group.classList.toggle("off", !shown);
      refresh();
    });
  }

  // --- hover, and the arrow keys within a plot ---

  const tip = $("#tip");
  function show(target, x, y) {
    tip.textContent = target.getAttribute("aria-label") || target.dataset.tip;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - box.width - 8))}px`;
    tip.style.top = `${y + box.height + 24 > innerHeight ? y - box.height - 10 : y + 16}px`;
  }
  const hovered = (event) => (event.target.closest ? event.target.closest(".point, .bar[aria-label], [data-tip]") : null);
  document.addEventListener("pointermove", (event) => {
    const target = hovered(event);
    if (target) show(target, event.clientX, event.clientY); else tip.hidden = true;
  });
  document.addEventListener("focusin", (event) => {
    const target = hovered(event);
    if (!target || !target.matches(":focus-visible")) { tip.hidden = true; return; }
    const box = target.getBoundingClientRect();
    show(target, box.right, box.top);
  });
  for (const plot of document.querySelectorAll("main .plot")) {
    const points = [...plot.querySelectorAll(".point")];
    if (points.length) points[0].setAttribute("tabindex", "0"); // one stop per plot, arrows inside it
    plot.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const at = points.indexOf(document.activeElement);
      if (!step || at < 0) return;
      event.preventDefault();
      points[at].setAttribute("tabindex", "-1");
      const next = points[(at + step + points.length) % points.length];
      next.setAttribute("tabindex", "0");
      next.focus();
    });
  }

  // --- lanes, comparisons and profiles, drawn when they are seen ---

  const WIDE = 760, LANE = 22;
  const pooled = (cell) => (typeof cell === "number" ? data.pool[cell] : cell);
  const digits = (value) => String(Number(value.toPrecision(3)));
  const bytes = (value) => {
    const [step, unit] = [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]].find(([size]) => value >= size) || [1, "B"];
    return `${digits(value / step)} ${unit}`;
  };

  // Of an image no part has a name of its own; of a group every part may.
  function drawing(height, label, role = "img") {
    return make("svg", { class: "plot wide", viewBox: `0 0 ${WIDE} ${height}`, role, "aria-label": label });
  }

  function ticks(svg, end, x, y, words) {
    const raw = end / 4 || 1, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= raw);
    for (let at = 0; at <= end; at += step) svg.append(make("text", { x: x(at), y, "text-anchor": "middle" }, words(at)));
  }

  function lanesPlot(given, label) {
    const named = 90, end = Math.max(...given.lanes.map(([, bars]) => Math.max(0, bars.at(-2) + bars.at(-1)))) || 1;
    const height = LANE * given.lanes.length + 24, svg = drawing(height, label, "group");
    const x = (time) => named + (time / end) * (WIDE - named - 14);
    given.lanes.forEach(([name, bars], row) => {
      const title = make("text", { x: 0, y: row * LANE + 15 }, name.length > 15 ? `${name.slice(0, 14)}...` : name);
      title.append(make("title", {}, name));
      svg.append(title);
      for (let at = 0; at < bars.length; at += 3) {
        const [place, begin, length] = bars.slice(at, at + 3);
        svg.append(make("rect", { class: `bar b${(at / 3) % 2}`, x: x(begin), y: row * LANE + 2, height: LANE - 4,
          width: Math.max(0.5, x(begin + length) - x(begin)), role: "img", "aria-label": `${name}: ${data.pool[place]}, ${digits(length / 1000)} ms` }));
      }
    });
    ticks(svg, end, x, height - 6, (at) => `${digits(at / 1000)} ms`);
    return svg;
  }

  function memoryPlot(given) {
    const height = 170, left = 62, bottom = height - 24, svg = drawing(height, given.label), points = given.points;
    const first = points[0], end = points.at(-2) - first || 1, [peakAt, most] = given.peak;
    const x = (at) => left + ((at - first) / end) * (WIDE - left - 14), y = (held) => bottom - (held / most) * (bottom - 16);
    for (const held of [0, most / 2, most]) {
      svg.append(make("path", { class: "grid", d: `M${left} ${y(held)}H${WIDE - 14}` }));
      svg.append(make("text", { x: left - 6, y: y(held), dy: "0.32em", "text-anchor": "end" }, bytes(held)));
    }
    let path = `M${left} ${bottom}`;
    for (let at = 0; at < points.length; at += 2) path += `H${x(points[at])}V${y(points[at + 1])}`;
    svg.append(make("path", { class: "held", d: `${path}H${WIDE - 14}V${bottom}z` }));
    svg.append(make("circle", { class: "peak", r: 4, cx: x(peakAt), cy: y(most), "data-tip": given.label }));
    ticks(svg, end, (at) => x(at + first), height - 6, (at) => (given.unit === "s" ? `${digits(at * 1000)} ms` : `${given.unit} ${at + first}`));
    return svg;
  }

  function table(header, lines, kind = "n") {
    const cell = (name, words, place) => make(name, place && kind ? { class: kind } : {}, words);
    return make("table", { class: "plain" },
      make("thead", {}, make("tr", {}, ...header.map((words, place) => cell("th", words, place)))),
      make("tbody", {}, ...lines.map((line) => make("tr", {}, ...line.map((words, place) => cell("td", pooled(words), place))))));
  }

  const titled = (title, ...children) => make("div", { class: "scroll" }, make("h3", {}, title), ...children);

  function treeTable(branches) {
    return make("table", { class: "plain tree" }, make("tbody", {}, ...branches.map(([name, depth, time, share]) => make("tr", {},
      make("th", { scope: "row", class: `d${Math.min(depth, 5)}` }, pooled(name)), make("td", { class: "n" }, time),
      make("td", { class: "n" }, `${(100 * share).toFixed(1)}%`),
      make("td", { class: "share" }, make("meter", { max: 1, value: share, "aria-label": `share of ${pooled(name)}` }))))));
  }

  function profileParts(given) {
    const parts = [], views = [];
    if (given.insights) parts.push(make("h3", {}, "Insights"), make("ul", {}, ...given.insights.map((words) => make("li", {}, words))));
    ["How far to trust it", "Before the first step"].forEach((title, place) => {
      const pairs = given.lists[place].map(([name, words]) => [pooled(name), words]);
      if (pairs.length) views.push(make("div", {}, make("h3", {}, title), list(pairs)));
    });
    if (given.tree) views.push(titled("Program tree", treeTable(given.tree)));
    if (given.alive) {
      const source = given.memory ? `Alive at the peak of memory, ${pooled(given.memory.source)}` : "Alive at the peak of memory";
      const held = titled(source, table(["node", "bytes", "of the peak"], given.alive));
      held.classList.add("alive");
      views.push(held);
    }
    parts.push(make("div", { class: "views" }, ...views));
    if (given.timeline) {
      const note = given.timeline.note ? `; ${given.timeline.note}` : "";
      parts.push(titled(`Timeline of one batch, the longest operators${note}`, lanesPlot(given.timeline, "Operators of one batch over time")));
    }
    if (given.trace) parts.push(make("p", { class: "quiet" }, "the whole pass: ", make("code", {}, given.trace)));
    if (given.memory) parts.push(titled(`Memory over time: ${given.memory.label}`, memoryPlot(given.memory)));
    parts.push(titled("Operators", table(pooled(given.header).split("\n"), given.lines, "")));
    return parts;
  }

  function comparisonParts({ rows, lines: [header, ...lines] }) {
    const heads = header.map((words, place) => (rows[place - 1] ? make("a", { href: `#result-${rows[place - 1]}` }, pooled(words)) : pooled(words)));
    return [make("div", { class: "scroll" }, table(heads, lines))];
  }

  const DRAW = { lanes: (given) => [lanesPlot(given, "Work of each lane over time")], comparisons: comparisonParts, profiles: profileParts };
  function drawOnce(element) {
    if (!element.dataset.drawn) return;
    const [kind, place] = element.dataset.drawn.split(" ");
    delete element.dataset.drawn;
    element.append(...DRAW[kind](data[kind][Number(place)]));
  }

  // --- the panel of one result ---

  const panel = $("#panel");
  const significant = (value) => String(Number(value.toPrecision(3)));

  function list(pairs) {
    return make("dl", {}, ...pairs.flatMap(([name, ...texts]) => [make("dt", {}, name), make("dd", {}, ...texts)]));
  }

  function samplesPlot(samples) {
    const width = 700, height = 220, left = 46, right = 610, top = 10, bottom = 195, ms = samples.ms;
    const low = Math.min(...ms), high = Math.max(...ms), span = high - low || high * 0.1 || 1;
    const y = (value) => bottom - ((value - low) / span) * (bottom - top - 8) - 4;
    const x = (index) => left + ((index + 0.5) / ms.length) * (right - left);
    const median = [...ms].sort((a, b) => a - b)[Math.floor(ms.length / 2)];
    const plot = make("svg", { class: "plot", viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-label": `${samples.taken} samples, median ${significant(median)} ms, ${significant(low)} to ${significant(high)} ms` });
    let begun = 0;
    samples.blocks.forEach((size, number) => {
      const from = left + (begun / ms.length) * (right - left), wide = (size / ms.length) * (right - left);
      if (number % 2 === 0) plot.append(make("rect", { class: "band", x: from, y: top, width: wide, height: bottom - top }));
      begun += size;
    });
    const bins = new Array(24).fill(0);
    for (const value of ms) bins[Math.min(23, Math.floor(((value - low) / span) * 24))] += 1;
    const tallest = Math.max(...bins), step = (bottom - top - 8) / 24;
    bins.forEach((size, bin) => plot.append(make("rect", { class: "histogram", x: right + 10, width: (size / tallest) * 75,
      y: bottom - 4 - (bin + 1) * step, height: Math.max(1, step - 1) })));
    ms.forEach((value, index) => plot.append(make("circle", { class: "sample", r: 2.2, cx: x(index), cy: y(value) })));
    plot.append(make("path", { class: "median", d: `M${left} ${y(median)}H${right + 85}` }));
    for (const value of new Set([low, median, high]))
      if (value === median || Math.abs(y(value) - y(median)) > 12)
        plot.append(make("text", { x: left - 6, y: y(value), dy: "0.32em", "text-anchor": "end" }, significant(value)));
    plot.append(make("text", { x: left, y: height - 6 }, "samples in the order of their taking; shaded by block"));
    return plot;
  }

  function fact([name, place]) {
    const value = data.pool[place];
    return [make("h3", {}, data.pool[name]), Array.isArray(value) ? list(value.map((each) => data.pool[each])) : make("pre", {}, value)];
  }

  function content(row) {
    const close = make("button", { type: "button", class: "close", autofocus: "" }, "Close");
    close.addEventListener("click", () => panel.close());
    const parts = [make("header", {}, make("h2", { id: "panel-title" }, row.title), close)];
    const verdict = [row.status, row.mark !== row.status.toUpperCase() && row.mark, row.reason].filter(Boolean).join(": ");
    parts.push(make("p", { class: row.status === "failed" ? "bad" : "quiet" }, verdict));
    parts.push(list(row.metrics.map(([place, text, range]) => {
      const [name, help] = data.metrics[place];
      return [name, text, make("span", { class: "quiet" }, range ? ` (${range})` : ""), make("span", { class: "quiet help" }, ` ${help}`)];
    })));
    if (row.samples) {
      const shown = row.samples.ms.length, taken = row.samples.taken;
      const words = shown < taken ? `${shown} of ${taken} samples` : `${taken} samples`;
      parts.push(make("h3", {}, `${words}, milliseconds per batch`), samplesPlot(row.samples));
    }
    if (profileOf(row.id)) parts.push(make("p", {}, make("a", { href: `#profile-${row.id}` }, "Profile: where its time goes")));
    if (row.warnings.length) parts.push(make("h3", {}, "Warnings"), make("ul", { class: "notices" }, ...row.warnings.map((text) => make("li", {}, text))));
    parts.push(...row.facts.flatMap(fact));
    if (row.log) parts.push(make("h3", {}, "Log"), make("pre", {}, row.log));
    return parts;
  }

  function fragment() {
    const given = location.hash.slice(1);
    try { return decodeURIComponent(given); } catch { return given; } // such as #%
  }

  const profileOf = (id) => document.getElementById(`profile-${id}`);

  function follow() {
    const profile = /^profile-/.test(fragment()) && document.getElementById(fragment());
    if (profile) {
      profile.open = true;
      drawOnce(profile);
      if (panel.open) panel.close();
      profile.scrollIntoView();
      return;
    }
    const row = byId.get(fragment().replace(/^result-/, ""));
    if (!row) { if (panel.open) panel.close(); return; }
    panel.replaceChildren(...content(row));
    panel.dataset.result = row.id;
    tip.hidden = true;
    if (!panel.open) panel.showModal();
    panel.scrollTop = 0;
  }
  panel.addEventListener("click", (event) => { if (event.target === panel) panel.close(); });
  panel.addEventListener("close", () => {
    delete panel.dataset.result;
    if (location.hash.startsWith("#result-")) history.replaceState(null, "", location.pathname + location.search);
  });
  // The same link twice changes no hash, so that a click must open the panel by itself.
  document.addEventListener("click", (event) => {
    const link = event.target.closest && event.target.closest('a[href^="#result-"], a[href^="#profile-"]');
    if (link && link.getAttribute("href") === location.hash) follow();
  });
  addEventListener("hashchange", follow);
  for (const each of document.querySelectorAll("[data-drawn]"))
    if (each.matches("details:not([open])")) each.addEventListener("toggle", () => drawOnce(each)); else drawOnce(each);
  refresh();
  follow();
})();
