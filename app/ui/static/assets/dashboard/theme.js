// Before the first paint: the theme that was chosen here, if one was.
try {
  const chosen = localStorage.getItem("plaudit-theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
} catch { /* storage is closed to us: the system's theme it is */ }
