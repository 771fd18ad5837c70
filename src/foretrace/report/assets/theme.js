// Light or dark, before anything is drawn: what was chosen on another page, else what the system prefers.

function wantedTheme() {
  let kept = null;
  try {
    kept = localStorage.getItem("foretrace-theme");
  } catch {
    /* opened from disk, nothing may be kept */
  }
  return kept ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

document.documentElement.dataset.theme = wantedTheme();
