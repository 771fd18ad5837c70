// The timeline: lanes of pieces with their names, the critical path under them. What moves it is in moves.js.

const DIM = 0.14;
const MOST_AT_FIRST = 16; // lanes: of more, only the first timeline is shown at first
const LETTER = 6.2; // pixels of a letter in a piece
const LEAST_LETTERS = 4; // of a name in a piece: fewer say nothing
const RIGHT = 12; // pixels right of the lanes

class Timeline {
  constructor(chart, spec, element) {
    const wants = { text: "", path: false, hidden: new Set() };
    Object.assign(this, { chart, spec, element, wants, drawn: [], selected: null, found: [], place: -1 });
    this.all = spec.timelines.map(unpacked);
    const lanes = this.all.reduce((sum, one) => sum + one.lanes.length, 0);
    this.shown = lanes > MOST_AT_FIRST ? this.all.slice(0, 1) : this.all;
    chart.on("datazoom", () => this.moved());
    this.part = (name) => element.closest("section").querySelector(`[data-timeline="${name}"]`);
    this.moves = new Moves(this);
  }

  draw() {
    const { chart } = this;
    Object.assign(this, laidOut(this.shown));
    const end = Math.max(...this.shown.map((one) => one.end), 1e-3);
    if (end !== this.end) Object.assign(this, { end, window: [0, end] });
    const { rows } = this;
    this.row = rows.length <= 8 ? 34 : rows.length <= 24 ? 24 : 20; // pixels of a lane
    this.element.style.height = `${rows.length * this.row + 66}px`;
    chart.resize();
    const found = this.inView();
    const narrow = this.element.clientWidth < 600;
    this.left = narrow ? 70 : rows.some((row) => row.label?.startsWith("rank")) ? 118 : 78;
    chart.setOption(
      base({
        grid: { left: this.left, right: RIGHT, top: 4, bottom: 62 },
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
        // What is dragged over the lanes is ours: see moves.js. This one catches no wheel.
        dataZoom: [
          {
            type: "slider",
            filterMode: "none",
            height: 20,
            bottom: 8,
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
            startValue: this.window[0],
            endValue: this.window[1],
          },
        ],
        series: [
          {
            id: "bands",
            type: "custom",
            silent: true,
            renderItem: (params, api) => this.ground(params, api),
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
      { replaceMerge: ["series", "dataZoom"] },
    );
    this.key();
    this.choices();
    this.moves.refresh();
  }

  // A time with as many digits as tell the marks of the window apart.
  clock(at) {
    const [from, to] = this.window;
    return inMs(+at.toFixed(Math.min(Math.max(Math.ceil(2 - Math.log10(to - from)), 0), 6)));
  }

  // Where a stretch of a lane is drawn.
  box(params, api, from, to, top, height) {
    const [left, y] = api.coord([from, api.value(0)]),
      right = api.coord([to, api.value(0)])[0];
    const area = params.coordSys;
    const x = Math.max(left, area.x),
      end = Math.min(Math.max(right, left + 0.6), area.x + area.width);
    return end > x ? { x, y: y - this.row / 2 + top, width: end - x, height } : null;
  }

  // The ground of a row of every other rank, so that ranks can be distinguished.
  ground(params, api) {
    const { x, width } = params.coordSys,
      y = api.coord([0, api.value(0)])[1] - this.row / 2;
    return { type: "rect", shape: { x, y, width, height: this.row }, style: { fill: token("quiet"), opacity: 0.08 } };
  }

  piece(params, api) {
    const one = this.drawn[params.dataIndex],
      shape = one && this.box(params, api, one.start, one.end, 2, this.row - 6);
    if (!shape) return null;
    const fill = colour(one.what[1]),
      chosen = this.selected?.lane === one.lane && this.selected.at === one.at;
    const style = { fill, opacity: one.bright ? 1 : DIM, stroke: token("ink"), lineWidth: chosen ? 2 : 0 };
    const letters = Math.floor((shape.width - 8) / LETTER);
    if (one.count > 1 || letters < LEAST_LETTERS || !one.bright)
      return { type: "rect", shape, style, textContent: false }; // false takes away what was there
    const name = one.what[0].replace(/^aten::/, ""),
      text = name.length > letters ? `${name.slice(0, letters - 1)}…` : name;
    return {
      type: "rect",
      shape,
      style,
      textContent: { style: { text, fill: inkOn(fill), font: "11px system-ui, sans-serif" }, silent: true },
      textConfig: { position: "insideLeft", distance: 4, inside: true },
    };
  }

  leg(params, api) {
    const shape = this.box(params, api, api.value(1), api.value(2), this.row - 4, 3);
    return shape && { type: "rect", shape, style: { fill: token("accent") } };
  }

  tooltip(one) {
    if (!one) return "";
    if (one.count > 1)
      return tip(
        `${one.count} short ones, mostly ${one.what[0]}`,
        `${time(one.end - one.start)} together`,
        "zoom in to tell them apart",
      );
    return tip(one.what[0], ...this.described(one));
  }

  // What is known of a piece, a line each.
  described({ lane, at }) {
    const [, kind, op] = lane.what[at],
      about = lane.about[at],
      waits = kind === "waits for other ranks" && about.waitsFor >= 0;
    const work = [about.flops && operations(about.flops), about.nbytes && bytes(about.nbytes)].filter(Boolean);
    const range = about.high > about.low ? `, 80 %: ${ms(about.low * 1e3)} – ${ms(about.high * 1e3)} µs` : "";
    return [
      op && `launched by ${op}`,
      `${time(lane.end[at] - lane.start[at])} from ${ms(lane.start[at])} ms`,
      waits ? `waits for rank ${about.waitsFor}` : kind,
      about.module && `in ${about.module}`,
      about.shapes,
      work.length > 0 && `${work.join(", ")}${about.kernels > 1 ? `, in ${about.kernels} kernels` : ""}`,
      about.source && !waits && `${about.source}${range}`,
    ].filter(Boolean);
  }

  moved() {
    const zoom = this.chart.getOption().dataZoom[0];
    this.window = [zoom.startValue, zoom.endValue];
    cancelAnimationFrame(this.waiting);
    this.waiting = requestAnimationFrame(() => this.refresh());
  }

  look(from, to) {
    const least = Math.max(to - from, 1e-3),
      start = Math.min(Math.max(from, 0), Math.max(this.end - least, 0));
    this.chart.dispatchAction({
      type: "dataZoom",
      dataZoomIndex: 0,
      startValue: start,
      endValue: Math.min(start + least, this.end),
    });
  }

  // Zoom around a time; around the middle without one.
  zoom(factor, around) {
    const [from, to] = this.window,
      pivot = around ?? (from + to) / 2;
    this.look(pivot - (pivot - from) * factor, pivot + (to - pivot) * factor);
  }

  shift(share) {
    const [from, to] = this.window;
    this.look(from + share * (to - from), to + share * (to - from));
  }

  refresh() {
    const { pieces, path } = this.inView();
    this.chart.setOption({
      series: [
        { id: "pieces", data: pieces },
        { id: "path", data: path },
      ],
    });
    this.moves.refresh();
  }

  // What of the window there is to draw, as rows of lane, start and end.
  inView() {
    const [from, to] = this.window;
    const pixel = (to - from) / Math.max(this.element.clientWidth - 100, 100);
    this.drawn = this.rows.filter((row) => row.start).flatMap((lane) => pieces(lane, from, to, pixel, this.wants));
    const path = this.path.filter((leg) => leg.end > from && leg.start < to);
    const bright = this.drawn.filter((one) => one.bright).length;
    Object.assign(this.element.dataset, { from, to, pieces: this.drawn.length, bright });
    this.part("nothing").hidden = bright > 0 || !this.wants.text;
    return {
      pieces: this.drawn.map((one) => [one.row, one.start, one.end]),
      path: path.map((leg) => [leg.lane.row, leg.start, leg.end]),
    };
  }

  // Where there are several timelines: each alone, or all of them.
  choices() {
    if (this.all.length < 2) return;
    const sets = [...this.all.map((one) => [one.title, [one]]), ["both", this.all]];
    this.part("choice").replaceChildren(
      ...sets.map(([name, shown]) => {
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = name;
        button.setAttribute("aria-pressed", this.shown.length === shown.length && this.shown[0] === shown[0]);
        button.addEventListener("click", () => {
          this.shown = shown;
          this.moves.select(null);
          this.draw();
          this.moves.find();
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
        button.type = "button";
        button.append(dot, kind);
        button.dataset.kind = kind;
        button.setAttribute("aria-pressed", !this.wants.hidden.has(kind));
        button.addEventListener("click", () => {
          if (!this.wants.hidden.delete(kind)) this.wants.hidden.add(kind);
          button.setAttribute("aria-pressed", !this.wants.hidden.has(kind));
          this.refresh();
          this.moves.find();
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
