// What all charts share: colours, numbers, text that stays text, and the switch between light and dark.

const data = JSON.parse(document.getElementById("data").textContent);
const charts = []; // every chart on the page: {box, spec, chart, draw}
const draws = {}; // how each kind of chart is drawn: kind -> (chart, spec, box) => void

const PALETTES = {
  light: ["#3f6fa8", "#7a55a3", "#b3541e", "#2f8a7a", "#7fa33a", "#c9a227", "#a8475f", "#5f8fbf", "#d07f4f",
    "#8a7f3a", "#569a5f", "#c2556f", "#9aa0a6", "#6a6fc0", "#7d8288"],
  dark: ["#79a7dd", "#b08fd8", "#e58e57", "#62bfae", "#a9cb68", "#e3c25a", "#dc8198", "#94bce2", "#eeb188",
    "#c2b76c", "#85c78d", "#ea92a6", "#767c85", "#9ea3ec", "#8e949c"],
};
const FAMILIES = ["matrix product", "convolution", "attention", "lookup", "element-wise", "copy", "reduction", "norm",
  "softmax", "optimizer", "sort/index", "communication", "memset", "compiled", "other"];
// Threads are quiet, so that what the device does stands out.
const PHASES = {
  light: { forward: "#b9c6d3", backward: "#93a3b8", "optimizer step": "#cdbfae", "other calls": "#dcdcd6" },
  dark: { forward: "#55636f", backward: "#6f8096", "optimizer step": "#82705d", "other calls": "#4a4d50" },
};
const WAITS = ["waits for the device", "waits for other ranks"];

const root = document.documentElement;
const dark = () => root.dataset.theme === "dark";
const token = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
const palette = (place) => PALETTES[dark() ? "dark" : "light"][place % 15];

function colour(kind) {
  if (WAITS.includes(kind)) return dark() ? "#343a42" : "#e3dfd3";
  const phases = PHASES[dark() ? "dark" : "light"];
  if (kind in phases) return phases[kind];
  if (kind === "idle") return dark() ? "#20242a" : "#f3f2ee";
  const place = FAMILIES.indexOf(kind);
  return palette(place < 0 ? 14 : place);
}

function ms(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : size === 0 ? 0 : 3;
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

const time = (value) => (Math.abs(value) >= 1 ? `${ms(value)} ms` : `${(value * 1e3).toPrecision(3)} µs`);
const percent = (share) => `${(share * 100).toFixed(share < 0.0995 ? 1 : 0)} %`;

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  for (; Math.abs(count) >= 1024 && place < units.length - 1; place++) count /= 1024;
  return `${count.toFixed(1).replace(/\.0$/, "")} ${units[place]}`;
}

// A tooltip as elements: names come from others' files and are never markup.
function tip(name, ...lines) {
  const box = document.createElement("div");
  box.className = "tip";
  const head = document.createElement("b");
  head.textContent = name;
  box.append(head);
  for (const line of lines.filter(Boolean)) {
    const one = document.createElement("div");
    one.textContent = line;
    box.append(one);
  }
  return box;
}

// Options that every chart begins with.
function base(more) {
  return {
    animation: false,
    color: PALETTES[dark() ? "dark" : "light"],
    textStyle: { fontFamily: "system-ui, sans-serif", color: token("ink") },
    tooltip: {
      confine: true, backgroundColor: token("raised"), borderColor: token("line"), borderWidth: 1, padding: [6, 10],
      textStyle: { color: token("ink") }, transitionDuration: 0, ...more.tooltip,
    },
    ...Object.fromEntries(Object.entries(more).filter(([key]) => key !== "tooltip")),
  };
}

function axis(more) {
  return {
    axisLine: { lineStyle: { color: token("line") } }, axisTick: { show: false },
    axisLabel: { color: token("quiet"), fontSize: 11.5, ...more.axisLabel },
    nameTextStyle: { color: token("quiet"), fontSize: 11.5 },
    splitLine: { show: false, lineStyle: { color: token("line") }, ...more.splitLine },
    ...Object.fromEntries(Object.entries(more).filter(([key]) => !["axisLabel", "splitLine"].includes(key))),
  };
}

const legend = (more) => ({
  icon: "roundRect", itemWidth: 10, itemHeight: 10, itemGap: 14, textStyle: { color: token("quiet"), fontSize: 12 },
  inactiveColor: token("line"), ...more,
});

function show(theme) {
  root.dataset.theme = theme;
  for (const one of charts) one.draw(one.chart, one.spec, one.box);
}

function start() {
  for (const box of document.querySelectorAll("[data-chart]")) {
    const spec = data[box.dataset.chart];
    const chart = echarts.init(box);
    const one = { box, spec, chart, draw: draws[spec.kind] };
    charts.push(one);
    one.draw(chart, spec, box);
  }
  addEventListener("resize", () => charts.forEach((one) => { one.chart.resize(); }));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => show(wantedTheme()));
  document.getElementById("theme").addEventListener("click", () => {
    const theme = dark() ? "light" : "dark";
    try { localStorage.setItem("foretrace-theme", theme); } catch { /* opened from disk, nothing may be kept */ }
    show(theme);
  });
  requestAnimationFrame(() => setTimeout(() => { root.dataset.drawn = String(Math.round(performance.now())); }));
}
