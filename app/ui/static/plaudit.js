// deno-lint-ignore-file no-var -- ES5, for old browsers
/* Plaudit: counts page views. <script defer src="https://…/plaudit.js" data-key="pk_…"></script>
   data-page is the tenant's own id of the page; without it the page is found by its URL. Sends nothing that identifies
   a visitor, sets no cookie, and sends nothing for visitors who ask not to be tracked. */
(function () {
  "use strict";
  var script = document.currentScript;
  var key = script && script.getAttribute("data-key");
  if (!key || navigator.doNotTrack === "1" || window.doNotTrack === "1" || navigator.globalPrivacyControl) return;

  var endpoint = new URL("/api/v1/beacon?key=" + encodeURIComponent(key), script.src).href;
  var lastSent = null;

  function send() {
    var url = location.href.split("#")[0];
    if (url === lastSent) return;
    lastSent = url;
    var page = script.getAttribute("data-page") || (document.querySelector('meta[name="plaudit-page"]') || {}).content;
    var body = JSON.stringify(page ? { page: page } : { url: url });
    if (navigator.sendBeacon && navigator.sendBeacon(endpoint, body)) return;
    var options = { method: "POST", body: body, keepalive: true, credentials: "omit", mode: "no-cors" };
    fetch(endpoint, options).catch(function () {});
  }

  // Single-page sites change the URL without loading a page: each new URL is one view.
  function sendAfter(original) {
    return function () {
      var result = original.apply(this, arguments);
      setTimeout(send, 0);
      return result;
    };
  }
  history.pushState = sendAfter(history.pushState);
  addEventListener("popstate", send);

  // A page that comes back from the back/forward cache is viewed once more.
  addEventListener("pageshow", function (event) {
    if (!event.persisted) return;
    lastSent = null;
    send();
  });

  // A page that is only prerendered is not viewed yet.
  if (document.prerendering) document.addEventListener("prerenderingchange", send, { once: true });
  else send();
})();
