// Tables: rows whose text holds what is typed above them; all of them at a click.

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
