// The spans of a trace over time, one band per lane, inner spans below the outer ones. Names become text on a canvas and
// text nodes only, so that nothing in them can act.
"use strict";

const ROW = 20, HEAD = 22, LEFT = 8;
const canvas = document.getElementById("lanes"), pen = canvas.getContext("2d");
const told = document.getElementById("told"), find = document.getElementById("find");
let lanes = [], end = 1, from = 0, to = 1, chosen = null, dragged = null;

function arranged(events) {
  const found = new Map();
  for (const each of events) {
    if (each.ph === "M" && each.name === "thread_name") found.set(each.tid, { name: each.args.name, spans: [], depth: 0 });
  }
  for (const each of events) if (each.ph === "X") found.get(each.tid)?.spans.push(each);
  for (const lane of found.values()) {
    lane.spans.sort((a, b) => a.ts - b.ts || b.dur - a.dur);
    const above = [];
    for (const each of lane.spans) {
      while (above.length && above[above.length - 1] <= each.ts + 1e-6) above.pop();
      each.depth = above.length;
      above.push(each.ts + each.dur);
      lane.depth = Math.max(lane.depth, above.length);
    }
  }
  return [...found.values()].filter((lane) => lane.spans.length);
}

function colour(words) {
  let hue = 7;
  for (let place = 0; place < words.length; place++) hue = (hue * 31 + words.charCodeAt(place)) % 360;
  return `hsl(${hue} 45% 62%)`;
}

function draw() {
  const wide = canvas.clientWidth, tall = lanes.reduce((sum, lane) => sum + HEAD + lane.depth * ROW, 0) + HEAD;
  const dots = window.devicePixelRatio || 1, style = getComputedStyle(document.body);
  canvas.style.height = `${tall}px`;
  canvas.width = wide * dots;
  canvas.height = tall * dots;
  pen.scale(dots, dots);
  pen.font = "12px system-ui, sans-serif";
  pen.textBaseline = "middle";
  const wanted = find.value.toLowerCase(), scale = wide / (to - from);
  let top = 0;
  for (const lane of lanes) {
    lane.top = top + HEAD;
    pen.fillStyle = style.color;
    pen.fillText(lane.name, LEFT, top + HEAD / 2);
    let drawn = [];
    for (const each of lane.spans) {
      const x = (each.ts - from) * scale, size = each.dur * scale;
      if (x > wide || x + size < 0) continue;
      // Spans narrower than half a pixel beside one that was drawn would change nothing.
      if (size < 0.5 && drawn[each.depth] === Math.floor(x)) continue;
      drawn[each.depth] = Math.floor(x);
      const y = lane.top + each.depth * ROW;
      pen.globalAlpha = wanted && !words(each).toLowerCase().includes(wanted) ? 0.2 : 1;
      pen.fillStyle = colour(each.cat);
      pen.fillRect(x, y, Math.max(size, 0.5), ROW - 2);
      if (each === chosen) { pen.strokeStyle = style.color; pen.strokeRect(x, y, Math.max(size, 1), ROW - 2); }
      if (size > 40) {
        pen.save();
        pen.beginPath();
        pen.rect(x, y, size, ROW);
        pen.clip();
        pen.fillStyle = "#10131a";
        pen.fillText(each.name, Math.max(x, 0) + 4, y + ROW / 2 - 1);
        pen.restore();
      }
    }
    pen.globalAlpha = 1;
    top += HEAD + lane.depth * ROW;
  }
}

function words(span) {
  return [span.name, span.cat, ...(span.args.nodes || [])].join(" ");
}

function moved(first, last) {
  const size = Math.min(end, Math.max(last - first, 0.01));
  from = Math.max(0, Math.min(first, end - size));
  to = from + size;
  draw();
}

function zoomed(factor, at) {
  moved(at - (at - from) * factor, at + (to - at) * factor);
}

function pointed(event) {
  const box = canvas.getBoundingClientRect();
  return { time: from + ((event.clientX - box.left) / box.width) * (to - from), y: event.clientY - box.top };
}

function tell(event) {
  const place = pointed(event), slack = (2 / canvas.clientWidth) * (to - from);
  chosen = null;
  for (const lane of lanes) {
    const depth = Math.floor((place.y - lane.top) / ROW);
    chosen ??= lane.spans.find((each) => each.depth === depth && each.ts - slack <= place.time && place.time <= each.ts + each.dur + slack) ?? null;
  }
  if (chosen) {
    const nodes = chosen.args.nodes ? `\nnodes: ${chosen.args.nodes.join(", ")}` : "";
    told.textContent = `${chosen.name}  (${chosen.cat})  ${chosen.dur.toFixed(1)} us, from ${(chosen.ts / 1000).toFixed(3)} ms on${nodes}`;
  }
  draw();
}

canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  zoomed(event.deltaY > 0 ? 1.25 : 0.8, pointed(event).time);
}, { passive: false });
canvas.addEventListener("pointerdown", (event) => {
  dragged = { x: event.clientX, from, to, far: false };
  canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener("pointermove", (event) => {
  if (!dragged) return;
  const by = ((dragged.x - event.clientX) / canvas.clientWidth) * (dragged.to - dragged.from);
  dragged.far ||= Math.abs(dragged.x - event.clientX) > 3;
  moved(dragged.from + by, dragged.to + by);
});
canvas.addEventListener("pointerup", (event) => {
  if (dragged && !dragged.far) tell(event);
  dragged = null;
});
canvas.addEventListener("keydown", (event) => {
  const part = (to - from) / 5;
  if (event.key === "ArrowLeft") moved(from - part, to - part);
  else if (event.key === "ArrowRight") moved(from + part, to + part);
  else if (event.key === "+") zoomed(0.8, (from + to) / 2);
  else if (event.key === "-") zoomed(1.25, (from + to) / 2);
  else return;
  event.preventDefault();
});
document.getElementById("whole").addEventListener("click", () => moved(0, end));
find.addEventListener("input", draw);
window.addEventListener("resize", draw);

fetch("trace.json").then((answer) => answer.json()).then((trace) => {
  lanes = arranged(trace.traceEvents);
  const spans = lanes.flatMap((lane) => lane.spans);
  end = spans.reduce((last, each) => Math.max(last, each.ts + each.dur), 1);
  document.getElementById("about").textContent = `${spans.length} spans in ${lanes.length} lanes, ${(end / 1000).toFixed(2)} ms`;
  moved(0, end);
}).catch((error) => { document.getElementById("about").textContent = `cannot read the trace: ${error}`; });
