// Charts, drawn from the tables behind them: what a chart shows can also be read.
/* global uPlot */
const COLORS = ["--accent", "--flight", "--warn", "--bad"];
const DASHES = [[], [6, 4], [2, 3], [8, 3, 2, 3]];
const HEIGHT = 184;
// Steps of an axis of durations: such that people count in.
const STEPS_S = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800];
// Steps of an axis of times: no value is of less than a minute.
const STEPS_OF_TIME_S = [60, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800, 1209600];
const DATES_FROM_S = 2 * 86400;
const drawn = new Map();

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function short(value, unit) {
  if (value === null) return "";
  if (unit === "Bytes") {
    const power = Math.min(4, Math.floor(Math.log2(Math.max(1, value)) / 10));
    return `${+(value / 1024 ** power).toFixed(1)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
  }
  if (unit === "Seconds" && value > 0 && value < 1) return `${+(value * 1000).toFixed(2)} ms`;
  if (unit === "Seconds") {
    if (value >= 86400) return `${+(value / 86400).toFixed(1)} d`;
    if (value >= 3600) return `${+(value / 3600).toFixed(1)} h`;
    return value >= 60 ? `${+(value / 60).toFixed(1)} min` : `${+value.toFixed(3)} s`;
  }
  if (value >= 1e6) return `${+(value / 1e6).toFixed(1)}M`;
  return value >= 1e4 ? `${+(value / 1e3).toFixed(1)}k` : `${+value.toFixed(2)}`;
}

function timeText(s, times) {
  const text = new Date(s * 1000).toISOString();
  return times.at(-1) - times[0] > DATES_FROM_S ? text.slice(5, 10) : text.slice(11, 16);
}

function readTable(figure) {
  const labels = [...figure.querySelectorAll("thead th")].slice(1).map((cell) => cell.textContent);
  const rows = [...figure.querySelectorAll("tbody tr")];
  const times = rows.map((row) => Number(row.cells[0].dataset.ms) / 1000);
  const lines = labels.map((_, column) => rows.map((row) => {
    const value = row.cells[column + 1].dataset.v;
    return value === undefined ? null : Number(value);
  }));
  return { labels, data: [times, ...lines] };
}

function showKeys(figure, labels) {
  if (labels.length < 2 || figure.querySelector(".keys-of-lines")) return;
  const keys = document.createElement("span");
  keys.className = "keys-of-lines";
  labels.forEach((label, index) => {
    const key = document.createElement("span");
    const line = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    line.setAttribute("width", "20");
    line.setAttribute("height", "4");
    line.innerHTML = "<path d='M0 2H20' stroke-width='2'/>";
    line.firstChild.style.stroke = `var(${COLORS[index % COLORS.length]})`;
    line.firstChild.style.strokeDasharray = DASHES[index % DASHES.length].join(" ");
    key.append(line, ` ${label}`);
    keys.append(key);
  });
  figure.querySelector("figcaption").append(keys);
}

function draw(figure) {
  const place = figure.querySelector(".plot");
  if (!place || drawn.has(place) || typeof uPlot === "undefined") return;
  const { labels, data } = readTable(figure);
  const unit = figure.dataset.unit;
  const axis = { stroke: color("--muted"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
  const options = {
    width: place.clientWidth || 400,
    height: HEIGHT,
    padding: [8, 8, 0, 0],
    legend: { show: false },
    cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
    tzDate: (s) => uPlot.tzDate(new Date(s * 1000), "UTC"),
    scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), (high ?? 1) > 0 ? high * 1.1 : 1] } },
    axes: [
      { ...axis, size: 28, incrs: STEPS_OF_TIME_S, values: (_, ticks) => ticks.map((s) => timeText(s, data[0])) },
      { ...axis, size: 56, ...(unit === "Seconds" ? { incrs: STEPS_S } : {}), values: (_, ticks) => ticks.map((value) => short(value, unit)) },
    ],
    series: [{}, ...labels.map((label, index) => ({
      label,
      stroke: color(COLORS[index % COLORS.length]),
      dash: DASHES[index % DASHES.length],
      width: 1.5,
      fill: labels.length === 1 ? `${color(COLORS[0])}22` : undefined,
      points: { show: false },
      spanGaps: false,
    }))],
  };
  showKeys(figure, labels);
  place.replaceChildren();
  const plot = new uPlot(options, data, place);
  const resized = new ResizeObserver(() => {
    if (place.clientWidth) plot.setSize({ width: place.clientWidth, height: HEIGHT });
  });
  resized.observe(place);
  drawn.set(place, { plot, resized });
}

function forgetGone() {
  for (const [place, { plot, resized }] of drawn) {
    if (place.isConnected) continue;
    resized.disconnect();
    plot.destroy();
    drawn.delete(place);
  }
}

export function drawCharts(root) {
  forgetGone();
  const figures = [...root.querySelectorAll("figure.chart")];
  if (root.matches?.("figure.chart")) figures.push(root);
  figures.forEach(draw);
}

export function redrawCharts() {
  for (const { plot, resized } of drawn.values()) {
    resized.disconnect();
    plot.destroy();
  }
  drawn.clear();
  drawCharts(document);
}
