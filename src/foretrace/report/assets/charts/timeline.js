// The timeline: lanes of pieces, the critical path under them, and what moves and filters it.

const ROW = 20; // pixels of a lane
const DIM = 0.14;
const MOST_AT_FIRST = 16; // lanes: of more, only the first timeline is shown at first

function box(params, api, from, to, top, height) {
  const [left, y] = api.coord([from, api.value(0)]),
    right = api.coord([to, api.value(0)])[0];
  const area = params.coordSys;
  const x = Math.max(left, area.x),
    end = Math.min(Math.max(right, left + 0.6), area.x + area.width);
  return end > x ? { x, y: y - ROW / 2 + top, width: end - x, height } : null;
}

// The ground of a row of every other rank, so that ranks can be distinguished.
function ground(params, api) {
  const { x, width } = params.coordSys,
    y = api.coord([0, api.value(0)])[1] - ROW / 2;
  return { type: "rect", shape: { x, y, width, height: ROW }, style: { fill: token("quiet"), opacity: 0.08 } };
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
    chart.setOption(
      base({
        grid: {
          left: narrow ? 70 : rows.some((row) => row.label?.startsWith("rank")) ? 118 : 78,
          right: 12,
          top: 8,
          bottom: 66,
        },
        tooltip: { trigger: "item", formatter: ({ dataIndex }) => this.tooltip(this.drawn[dataIndex]) },
        xAxis: axis({
          type: "value",
          min: 0,
          max: this.end,
          axisLabel: { formatter: (at) => this.clock(at), hideOverlap: true, showMaxLabel: false },
        }),
        yAxis: axis({
          type: "category",
          inverse: true,
          data: rows.map((row) => row.label ?? row.title),
          axisLine: { show: false },
          axisLabel: { interval: 0, fontSize: 11, color: (_, place) => token(rows[place].title ? "ink" : "quiet") },
        }),
        dataZoom: [
          {
            type: "inside",
            filterMode: "none",
            zoomOnMouseWheel: "ctrl",
            moveOnMouseMove: true,
            moveOnMouseWheel: false,
            minValueSpan: 1e-3,
          },
          {
            type: "slider",
            filterMode: "none",
            height: 20,
            bottom: 10,
            showDataShadow: false,
            brushSelect: false,
            minValueSpan: 1e-3,
            labelFormatter: (at) => `${ms(at)} ms`,
            borderColor: token("line"),
            fillerColor: `${token("accent")}22`,
            handleStyle: { color: token("raised"), borderColor: token("quiet") },
            textStyle: { color: token("quiet"), fontSize: 11 },
            moveHandleStyle: { color: token("line") },
            backgroundColor: "transparent",
          },
        ].map((zoom) => ({ ...zoom, startValue: this.window[0], endValue: this.window[1] })),
        series: [
          {
            id: "bands",
            type: "custom",
            silent: true,
            renderItem: ground,
            encode: { y: 0 },
            data: rows.filter((row) => row.odd).map((row) => [row.row]),
            z: 1,
          },
          {
            id: "pieces",
            type: "custom",
            progressive: 0,
            renderItem: (params, api) => this.piece(params, api),
            encode: { x: [1, 2], y: 0 },
            data: found.pieces,
          },
          {
            id: "path",
            type: "custom",
            progressive: 0,
            silent: true,
            renderItem: (params, api) => this.leg(params, api),
            encode: { x: [1, 2], y: 0 },
            data: found.path,
            z: 3,
          },
        ],
      }),
      { replaceMerge: ["series"] },
    );
    this.key();
    this.choices();
  }

  // A time with as many digits as tell the marks of the window apart.
  clock(at) {
    const [from, to] = this.window;
    return inMs(+at.toFixed(Math.min(Math.max(Math.ceil(2 - Math.log10(to - from)), 0), 6)));
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

  tooltip(one) {
    if (!one) return "";
    const [name, kind, op] = one.what;
    if (one.count > 1)
      return tip(
        `${one.count} short ones, mostly ${name}`,
        `${time(one.end - one.start)} together`,
        "zoom in to tell them apart",
      );
    return tip(name, op && `launched by ${op}`, `${time(one.end - one.start)} from ${ms(one.start)} ms`, kind);
  }

  moved() {
    const zoom = this.chart.getOption().dataZoom[0];
    this.window = [zoom.startValue, zoom.endValue];
    cancelAnimationFrame(this.waiting);
    this.waiting = requestAnimationFrame(() => this.refresh());
  }

  look(from, to) {
    this.chart.dispatchAction({
      type: "dataZoom",
      dataZoomIndex: 0,
      startValue: Math.max(from, 0),
      endValue: Math.min(to, this.end),
    });
  }

  zoom(factor) {
    const [from, to] = this.window,
      middle = (from + to) / 2,
      half = ((to - from) * factor) / 2;
    this.look(middle - half, middle + half);
  }

  refresh() {
    const { pieces, path } = this.found();
    this.chart.setOption({
      series: [
        { id: "pieces", data: pieces },
        { id: "path", data: path },
      ],
    });
  }

  // What of the window there is to draw, as rows of lane, start and end.
  found() {
    const [from, to] = this.window;
    const pixel = (to - from) / Math.max(this.element.clientWidth - 100, 100);
    this.drawn = this.rows.filter((row) => row.start).flatMap((lane) => pieces(lane, from, to, pixel, this.wants));
    const path = this.path.filter((leg) => leg.end > from && leg.start < to);
    const bright = this.drawn.filter((one) => one.bright).length;
    Object.assign(this.element.dataset, { from, to, pieces: this.drawn.length, bright });
    this.nothing.hidden = bright > 0 || !this.wants.text;
    return {
      pieces: this.drawn.map((one) => [one.row, one.start, one.end]),
      path: path.map((leg) => [leg.lane.row, leg.start, leg.end]),
    };
  }

  controls() {
    const around = this.element.closest("section");
    this.nothing = around.querySelector("[data-timeline=nothing]");
    const on = (name, event, act) => around.querySelector(`[data-timeline="${name}"]`)?.addEventListener(event, act);
    on("in", "click", () => this.zoom(0.5));
    on("out", "click", () => this.zoom(2));
    on("whole", "click", () => this.look(0, this.end));
    on("filter", "input", ({ target }) => {
      this.wants.text = target.value.trim().toLowerCase();
      this.refresh();
    });
    on("path", "click", ({ currentTarget }) => {
      this.wants.path = !this.wants.path;
      currentTarget.setAttribute("aria-pressed", this.wants.path);
      this.refresh();
    });
    this.element.tabIndex = 0;
    this.element.addEventListener("keydown", (pressed) => {
      const [from, to] = this.window,
        shift = (to - from) / 4;
      const act = {
        "+": () => this.zoom(0.5),
        "-": () => this.zoom(2),
        ArrowLeft: () => this.look(from - Math.min(shift, from), to - Math.min(shift, from)),
        ArrowRight: () => this.look(from + Math.min(shift, this.end - to), to + Math.min(shift, this.end - to)),
      }[pressed.key];
      if (act) {
        pressed.preventDefault();
        act();
      }
    });
  }

  // Where there are several timelines: each alone, or all of them.
  choices() {
    const holder = this.element.closest("section").querySelector("[data-timeline='choice']");
    if (this.all.length < 2) return;
    const sets = [...this.all.map((one) => [one.title, [one]]), ["both", this.all]];
    holder.replaceChildren(
      ...sets.map(([name, shown]) => {
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = name;
        button.setAttribute("aria-pressed", this.shown.length === shown.length && this.shown[0] === shown[0]);
        button.addEventListener("click", () => {
          this.shown = shown;
          this.draw();
        });
        return button;
      }),
    );
  }

  // The kinds that come up, as buttons that hide and show them.
  key() {
    const holder = this.element.closest("section").querySelector(".key");
    const kinds = [...new Set(this.spec.timelines.flatMap((one) => one.what.map((what) => what[1])))];
    const order = [...PHASES, ...FAMILIES, ...WAITS];
    kinds.sort((a, b) => order.indexOf(a) - order.indexOf(b));
    holder.replaceChildren(
      ...kinds.map((kind) => {
        const button = document.createElement("button"),
          dot = document.createElement("i");
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
      }),
    );
  }
}

draws.timeline = (chart, spec, element) => {
  element.timeline ??= new Timeline(chart, spec, element);
  element.timeline.draw();
};
