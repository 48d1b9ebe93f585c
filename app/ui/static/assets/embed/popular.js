// Puts a list of popular pages after this script's tag:
//   <script async src="https://plaudit.example/embed/popular.js" data-key="pk_…" data-space="docs"></script>
// The attributes data-window, data-metric, data-limit, data-title and data-theme are optional.
(() => {
  const PARAMETERS = ["key", "space", "window", "metric", "limit", "title", "theme"];
  const HEAD_PX = 44;
  const ROW_PX = 34;
  const MAX_HEIGHT_PX = 2000;
  const { currentScript: tag } = document;
  if (!tag?.dataset.key) {
    console.warn("Plaudit: popular.js needs data-key");
    return;
  }

  const url = new URL("/embed/popular", tag.src);
  for (const name of PARAMETERS) {
    if (tag.dataset[name] !== undefined) url.searchParams.set(name, tag.dataset[name]);
  }
  url.searchParams.set("base", location.origin);

  const frame = document.createElement("iframe");
  frame.title = tag.dataset.title ?? "Popular";
  frame.loading = "lazy";
  frame.src = url;
  // An estimate, so that the page around moves little when the list has reported its height.
  const height = `${HEAD_PX + ROW_PX * (tag.dataset.limit ?? 5)}px`;
  Object.assign(frame.style, { border: 0, width: "100%", height, colorScheme: "normal" });
  addEventListener("message", ({ source, origin, data }) => {
    if (source !== frame.contentWindow || origin !== url.origin || data?.plaudit !== "height") return;
    frame.style.height = `${Math.min(MAX_HEIGHT_PX, Math.max(0, Number(data.height) || 0))}px`;
  });
  tag.after(frame);
})();
