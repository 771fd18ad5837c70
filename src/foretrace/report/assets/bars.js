// What charts of bars share: their height, their names at the left, and the axis under them.

const ROW_OF_BARS = 22;

function tall(chart, element, height) {
  element.style.height = `${height}px`;
  chart.resize();
}

// How many marks an axis across has room for.
const marks = (element) => Math.max(2, Math.floor(element.clientWidth / 130));

// How wide names at the left of bars may get: they are cut where the screen is narrow.
const namesWidth = (element, widest = 230) => Math.min(widest, element.clientWidth * 0.38);

const NAME_LETTER = 7.2; // pixels of one in a name, about

// A name with its middle left out: names of ops differ at their ends, as forward and backward.
const shortened = (name, most) => {
  const half = Math.floor((most - 1) / 2);
  return name.length <= most ? name : `${name.slice(0, half)}…${name.slice(-half)}`;
};

const names = (element, rows, widest) => {
  const width = namesWidth(element, widest);
  const formatter = (name) => shortened(name, Math.floor(width / NAME_LETTER));
  return axis({
    type: "category",
    inverse: true,
    data: rows,
    axisLabel: { width, overflow: "truncate", color: token("ink"), formatter },
  });
};

const across = (element, more) =>
  axis({
    type: "value",
    splitLine: { show: true },
    splitNumber: marks(element),
    axisLabel: { formatter: inMs, hideOverlap: true },
    ...more,
  });

const shadow = () => ({ type: "shadow", shadowStyle: { color: `${token("quiet")}18` } });

// A legend of these names, with the shape that bars have.
const bars = (named) => legend({ data: named, top: 0, left: 0, type: "scroll" });

// Tabs above a chart that shows one of several views.
function tabs(element, draw) {
  const buttons = element.parentElement.querySelectorAll(".tabs button");
  buttons.forEach((button, place) => {
    button.setAttribute("aria-pressed", place === element.view);
    button.onclick = () => {
      element.view = place;
      draw();
    };
  });
}

// A power of two that divides an axis of bytes into a few parts.
const inBytes = (most) => 2 ** Math.floor(Math.log2(most / 3));
