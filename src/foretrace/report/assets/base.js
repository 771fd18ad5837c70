// What all charts share: colours, numbers, text that stays text, and the switch between light and dark.

const data = JSON.parse(document.getElementById("data").textContent);
const charts = []; // every chart on the page: {box, spec, chart, draw}
const draws = {}; // how each kind of chart is drawn: kind -> (chart, spec, box) => void

const FAMILIES = [
  "matrix product",
  "convolution",
  "attention",
  "lookup",
  "element-wise",
  "copy",
  "reduction",
  "norm",
  "softmax",
  "optimizer",
  "sort/index",
  "communication",
  "memset",
  "compiled",
  "other",
];
const PHASES = ["forward", "backward", "optimizer step", "other calls"];
const WAITS = ["waits for the device", "waits for other ranks"];

const root = document.documentElement;
const dark = () => root.dataset.theme === "dark";

// The value of a CSS variable; cached, since a timeline asks thousands of times.
const tokens = new Map();
function token(name) {
  if (!tokens.has(name)) tokens.set(name, getComputedStyle(root).getPropertyValue(`--${name}`).trim());
  return tokens.get(name);
}

// The colour of a kind of thing, from colours.css.
const colour = (kind) => token(`of-${kind.replace(/[^a-z]+/gi, "-")}`) || token("of-other");

const channels = (hue) => [1, 3, 5].map((at) => parseInt(hue.slice(at, at + 2), 16));

// A colour between two others.
function between(one, other, share) {
  const mixed = channels(one).map((value, place) => Math.round(value + share * (channels(other)[place] - value)));
  return `#${mixed.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}

// How bright a colour is, as WCAG counts it.
function luminance(hue) {
  const [red, green, blue] = channels(hue).map((value) =>
    value <= 10 ? value / 3294.6 : ((value / 255 + 0.055) / 1.055) ** 2.4,
  );
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

// Black or white, whichever can be read better on a colour: at least 4.5 to 1.
const inkOn = (ground) => (luminance(ground) > 0.179 ? "#000000" : "#ffffff");

function ms(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : size === 0 ? 0 : 3;
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

const time = (value) => (Math.abs(value) >= 1 ? `${ms(value)} ms` : `${(value * 1e3).toPrecision(3)} µs`);
const percent = (share) => `${(share * 100).toFixed(share < 0.0995 ? 1 : 0)} %`;

const inMs = (at) => `${(+at.toPrecision(6)).toLocaleString("en", { maximumFractionDigits: 6 })} ms`;
const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  for (; Math.abs(count) >= 1024 && place < units.length - 1; place++) count /= 1024;
  return `${count.toFixed(1).replace(/\.0$/, "")} ${units[place]}`;
}

// A count of operations.
function operations(count) {
  const units = ["", "k", "M", "G", "T", "P"],
    place = Math.min(Math.max(Math.floor(Math.log10(count) / 3), 0), units.length - 1);
  return `${+(count / 1e3 ** place).toPrecision(3)} ${units[place]}FLOP`;
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
    textStyle: { fontFamily: "system-ui, sans-serif", color: token("ink") },
    tooltip: {
      confine: true,
      backgroundColor: token("raised"),
      borderColor: token("line"),
      borderWidth: 1,
      padding: [6, 10],
      textStyle: { color: token("ink") },
      transitionDuration: 0,
      ...more.tooltip,
    },
    ...Object.fromEntries(Object.entries(more).filter(([key]) => key !== "tooltip")),
  };
}

function axis(more) {
  return {
    axisLine: { lineStyle: { color: token("line") } },
    axisTick: { show: false },
    axisLabel: { color: token("quiet"), fontSize: 11.5, ...more.axisLabel },
    nameTextStyle: { color: token("quiet"), fontSize: 11.5 },
    splitLine: { show: false, lineStyle: { color: token("line") }, ...more.splitLine },
    ...Object.fromEntries(Object.entries(more).filter(([key]) => !["axisLabel", "splitLine"].includes(key))),
  };
}

const legend = (more) => ({
  icon: "roundRect",
  itemWidth: 10,
  itemHeight: 10,
  itemGap: 14,
  textStyle: { color: token("quiet"), fontSize: 12 },
  inactiveColor: token("line"),
  pageTextStyle: { color: token("quiet") },
  pageIconColor: token("quiet"),
  pageIconInactiveColor: token("line"),
  pageIconSize: 10,
  ...more,
});

function show(theme) {
  root.dataset.theme = theme;
  tokens.clear();
  for (const one of charts) one.draw(one.chart, one.spec, one.box);
}

// What a chart shows, in words: for those who do not see it. Tables say the rest.
const WORDS = 12; // rows that are read out
const spoken = {
  parts: ({ parts }) => parts.map((part) => `${part.name} ${time(part.ms)}`),
  changes: ({ rows }) =>
    rows.map((row) => `${row.name} ${row.change_ms > 0 ? "+" : "−"}${time(Math.abs(row.change_ms))}`),
  stacked: ({ rows, parts, ms: spent }) =>
    rows.map((row, at) => `${row}: ${parts.map((part, of) => `${part} ${time(spent[of][at])}`).join(", ")}`),
  views: ({ views }) =>
    views[0].rows.map((row) => `${row.name}: device ${time(row.device_ms)}, host ${time(row.host_ms)}`),
  distribution: ({ series }) =>
    series.flatMap((one) => one.marks.map((mark) => `${one.name} ${mark.name} at ${time(mark.ms)}`)),
  memory: ({ peak, capacity }) => [`at most ${bytes(peak)}`, capacity && `of ${bytes(capacity)}`],
};

function speak(box, spec) {
  const rows = spoken[spec.kind]?.(spec).filter(Boolean) ?? [];
  const more = rows.length > WORDS ? `; and ${rows.length - WORDS} more` : "";
  if (rows.length) box.ariaLabel = `${box.ariaLabel}: ${rows.slice(0, WORDS).join("; ")}${more}`;
}

function start() {
  for (const box of document.querySelectorAll("[data-chart]")) {
    const spec = data[box.dataset.chart];
    const chart = echarts.init(box);
    const one = { box, spec, chart, draw: draws[spec.kind] };
    charts.push(one);
    one.draw(chart, spec, box);
    speak(box, spec);
  }
  addEventListener("resize", () =>
    charts.forEach((one) => {
      one.chart.resize();
    }),
  );
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => show(wantedTheme()));
  document.getElementById("theme").addEventListener("click", () => {
    const theme = dark() ? "light" : "dark";
    try {
      localStorage.setItem("foretrace-theme", theme);
    } catch {
      /* opened from disk, storage may be forbidden */
    }
    show(theme);
  });
  requestAnimationFrame(() =>
    setTimeout(() => {
      root.dataset.drawn = String(Math.round(performance.now()));
    }),
  );
}
