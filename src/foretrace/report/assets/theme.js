// Light or dark, before anything is drawn: what was chosen on another page, else what the system prefers.

function wantedTheme() {
  let stored = null;
  try {
    stored = localStorage.getItem("foretrace-theme");
  } catch {
    /* opened from disk, storage may be forbidden */
  }
  return stored ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

document.documentElement.dataset.theme = wantedTheme();
