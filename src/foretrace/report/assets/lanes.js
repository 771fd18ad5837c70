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
  const lanes = one.lanes.map(decoded);
  for (const lane of lanes) {
    lane.label = one.ranks.length > 1 ? `rank ${lane.rank}  ${lane.label}` : lane.label;
    lane.what = lane.what.map((row) => one.what[row]);
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
