/* Draws the charts of a report from the object R, which the program wrote above. */
"use strict";
const pal = {light: ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B8860B", "#3A9BDC", "#6E6E6E", "#8C510A", "#35978F", "#762A83", "#1B7837", "#C51B7D"],
             dark: ["#4DB2F5", "#FF8A3D", "#2FD6A4", "#EFA3CB", "#F2BE3C", "#9AD7FF", "#B5B5B5", "#D69A55", "#6FD3C9", "#C08BD1", "#6CC47F", "#F06BB4"]};
const q = (s, e = document) => [...e.querySelectorAll(s)], css = v => getComputedStyle(document.documentElement).getPropertyValue(v).trim();
const media = matchMedia("(prefers-color-scheme: dark)"), hidden = new Set(), drawn = [];
let theme = media.matches ? "dark" : "light";

const sig = (v, n = 3) => v == null ? "" : v >= 1e6 ? +(v / 1e6).toPrecision(n) + "M" : v >= 1e4 ? +(v / 1e3).toPrecision(n) + "k" : String(+v.toPrecision(n));
const colour = i => pal[theme][i % 12];
function tip(p) {
  const l = [p.label], put = (name, v, unit) => v != null && l.push(name + ": " + sig(v, 4) + unit);
  put("cost", p.usd, " $/M tokens"), put("throughput", p.tput, " tokens/s/chip"), put("interactivity", p.user, " tokens/s/user");
  put("first token", p.ttft, " s"), put("whole answer", p.e2e, " s"), l.push(p.figures);
  return l;
}
function datasets(c) {
  const out = [];
  R.series.forEach((name, s) => {
    const mine = R.points.filter(p => p.s === s && p[c.x] > 0 && p[c.y] > 0), front = mine.filter(p => p.front & c.bit), rest = mine.filter(p => !(p.front & c.bit));
    const at = p => ({x: p[c.x], y: p[c.y], p});
    out.push({label: name, s, data: front.map(at).sort((a, b) => a.x - b.x), showLine: true, cubicInterpolationMode: "monotone", borderWidth: 2, pointRadius: 4, pointHoverRadius: 7, order: 1});
    out.push({label: name, s, data: rest.map(at), showLine: false, pointRadius: 2.2, pointHoverRadius: 5, borderWidth: 0, pale: true, order: 2});
  });
  return out;
}
function dress(chart) {
  for (const d of chart.data.datasets) {
    const c = colour(d.s);
    d.borderColor = c, d.backgroundColor = d.pale ? c + "55" : c, d.pointBackgroundColor = d.backgroundColor, d.pointBorderColor = d.pale ? c + "00" : css("--card");
    d.hidden = hidden.has(d.s);
  }
  for (const a of Object.values(chart.options.scales)) {
    a.grid.color = css("--line"), a.grid.borderColor = css("--line"), a.ticks.color = css("--mute"), a.title.color = css("--mute");
  }
  chart.update("none");
}
/* What is best fills the chart; a stray point far off does not squeeze it. */
function span(c, key, pad) {
  const v = R.points.filter(p => p.front & c.bit && p[key] > 0).map(p => p[key]);
  return v.length ? {min: Math.min(...v) / pad, max: Math.max(...v) * pad} : {};
}
function axis(title, kind, range) {
  return {type: kind, ...(kind === "logarithmic" ? range : {}), title: {display: true, text: title}, grid: {}, ticks: {maxRotation: 0, autoSkip: kind !== "logarithmic", callback(v) {
    if (kind !== "logarithmic") return sig(v);
    const lead = Number(v.toExponential()[0]);
    return [1, 2, 5].includes(lead) && Math.abs(v / 10 ** Math.floor(Math.log10(v) + 1e-9) - lead) < 1e-6 ? sig(v) : "";
  }}};
}
const axes = (c, kind) => ({x: axis(c.xname, kind, span(c, c.x, 1.5)), y: axis(c.yname, kind, span(c, c.y, 1.4))});
function draw() {
  for (const c of R.charts) {
    const canvas = document.getElementById(c.id);
    if (!canvas) continue;
    const chart = new Chart(canvas, {type: "scatter", data: {datasets: datasets(c)}, options: {
      animation: false, responsive: true, maintainAspectRatio: false, interaction: {mode: "nearest", intersect: true},
      plugins: {legend: {display: false}, tooltip: {displayColors: false, callbacks: {title: i => i[0].dataset.label, label: i => tip(i.raw.p)}}},
      scales: axes(c, "logarithmic")}});
    const b = document.getElementById(c.id + "-axes");
    if (b) b.onclick = () => {
      const kind = b.textContent === "linear axes" ? "linear" : "logarithmic";
      b.textContent = kind === "linear" ? "log axes" : "linear axes";
      chart.options.scales = axes(c, kind), dress(chart);
    };
    drawn.push(chart);
  }
}
function paint() {
  document.documentElement.dataset.theme = theme;
  q("[data-s]").forEach(e => e.style.setProperty("--c", colour(+e.dataset.s)));
  drawn.forEach(dress);
}
function copy(table, button) {
  const text = [...table.rows].map(r => [...r.cells].map(c => '"' + c.textContent.replaceAll('"', '""') + '"').join(",")).join("\n"), said = button.textContent;
  const done = () => { button.textContent = "copied"; setTimeout(() => button.textContent = said, 1500); };
  const by_hand = () => { const t = document.createElement("textarea"); t.value = text, document.body.append(t), t.select(), document.execCommand("copy"), t.remove(), done(); };
  navigator.clipboard ? navigator.clipboard.writeText(text).then(done, by_hand) : by_hand();
}
q("button[data-copy]").forEach(b => b.onclick = () => copy(document.getElementById(b.dataset.copy), b));
q("table").forEach(t => q("th", t).forEach((h, i) => { let up = false; h.onclick = () => {
  up = !up;
  const rows = [...t.tBodies[0].rows].sort((a, b) => {
    const x = a.cells[i].textContent, y = b.cells[i].textContent, d = x !== "" && y !== "" ? x - y : NaN;
    return (isNaN(d) ? x.localeCompare(y) : d) * (up ? 1 : -1);
  });
  t.tBodies[0].append(...rows);
}; }));
q(".legend button").forEach(b => b.onclick = () => {
  const s = +b.dataset.s, off = !hidden.delete(s);
  if (off) hidden.add(s);
  b.setAttribute("aria-pressed", String(!off)), drawn.forEach(dress);
});
document.getElementById("theme").onclick = () => { theme = theme === "dark" ? "light" : "dark", paint(); };
media.onchange = e => { theme = e.matches ? "dark" : "light", paint(); };
let before = theme;
onbeforeprint = () => { before = theme, theme = "light", paint(), drawn.forEach(c => c.resize()); };
onafterprint = () => { theme = before, paint(), drawn.forEach(c => c.resize()); };
draw(), paint();
