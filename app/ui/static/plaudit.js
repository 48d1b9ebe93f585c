/* Plaudit: counts page views. <script defer src="https://…/plaudit.js" data-key="pk_…"></script>
   data-page names the page by the tenant's own id; without it the address does. Sends nothing that names a visitor,
   sets no cookie, and keeps quiet for those who ask not to be tracked. */
(function () {
  "use strict";
  var script = document.currentScript;
  var key = script && script.getAttribute("data-key");
  if (!key || navigator.doNotTrack === "1" || window.doNotTrack === "1" || navigator.globalPrivacyControl) return;

  var endpoint = new URL("/api/v1/beacon?key=" + encodeURIComponent(key), script.src).href;
  var lastSent = null;

  function send() {
    var address = location.href.split("#")[0];
    if (address === lastSent) return;
    lastSent = address;
    var page = script.getAttribute("data-page") || (document.querySelector('meta[name="plaudit-page"]') || {}).content;
    var body = JSON.stringify(page ? { page: page } : { url: address });
    if (!(navigator.sendBeacon && navigator.sendBeacon(endpoint, body))) {
      fetch(endpoint, { method: "POST", body: body, keepalive: true, credentials: "omit", mode: "no-cors" }).catch(function () {});
    }
  }

  // Pages that change their address without loading anew count each address once.
  function afterNavigation(original) {
    return function () {
      var result = original.apply(this, arguments);
      setTimeout(send, 0);
      return result;
    };
  }
  history.pushState = afterNavigation(history.pushState);
  addEventListener("popstate", send);
  addEventListener("pageshow", function (event) { if (event.persisted) { lastSent = null; send(); } });

  // A page that is only rendered ahead of time is not a view yet.
  if (document.prerendering) document.addEventListener("prerenderingchange", send, { once: true });
  else send();
})();
