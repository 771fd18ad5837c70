// What moves a timeline, and what is asked of it: wheel, drag and keys, a selected span and its sums, the search, and
// the page's address, which keeps the view.

const CLICK = 4; // pixels that a click may move
const ADDRESS = "#line&"; // the section, and after it the view

class Moves {
  constructor(timeline) {
    this.timeline = timeline;
    this.span = document.createElement("div");
    this.span.className = "span";
    this.span.hidden = true;
    timeline.element.append(this.span);
    this.byMouse(timeline.element);
    this.byKey(timeline.element);
    this.controls();
    // Once the first picture is drawn: the address may name another view.
    setTimeout(() => this.goTo(location.hash));
    addEventListener("hashchange", () => this.goTo(location.hash));
  }

  // The time under the mouse.
  at(event) {
    const { element, left, window } = this.timeline,
      area = element.getBoundingClientRect(),
      wide = element.clientWidth - left - RIGHT;
    return window[0] + (Math.min(Math.max(event.clientX - area.left - left, 0), wide) / wide) * (window[1] - window[0]);
  }

  inLanes(event) {
    const { element, left, rows, row } = this.timeline,
      area = element.getBoundingClientRect();
    return event.clientX - area.left >= left && event.clientY - area.top <= rows.length * row + 4;
  }

  byMouse(element) {
    const { timeline } = this;
    // The wheel alone scrolls the page; with Ctrl it zooms, with Shift or across it moves.
    element.addEventListener(
      "wheel",
      (event) => {
        const across = event.shiftKey ? event.deltaX || event.deltaY : event.deltaX;
        if (event.ctrlKey || event.metaKey) {
          timeline.zoom(Math.exp(Math.max(Math.min(event.deltaY, 120), -120) * 0.004), this.at(event));
        } else if (Math.abs(across) > Math.abs(event.shiftKey ? 0 : event.deltaY)) {
          timeline.shift(across / element.clientWidth);
        } else return;
        event.preventDefault();
      },
      { passive: false },
    );
    element.addEventListener("pointermove", (event) => {
      this.pointer = this.at(event);
    });
    element.addEventListener("pointerleave", () => {
      this.pointer = undefined;
    });
    element.addEventListener("pointerdown", (event) => {
      if (event.button || !this.inLanes(event)) return;
      element.focus({ preventScroll: true });
      this.drag(event);
    });
    timeline.chart.on("click", { seriesId: "pieces" }, ({ dataIndex }) => this.select(timeline.drawn[dataIndex]));
    timeline.chart.on("dblclick", { seriesId: "pieces" }, ({ dataIndex }) => {
      const { start, end } = timeline.drawn[dataIndex];
      timeline.look(start - (end - start), end + (end - start));
    });
  }

  // Drag selects a span, with Ctrl it zooms to it, with Shift or a finger it moves.
  drag(down) {
    const { timeline } = this,
      [from, to] = timeline.window,
      first = this.at(down),
      moving = down.shiftKey || down.pointerType === "touch",
      zooming = down.ctrlKey || down.metaKey,
      per = (to - from) / Math.max(timeline.element.clientWidth - timeline.left - RIGHT, 1);
    let dragged = false,
      ends = null;
    const move = (event) => {
      const by = event.clientX - down.clientX;
      dragged ||= Math.abs(by) > CLICK;
      if (!dragged) return;
      if (moving) return void timeline.look(from - by * per, to - by * per);
      ends = [first, this.at(event)].sort((one, other) => one - other);
      this.mark(...ends);
    };
    const up = () => {
      for (const [name, act] of Object.entries({ pointermove: move, pointerup: up, pointercancel: up }))
        document.removeEventListener(name, act);
      if (!ends) return;
      if (zooming) {
        this.select(null);
        timeline.look(...ends);
      } else this.selectSpan(...ends);
    };
    for (const [name, act] of Object.entries({ pointermove: move, pointerup: up, pointercancel: up }))
      document.addEventListener(name, act);
  }

  byKey(element) {
    const { timeline } = this;
    element.tabIndex = 0;
    const acts = {
      w: () => timeline.zoom(1 / 1.5, this.pointer),
      s: () => timeline.zoom(1.5, this.pointer),
      a: () => timeline.shift(-0.25),
      d: () => timeline.shift(0.25),
      "+": () => timeline.zoom(0.5),
      "-": () => timeline.zoom(2),
      arrowleft: () => timeline.shift(-0.25),
      arrowright: () => timeline.shift(0.25),
      home: () => timeline.look(0, timeline.end),
      f: () => this.ends && timeline.look(...this.widened()),
      m: () => this.selectSpan(...timeline.window),
      n: () => this.step(1),
      p: () => this.step(-1),
      "/": () => timeline.part("filter").focus(),
      escape: () => this.select(null),
    };
    addEventListener("keydown", (pressed) => {
      // Over it, too, as in Perfetto; but not while something is typed.
      const ours = document.activeElement === element || (this.pointer !== undefined && !typing());
      const act = ours && !pressed.ctrlKey && !pressed.metaKey && !pressed.altKey && acts[pressed.key.toLowerCase()];
      if (!act) return;
      pressed.preventDefault();
      act();
    });
  }

  // The selection with something around it; a span fills the view.
  widened() {
    const [from, to] = this.ends,
      around = this.timeline.selected ? to - from : 0;
    return [from - around, to + around];
  }

  controls() {
    const { timeline } = this;
    const on = (name, event, act) => timeline.part(name)?.addEventListener(event, act);
    on("in", "click", () => timeline.zoom(0.5));
    on("out", "click", () => timeline.zoom(2));
    on("whole", "click", () => timeline.look(0, timeline.end));
    on("previous", "click", () => this.step(-1));
    on("next", "click", () => this.step(1));
    on("filter", "input", () => this.find());
    on("filter", "keydown", (pressed) => {
      if (pressed.key === "Enter") this.step(pressed.shiftKey ? -1 : 1);
      if (pressed.key === "Escape") timeline.element.focus();
    });
    on("path", "click", () => this.pathOnly(!timeline.wants.path));
    for (const cell of document.querySelectorAll("#ops td.name, #path td.name, #first td.name, #both td.name")) {
      const button = document.createElement("button");
      Object.assign(button, { type: "button", className: "find", title: "Find it in the timeline" });
      button.textContent = cell.textContent;
      button.addEventListener("click", () => {
        timeline.part("filter").value = cell.textContent;
        this.find();
        this.step(1);
        timeline.element.closest("section").scrollIntoView();
      });
      cell.replaceChildren(button);
    }
  }

  pathOnly(wanted) {
    this.timeline.wants.path = wanted;
    this.timeline.part("path").setAttribute("aria-pressed", wanted);
    this.timeline.refresh();
  }

  // Look for what is in the search field, in all lanes that are shown.
  find() {
    const { timeline } = this,
      { wants } = timeline;
    wants.text = timeline.part("filter").value.trim().toLowerCase();
    const lanes = timeline.rows.filter((row) => row.start);
    Object.assign(timeline, { found: wants.text ? matching(lanes, wants) : [], place: -1 });
    timeline.refresh();
    this.count();
  }

  count() {
    const { found, place, wants } = this.timeline,
      all = found.length.toLocaleString("en");
    const told = this.timeline.part("count");
    told.hidden = !wants.text || !found.length;
    told.textContent = place < 0 ? `${all} found` : `${place + 1} of ${all}`;
    for (const name of ["previous", "next"]) this.timeline.part(name).disabled = !found.length;
  }

  // Go to the next match, or to the one before; the first is the first in view.
  step(by) {
    const { timeline } = this,
      { found } = timeline,
      [from, to] = timeline.window;
    if (!found.length) return;
    const first = found.findIndex((one) => one.end > from);
    timeline.place =
      timeline.place < 0
        ? Math.max(by > 0 ? first : first - 1, 0)
        : (timeline.place + by + found.length) % found.length;
    const one = found[timeline.place];
    this.select(one);
    if (one.end < from || one.start > to) {
      const half = Math.max((to - from) / 2, one.end - one.start);
      timeline.look((one.start + one.end) / 2 - half, (one.start + one.end) / 2 + half);
    }
    this.count();
  }

  // Select a piece; nothing with null.
  select(one) {
    const { timeline } = this;
    timeline.selected = one && (one.count ?? 1) === 1 ? { lane: one.lane, at: one.at } : null;
    this.ends = one ? [one.start, one.end] : null;
    if (timeline.selected) this.tell(timeline.selected.lane.what[one.at][0], [["", timeline.described(one)]]);
    else if (one) return this.selectSpan(one.start, one.end);
    else this.tell("", []);
    return timeline.refresh();
  }

  // Select everything between two times, and add it up.
  selectSpan(from, to) {
    const { timeline } = this;
    timeline.selected = null;
    this.ends = [from, to];
    const blocks = timeline.shown.map(({ title, lanes }) => [
      timeline.shown.length > 1 ? title : "",
      this.sums(summed(lanes, from, to), to - from),
    ]);
    this.tell(`${time(to - from)}, from ${timeline.clock(from)} to ${timeline.clock(to)}`, blocks);
    timeline.refresh();
  }

  sums({ kinds, busy, ranks, kernels, calls, flops, nbytes }, wide) {
    const per = ranks > 1 ? " on the mean rank" : "";
    const work = [flops && operations(flops), nbytes && bytes(nbytes)].filter(Boolean).join(", ");
    return [
      kernels &&
        `device busy ${time(busy)}, idle ${time(Math.max(wide - busy, 0))} (${percent(1 - busy / wide)})${per}`,
      `${plural(calls, "host call")}, ${plural(kernels, "kernel")}${ranks > 1 ? ` of ${ranks} ranks` : ""}${work && `: ${work}`}`,
      ...kinds.map((row) => [row.kind, `${time(row.ms)} in ${row.count.toLocaleString("en")}`]),
    ].filter(Boolean);
  }

  // What is selected, under the timeline: names stay text.
  tell(title, blocks) {
    const panel = this.timeline.part("selected"),
      made = (tag, text, name = "") =>
        Object.assign(document.createElement(tag), { textContent: text, className: name });
    panel.hidden = !blocks.length;
    panel.replaceChildren(made("b", title));
    for (const [heading, lines] of blocks) {
      if (heading) panel.append(made("h3", heading));
      for (const line of lines.filter((one) => !Array.isArray(one))) panel.append(made("div", line));
      const kinds = document.createElement("dl");
      for (const [kind, spent] of lines.filter(Array.isArray)) {
        const name = made("dt", ""),
          dot = document.createElement("i");
        dot.style.background = colour(kind);
        name.append(dot, kind);
        kinds.append(name, made("dd", spent));
      }
      if (kinds.children.length) panel.append(kinds);
    }
    this.mark(...(this.ends ?? []));
  }

  // The selected span over the lanes.
  mark(from, to) {
    const { element, left, window, rows, row } = this.timeline,
      wide = element.clientWidth - left - RIGHT,
      place = (at) => left + Math.min(Math.max((at - window[0]) / (window[1] - window[0]), 0), 1) * wide;
    this.span.hidden = from === undefined || to < window[0] || from > window[1];
    if (this.span.hidden) return;
    const sides = { left: place(from), width: Math.max(place(to) - place(from), 1), top: 4, height: rows.length * row };
    for (const [side, pixels] of Object.entries(sides)) this.span.style[side] = `${pixels}px`;
  }

  // After each change: the mark, and the address.
  refresh() {
    this.mark(...(this.ends ?? []));
    clearTimeout(this.telling);
    this.telling = setTimeout(() => this.keep(), 200);
  }

  // Write the view into the page's address, so that a link to it shows the same.
  keep() {
    const { timeline } = this,
      { wants, window, end, shown, all } = timeline,
      view = new URLSearchParams();
    const digits = (at) => String(+at.toFixed(4));
    if (window[0] > 0 || window[1] < end) view.set("view", window.map(digits).join("-"));
    if (wants.text) view.set("find", wants.text);
    if (wants.path) view.set("path", "only");
    if (wants.hidden.size) view.set("hide", [...wants.hidden].join(","));
    if (this.ends) view.set("span", this.ends.map(digits).join("-"));
    if (shown.length < all.length && shown[0] !== all[0]) view.set("show", all.indexOf(shown[0]));
    const address = view.size ? ADDRESS + view : location.hash.startsWith(ADDRESS) ? "#line" : location.hash;
    if (address === location.hash || !(view.size || this.kept)) return;
    this.kept = address;
    try {
      history.replaceState(null, "", address);
    } catch {
      /* opened where addresses may not change */
    }
  }

  // The view that an address names.
  goTo(address) {
    if (!address.startsWith(ADDRESS) || address === this.kept) return;
    const { timeline } = this,
      view = new URLSearchParams(address.slice(ADDRESS.length)),
      ends = (name) => (view.get(name) ?? "").split("-").map(Number).filter(Number.isFinite);
    this.kept = address;
    timeline.element.closest("section").scrollIntoView();
    const shown = timeline.all[Number.parseInt(view.get("show"), 10)];
    if (shown) timeline.shown = [shown];
    timeline.wants.hidden = new Set((view.get("hide") ?? "").split(",").filter(Boolean));
    timeline.draw();
    timeline.part("filter").value = view.get("find") ?? "";
    this.find();
    this.pathOnly(view.get("path") === "only");
    const [from, to] = ends("view"),
      span = ends("span");
    if (to > from) timeline.look(from, to);
    if (span.length === 2 && span[1] > span[0]) this.selectSpan(...span);
  }
}

const typing = () => ["INPUT", "TEXTAREA", "SELECT"].includes(document.activeElement?.tagName);
