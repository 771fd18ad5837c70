// The timeline: lanes of pieces, merged where they are too small to see, so that a zoom draws thousands and not millions.

const ROW = 20; // pixels of a lane
const SMALLEST = 1.2; // pixels: what is shorter is drawn together with its neighbours
const LONGEST = 3; // pixels of what is drawn together
const DIM = 0.14;
const MOST_AT_FIRST = 16; // lanes: of more, the first timeline alone is shown until somebody asks for the others

function decoded(lane) {
  const count = lane.start.length;
  const start = new Float64Array(count), end = new Float64Array(count), reach = new Float64Array(count);
  for (let i = 0, at = 0, most = 0; i < count; i++) {
    at += lane.start[i];
    start[i] = at / 1e4;
    end[i] = (at + lane.length[i]) / 1e4;
    reach[i] = most = Math.max(most, end[i]);
  }
  return { label: lane.label, rank: lane.rank, start, end, reach, what: lane.what, lit: new Uint8Array(count) };
}

function legs(path, lanes) {
  const found = [];
  for (let i = 0, at = 0; i < path.lane.length; i++) {
    at += path.start[i];
    found.push({ lane: lanes[path.lane[i]], start: at / 1e4, end: (at + path.length[i]) / 1e4 });
  }
  for (const leg of found) {
    for (let i = firstAt(leg.lane, leg.start); i < leg.lane.start.length && leg.lane.start[i] < leg.end; i++) {
      if (leg.lane.end[i] > leg.start) leg.lane.lit[i] = 1;
    }
  }
  return found;
}

// The first piece of a lane that reaches past a time.
function firstAt(lane, when) {
  let low = 0, high = lane.start.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane.reach[middle] > when) high = middle;
    else low = middle + 1;
  }
  return low;
}

// A timeline's lanes with their names, and its critical path.
function unpacked(one) {
  const lanes = one.lanes.map(decoded);
  for (const lane of lanes) {
    lane.label = one.ranks.length > 1 ? `rank ${lane.rank}  ${lane.label}` : lane.label;
    lane.what = lane.what.map((row) => one.what[row]);
  }
  return { title: one.title, end: one.end_ms, lanes, path: legs(one.path, lanes) };
}

// Timelines under each other: rows to draw, and the paths through them.
function laidOut(timelines) {
  const rows = [];
  for (const one of timelines) {
    if (timelines.length > 1) rows.push({ title: one.title });
    for (const lane of one.lanes) {
      lane.row = rows.length;
      rows.push(lane);
    }
  }
  return { rows, path: timelines.flatMap((one) => one.path) };
}

// What to draw of a lane between two times, when a pixel is so many milliseconds.
function pieces(lane, from, to, pixel, wants) {
  const found = [];
  let last = null;
  for (let i = firstAt(lane, from); i < lane.start.length && lane.start[i] < to; i++) {
    const what = lane.what[i], start = lane.start[i], end = lane.end[i];
    if (wants.hidden.has(what[1])) continue;
    const bright = (!wants.text || matches(what, wants.text)) && (!wants.path || lane.lit[i] === 1);
    const small = end - start < SMALLEST * pixel;
    if (small && last && last.small && start - last.end < pixel && end - last.start < LONGEST * pixel) {
      last.count++;
      if (bright > last.bright || (bright === last.bright && end - start > last.longest)) {
        Object.assign(last, { what, bright, longest: end - start });
      }
      last.end = Math.max(last.end, end);
    } else {
      last = { start, end, what, bright, small, count: 1, longest: end - start, row: lane.row };
      found.push(last);
    }
  }
  return found;
}

const matches = (what, text) => what[0].toLowerCase().includes(text) || what[2].toLowerCase().includes(text);

function box(params, api, from, to, top, height) {
  const [left, y] = api.coord([from, api.value(0)]), right = api.coord([to, api.value(0)])[0];
  const area = params.coordSys;
  const x = Math.max(left, area.x), end = Math.min(Math.max(right, left + 0.6), area.x + area.width);
  return end > x ? { x, y: y - ROW / 2 + top, width: end - x, height } : null;
}

class Timeline {
  constructor(chart, spec, element) {
    Object.assign(this, { chart, spec, element, wants: { text: "", path: false, hidden: new Set() }, drawn: [] });
    this.all = spec.timelines.map(unpacked);
    const lanes = this.all.reduce((sum, one) => sum + one.lanes.length, 0);
    this.shown = lanes > MOST_AT_FIRST ? this.all.slice(0, 1) : this.all;
    chart.on("datazoom", () => this.moved());
    chart.on("dblclick", { seriesId: "pieces" }, ({ dataIndex }) => {
      const { start, end } = this.drawn[dataIndex];
      this.look(start - (end - start), end + (end - start));
    });
    this.controls();
  }

  draw() {
    const { chart } = this;
    Object.assign(this, laidOut(this.shown));
    const end = Math.max(...this.shown.map((one) => one.end), 1e-3);
    if (end !== this.end) Object.assign(this, { end, window: [0, end] });
    const { rows } = this;
    this.element.style.height = `${rows.length * ROW + 96}px`;
    chart.resize();
    const found = this.found();
    const narrow = this.element.clientWidth < 600;
    chart.setOption(base({
      grid: { left: narrow ? 70 : rows.some((row) => row.label?.startsWith("rank")) ? 118 : 78, right: 12, top: 8, bottom: 66 },
      tooltip: { trigger: "item", formatter: ({ dataIndex }) => this.told(this.drawn[dataIndex]) },
      xAxis: axis({ type: "value", min: 0, max: this.end, axisLabel: { formatter: (at) => `${+at.toPrecision(6)} ms`, hideOverlap: true, showMaxLabel: false } }),
      yAxis: axis({
        type: "category", inverse: true, data: rows.map((row) => row.label ?? row.title), axisLine: { show: false },
        axisLabel: { interval: 0, fontSize: 11, color: (_, place) => token(rows[place].title ? "ink" : "quiet") },
      }),
      dataZoom: [
        { type: "inside", filterMode: "none", zoomOnMouseWheel: "ctrl", moveOnMouseMove: true, moveOnMouseWheel: false, minValueSpan: 1e-3 },
        {
          type: "slider", filterMode: "none", height: 20, bottom: 10, showDataShadow: false, brushSelect: false, minValueSpan: 1e-3,
          labelFormatter: (at) => `${ms(at)} ms`, borderColor: token("line"), fillerColor: `${token("accent")}22`,
          handleStyle: { color: token("raised"), borderColor: token("quiet") }, textStyle: { color: token("quiet"), fontSize: 11 },
          moveHandleStyle: { color: token("line") }, backgroundColor: "transparent",
        },
      ].map((zoom) => ({ ...zoom, startValue: this.window[0], endValue: this.window[1] })),
      series: [
        { id: "pieces", type: "custom", progressive: 0, renderItem: (params, api) => this.piece(params, api), encode: { x: [1, 2], y: 0 }, data: found.pieces },
        { id: "path", type: "custom", progressive: 0, silent: true, renderItem: (params, api) => this.leg(params, api), encode: { x: [1, 2], y: 0 }, data: found.path, z: 3 },
      ],
    }), { replaceMerge: ["series"] });
    this.key();
    this.choices();
  }

  piece(params, api) {
    const one = this.drawn[params.dataIndex];
    const shape = one && box(params, api, one.start, one.end, 2, ROW - 5);
    return shape && { type: "rect", shape, style: { fill: colour(one.what[1]), opacity: one.bright ? 1 : DIM } };
  }

  leg(params, api) {
    const shape = box(params, api, api.value(1), api.value(2), ROW - 3.5, 2.5);
    return shape && { type: "rect", shape, style: { fill: token("accent") } };
  }

  told(one) {
    if (!one) return "";
    const [name, kind, op] = one.what;
    if (one.count > 1) return tip(`${one.count} short ones, mostly ${name}`, `${time(one.end - one.start)} together`, "zoom in to tell them apart");
    return tip(name, op && `launched by ${op}`, `${time(one.end - one.start)} from ${ms(one.start)} ms`, kind);
  }

  moved() {
    const zoom = this.chart.getOption().dataZoom[0];
    this.window = [zoom.startValue, zoom.endValue];
    cancelAnimationFrame(this.waiting);
    this.waiting = requestAnimationFrame(() => this.refresh());
  }

  look(from, to) {
    this.chart.dispatchAction({ type: "dataZoom", dataZoomIndex: 0, startValue: Math.max(from, 0), endValue: Math.min(to, this.end) });
  }

  zoom(factor) {
    const [from, to] = this.window, middle = (from + to) / 2, half = ((to - from) * factor) / 2;
    this.look(middle - half, middle + half);
  }

  refresh() {
    const { pieces, path } = this.found();
    this.chart.setOption({ series: [{ id: "pieces", data: pieces }, { id: "path", data: path }] });
  }

  // What of the window there is to draw, as rows of lane, start and end.
  found() {
    const [from, to] = this.window;
    const pixel = (to - from) / Math.max(this.element.clientWidth - 100, 100);
    this.drawn = this.rows.filter((row) => row.start).flatMap((lane) => pieces(lane, from, to, pixel, this.wants));
    const path = this.path.filter((leg) => leg.end > from && leg.start < to);
    Object.assign(this.element.dataset, { from, to, pieces: this.drawn.length, bright: this.drawn.filter((one) => one.bright).length });
    return {
      pieces: this.drawn.map((one) => [one.row, one.start, one.end]),
      path: path.map((leg) => [leg.lane.row, leg.start, leg.end]),
    };
  }

  controls() {
    const around = this.element.closest("section");
    const on = (name, event, act) => around.querySelector(`[data-timeline="${name}"]`)?.addEventListener(event, act);
    on("in", "click", () => this.zoom(0.5));
    on("out", "click", () => this.zoom(2));
    on("whole", "click", () => this.look(0, this.end));
    on("filter", "input", ({ target }) => { this.wants.text = target.value.trim().toLowerCase(); this.refresh(); });
    on("path", "click", ({ currentTarget }) => {
      this.wants.path = !this.wants.path;
      currentTarget.setAttribute("aria-pressed", this.wants.path);
      this.refresh();
    });
    this.element.tabIndex = 0;
    this.element.addEventListener("keydown", (pressed) => {
      const [from, to] = this.window, shift = (to - from) / 4;
      const act = { "+": () => this.zoom(0.5), "-": () => this.zoom(2), ArrowLeft: () => this.look(from - Math.min(shift, from), to - Math.min(shift, from)),
        ArrowRight: () => this.look(from + Math.min(shift, this.end - to), to + Math.min(shift, this.end - to)) }[pressed.key];
      if (act) { pressed.preventDefault(); act(); }
    });
  }

  // Where there are several timelines: each alone, or all of them.
  choices() {
    const holder = this.element.closest("section").querySelector("[data-timeline='choice']");
    if (this.all.length < 2) return;
    const sets = [...this.all.map((one) => [one.title, [one]]), ["both", this.all]];
    holder.replaceChildren(...sets.map(([name, shown]) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = name;
      button.setAttribute("aria-pressed", this.shown.length === shown.length && this.shown[0] === shown[0]);
      button.addEventListener("click", () => { this.shown = shown; this.draw(); });
      return button;
    }));
  }

  // The kinds that come up, as buttons that hide and show them.
  key() {
    const holder = this.element.closest("section").querySelector(".key");
    const kinds = [...new Set(this.spec.timelines.flatMap((one) => one.what.map((what) => what[1])))];
    const order = [...Object.keys(PHASES.light), ...FAMILIES, ...WAITS];
    kinds.sort((a, b) => order.indexOf(a) - order.indexOf(b));
    holder.replaceChildren(...kinds.map((kind) => {
      const button = document.createElement("button"), dot = document.createElement("i");
      dot.style.background = colour(kind);
      button.append(dot, kind);
      button.dataset.kind = kind;
      button.setAttribute("aria-pressed", !this.wants.hidden.has(kind));
      button.addEventListener("click", () => {
        if (!this.wants.hidden.delete(kind)) this.wants.hidden.add(kind);
        button.setAttribute("aria-pressed", !this.wants.hidden.has(kind));
        this.refresh();
      });
      return button;
    }));
  }
}

draws.timeline = (chart, spec, element) => {
  element.timeline ??= new Timeline(chart, spec, element);
  element.timeline.draw();
};
