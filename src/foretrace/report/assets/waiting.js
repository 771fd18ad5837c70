// While the server works on what was asked for: what it works on, how far it is, and for how long.

const waiting = document.getElementById("waiting");
let clock;

function wait(what) {
  const began = Date.now();
  let stage = "";
  const tell = () => {
    const seconds = Math.round((Date.now() - began) / 1000);
    waiting.textContent = `${what} … ${seconds} s${stage && `: ${stage}`}`;
  };
  const ask = () => {
    tell();
    fetch("/working")
      .then((answer) => answer.text())
      .then((text) => {
        stage = text;
        tell();
      })
      .catch(() => {}); // the answer itself is on its way
  };
  clearInterval(clock);
  clock = setInterval(ask, 1000);
  waiting.hidden = false;
  tell();
}

for (const asked of waiting ? document.querySelectorAll("[data-wait]") : []) {
  asked.addEventListener(asked.tagName === "FORM" ? "submit" : "click", (event) => {
    const elsewhere = event.ctrlKey || event.metaKey || event.shiftKey; // it opens in another tab
    if (!elsewhere) wait(asked.dataset.wait);
  });
}

// Who comes back finds the page as it was left, the clock still running.
addEventListener("pageshow", () => {
  clearInterval(clock);
  if (waiting) waiting.hidden = true;
});
