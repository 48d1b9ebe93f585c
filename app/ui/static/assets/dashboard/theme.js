// A classic script, so that it runs before the first paint: a saved theme must not flash the other one first.
try {
  const theme = localStorage.getItem("plaudit-theme");
  if (theme) document.documentElement.dataset.theme = theme;
} catch {
  // Without storage the system's theme applies.
}
