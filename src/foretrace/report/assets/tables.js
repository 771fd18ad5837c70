// Tables: rows whose text holds what is typed above them, all of them at a click, and in the order of any column.

const UNITS = { B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, µs: 1e-3, us: 1e-3, ms: 1, s: 1e3 };

// What a cell counts in its column's order: its number, with its unit; else its text.
function ordered(text) {
  const number = text
    .trim()
    .replace(/,(?=\d{3})/g, "")
    .replace("−", "-")
    .match(/^[$+]?(-?[\d.]+(?:e[+-]?\d+)?)\s*(\S*)/i);
  return number ? Number(number[1]) * (UNITS[number[2]] ?? 1) : Number.NaN;
}

function sort(table, place, down) {
  const body = table.tBodies[0],
    shown = table.dataset.first
      ? Number(table.dataset.first)
      : [...body.rows].filter((row) => row.className !== "rest").length;
  table.dataset.first = shown;
  const cells = [...body.rows].map((row) => [row, row.cells[place].textContent, ordered(row.cells[place].textContent)]);
  const numbers = cells.some(([, , number]) => !Number.isNaN(number));
  cells.sort(([, text, number], [, other, value]) => {
    if (!numbers) return (down ? -1 : 1) * text.localeCompare(other, "en", { numeric: true });
    if (Number.isNaN(number) || Number.isNaN(value)) return Number.isNaN(number) - Number.isNaN(value); // unknown ones last
    return (down ? -1 : 1) * (number - value);
  });
  cells.forEach(([row], at) => row.classList.toggle("rest", at >= shown));
  body.append(...cells.map(([row]) => row));
}

for (const table of document.querySelectorAll("main table")) {
  const heads = [...table.tHead.rows[0].cells];
  if (table.tBodies[0].rows.length < 2) continue;
  heads.forEach((head, place) => {
    if (head.tagName !== "TH" || !head.textContent.trim()) return;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      // Figures from the largest, names from A.
      const down = head.ariaSort ? head.ariaSort === "ascending" : head.classList.contains("n");
      for (const other of heads) other.removeAttribute("aria-sort");
      head.ariaSort = down ? "descending" : "ascending";
      sort(table, place, down);
    });
  });
}

for (const field of document.querySelectorAll("input[data-table]")) {
  const table = document.getElementById(field.dataset.table);
  field.addEventListener("input", () => {
    const text = field.value.trim().toLowerCase();
    table.classList.toggle("all", text !== "" || table.dataset.all === "yes");
    for (const row of table.tBodies[0].rows) row.hidden = !row.textContent.toLowerCase().includes(text);
  });
}

for (const button of document.querySelectorAll("button[data-more]")) {
  const table = document.getElementById(button.dataset.more);
  button.addEventListener("click", () => {
    table.dataset.all = "yes";
    table.classList.add("all");
    button.parentElement.remove();
  });
}

start();
