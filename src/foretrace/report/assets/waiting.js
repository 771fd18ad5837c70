// While the server works on what was asked for: what it works on, and for how long.

const waiting = document.getElementById("waiting");
let clock;

function wait(what) {
  const began = Date.now();
  const tell = () => {
    waiting.textContent = `${what} … ${Math.round((Date.now() - began) / 1000)} s`;
  };
  clearInterval(clock);
  clock = setInterval(tell, 1000);
  waiting.hidden = false;
  tell();
}

for (const asked of waiting ? document.querySelectorAll("[data-wait]") : []) {
  asked.addEventListener(asked.tagName === "FORM" ? "submit" : "click", (event) => {
    const elsewhere = event.ctrlKey || event.metaKey || event.shiftKey; // it opens beside this page
    if (!elsewhere) wait(asked.dataset.wait);
  });
}

// Who comes back finds the page as it was left, the clock still running.
addEventListener("pageshow", () => {
  clearInterval(clock);
  if (waiting) waiting.hidden = true;
});
