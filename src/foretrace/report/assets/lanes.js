// Lanes of a timeline: what a page holds, unpacked; and what of it there is to draw, the smallest merged, so that a zoom
// draws thousands of pieces and not millions.

const SMALLEST = 1.2; // pixels: what is shorter is drawn together with its neighbours
const LONGEST = 3; // pixels of what is drawn together

function decoded(lane) {
  const count = lane.start.length;
  const start = new Float64Array(count),
    end = new Float64Array(count),
    reach = new Float64Array(count);
  for (let i = 0, at = 0, most = 0; i < count; i++) {
    at += lane.start[i];
    start[i] = at / 1e4;
    end[i] = (at + lane.length[i]) / 1e4;
    reach[i] = most = Math.max(most, end[i]);
  }
  const { label, rank, what, about } = lane;
  return {
    label,
    rank,
    device: label.startsWith("stream"),
    start,
    end,
    reach,
    what,
    about,
    lit: new Uint8Array(count),
  };
}

// What is known of a piece beyond its name.
function detailed([module, shapes, flops, nbytes, kernels, source, low, high, waitsFor], texts) {
  const known = { module: texts[module], shapes: texts[shapes], source: texts[source] };
  return { ...known, flops, nbytes, kernels, low: low / 1e4, high: high / 1e4, waitsFor };
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
  let low = 0,
    high = lane.start.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane.reach[middle] > when) high = middle;
    else low = middle + 1;
  }
  return low;
}

// A timeline's lanes with their names, and its critical path.
function unpacked(one) {
  const lanes = one.lanes.map(decoded),
    about = one.about.map((row) => detailed(row, one.texts));
  for (const lane of lanes) {
    lane.label = one.ranks.length > 1 ? `rank ${lane.rank}  ${lane.label}` : lane.label;
    lane.what = lane.what.map((row) => one.what[row]);
    lane.about = lane.about.map((row) => about[row]);
    lane.odd = one.ranks.indexOf(lane.rank) % 2 === 1;
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
    const what = lane.what[i],
      start = lane.start[i],
      end = lane.end[i];
    if (wants.hidden.has(what[1])) continue;
    const bright = (!wants.text || matches(what, wants.text)) && (!wants.path || lane.lit[i] === 1);
    const small = end - start < SMALLEST * pixel;
    if (small && last && last.small && start - last.end < pixel && end - last.start < LONGEST * pixel) {
      last.count++;
      if (bright > last.bright || (bright === last.bright && end - start > last.longest)) {
        Object.assign(last, { what, bright, longest: end - start, at: i });
      }
      last.end = Math.max(last.end, end);
    } else {
      last = { start, end, what, bright, small, count: 1, longest: end - start, row: lane.row, lane, at: i };
      found.push(last);
    }
  }
  return found;
}

// Everything that a text is part of, in the order of time.
function matching(lanes, { text, hidden }) {
  const found = [];
  for (const lane of lanes) {
    const fits = new Map(); // names are few, pieces many
    lane.what.forEach((what, at) => {
      if (!fits.has(what)) fits.set(what, !hidden.has(what[1]) && matches(what, text));
      if (fits.get(what)) found.push({ lane, at, start: lane.start[at], end: lane.end[at] });
    });
  }
  return found.sort((one, other) => one.start - other.start);
}

// What the lanes of one timeline do between two times: by kind, and how long the device of the mean rank is busy.
function summed(lanes, from, to) {
  const kinds = new Map(),
    busy = new Map(),
    sum = { flops: 0, nbytes: 0, kernels: 0, calls: 0 };
  for (const lane of lanes) {
    if (!busy.has(lane.rank)) busy.set(lane.rank, []);
    for (let i = firstAt(lane, from); i < lane.start.length && lane.start[i] < to; i++) {
      const spent = Math.min(lane.end[i], to) - Math.max(lane.start[i], from);
      if (spent <= 0) continue;
      const kind = lane.what[i][1],
        about = lane.about[i];
      const row = kinds.get(kind) ?? { kind, device: lane.device, ms: 0, count: 0 };
      kinds.set(kind, { ...row, ms: row.ms + spent, count: row.count + 1 });
      if (!lane.device) {
        sum.calls++;
        continue;
      }
      const part = spent / (lane.end[i] - lane.start[i]) / Math.max(about.kernels, 1);
      busy.get(lane.rank).push([Math.max(lane.start[i], from), Math.min(lane.end[i], to)]);
      if (WAITS.includes(kind)) continue;
      sum.kernels++;
      sum.flops += part * about.flops;
      sum.nbytes += part * about.nbytes;
    }
  }
  const active = [...busy.values()].map(covered);
  sum.busy = active.reduce((total, one) => total + one, 0) / Math.max(active.length, 1);
  sum.ranks = active.length;
  sum.kinds = [...kinds.values()].sort((one, other) => other.device - one.device || other.ms - one.ms);
  return sum;
}

// How long at least one of some intervals lasts.
function covered(intervals) {
  let total = 0,
    until = Number.NEGATIVE_INFINITY;
  for (const [start, end] of intervals.sort((one, other) => one[0] - other[0])) {
    total += Math.max(end - Math.max(start, until), 0);
    until = Math.max(until, end);
  }
  return total;
}

const matches = (what, text) => what[0].toLowerCase().includes(text) || what[2].toLowerCase().includes(text);
