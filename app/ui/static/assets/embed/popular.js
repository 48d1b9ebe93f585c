// Puts a list of popular pages where this script's tag stands:
//   <script async src="https://plaudit.example/embed/popular.js" data-key="pk_…" data-space="docs" data-window="7d"></script>
(() => {
  const tag = document.currentScript;
  if (!tag?.dataset.key) {
    console.warn("Plaudit: popular.js needs data-key");
    return;
  }
  const address = new URL("/embed/popular", tag.src);
  for (const name of ["key", "space", "window", "metric", "limit", "title", "theme"]) {
    if (tag.dataset[name] !== undefined) address.searchParams.set(name, tag.dataset[name]);
  }
  address.searchParams.set("base", location.origin);
  const frame = document.createElement("iframe");
  frame.title = tag.dataset.title ?? "Popular";
  frame.loading = "lazy";
  frame.src = address;
  Object.assign(frame.style, { border: 0, width: "100%", height: `${44 + 34 * (tag.dataset.limit ?? 5)}px`, colorScheme: "normal" });
  addEventListener("message", (event) => {
    if (event.source !== frame.contentWindow || event.origin !== address.origin || event.data?.plaudit !== "height") return;
    frame.style.height = `${Math.min(2000, Math.max(0, Number(event.data.height) || 0))}px`;
  });
  tag.after(frame);
})();
