// deno-lint-ignore-file no-var -- ES5, for old browsers
// Counts the views of pages and sends a reader's likes: "The browser beacon" in docs/guide.md. Sets no cookie, and
// sends no view for visitors who ask not to be tracked.
//
// app/ui/script.py removes comments and indentation, so a comment has a line of its own.
(function (window, document) {
  "use strict";
  // A second copy on the page would count everything twice.
  if ((window.plaudit || {}).view) return;

  // A module has no currentScript.
  var script = document.currentScript || document.querySelector('script[src*="/plaudit.js"]');
  var key = attribute("key");
  var endpoint = key && new URL("/api/v1/beacon?key=" + encodeURIComponent(key), script.src).href;
  var noKey = "plaudit.js: data-key is missing, nothing is sent";
  if (!key) console.warn(noKey);

  var optedOut = navigator.doNotTrack === "1" || window.doNotTrack === "1" || navigator.globalPrivacyControl;
  var hasHashRoutes = attribute("hash") !== null;
  var user = attribute("user");
  var signature = attribute("signature");
  var referrer = document.referrer;

  // The address whose view was sent last, or waits to be sent.
  var current = address();
  var timer;
  // What the last view named: a like without options is of that.
  var shown;
  // What the document says about itself, each with the address at which it began to say so.
  var said = {};

  function attribute(name) {
    return script && script.getAttribute("data-" + name);
  }

  function address() {
    return location.href.replace(hasHashRoutes ? /#(?![/!]).*/ : /#.*/, "");
  }

  function withoutQuery(url) {
    return url.replace(/\?[^#]*/g, "");
  }

  function read(selector, property) {
    return (document.querySelector(selector) || {})[property];
  }

  // What the document says about the current address. A single-page site may update it late, or never: whatever it said
  // at another address already is false, since it must not name the new page.
  function describe() {
    var now = {
      id: attribute("page"),
      meta: read('meta[name="plaudit-page"]', "content"),
      title: document.title,
      canonical: read("link[rel=canonical]", "href"),
    };
    Object.keys(now).forEach(function (what) {
      if (!said[what] || said[what].value !== now[what]) said[what] = { value: now[what], url: current };
      if (said[what].url !== current) now[what] = false;
    });
    now.page = now.id || now.meta;
    // A <meta> that is empty or the last page's is still to be filled, whatever the title is.
    now.isNamed = now.page || (said.meta.value === undefined && now.title !== false);
    return now;
  }

  // How a beacon names a page: by the site's id, else by its address and what the document says about it.
  function target(options) {
    options = options || {};
    var now = describe();
    var page = options.page || (!options.url && now.page);
    if (page) return { page: "" + page };
    var name = { url: options.url ? new URL(options.url, document.baseURI).href : current };
    if (name.url === address()) {
      // Not half of a surrogate pair, which is no JSON.
      if (now.title) name.title = now.title.slice(0, 200).replace(/[\uD800-\uDBFF]$/, "");
      if (now.canonical !== name.url) name.canonical = now.canonical || undefined;
    }
    return name;
  }

  function targetHere(options) {
    current = address();
    return target(options);
  }

  function bodyOf(name, type, from) {
    var url = name.url;
    // A longer one is refused; its page is found without the query too.
    if (url && url.length > 2000) url = withoutQuery(url);
    var body = { type: type, page: name.page, url: url };
    if (user && signature) {
      body.user = user;
      body.user_signature = signature;
    }
    var required = JSON.stringify(body);
    body.title = name.title;
    body.canonical = name.canonical;
    body.referrer = from || undefined;
    var whole = JSON.stringify(body);
    // The service reads 4,096 bytes; a title has up to three for each of its characters.
    return whole.length < 3600 ? whole : required;
  }

  function sendView(name) {
    shown = name;
    if (!key || optedOut) return;
    if (document.prerendering) {
      document.addEventListener("prerenderingchange", sendView.bind(null, name), { once: true });
      return;
    }
    var body = bodyOf(name, undefined, referrer);
    referrer = "";
    if (!navigator.sendBeacon || !navigator.sendBeacon(endpoint, body)) post(body, "no-cors").catch(function () {});
  }

  // Text, without cookies or headers of its own: no browser asks for permission first.
  function post(body, mode) {
    return fetch(endpoint, { method: "POST", body: body, mode: mode, keepalive: true, credentials: "omit" });
  }

  function sendLike(type, options) {
    sendWaiting();
    if (!key) return Promise.reject(new Error(noKey));
    // As a click's listener it gets the event.
    var isNamed = options && (options.page || options.url);
    return post(bodyOf((!isNamed && shown) || targetHere(options), type), "cors").then(function (response) {
      return response.json().then(function (answer) {
        if (response.ok) return answer;
        throw Object.assign(new Error(answer.detail), answer);
      });
    });
  }

  function sendWaiting() {
    if (!timer) return;
    clearTimeout(timer);
    timer = 0;
    sendView(target());
  }

  // Gives the site's scripts the time to redirect and to name the page: some tenths of a second while the document
  // loads, and then at most ten while it does not say what it is.
  function wait(tenths) {
    clearTimeout(timer);
    timer = setTimeout(function () {
      var isLoaded = document.readyState === "complete";
      if (!tenths || (isLoaded && describe().isNamed)) sendWaiting();
      else wait(Math.min(tenths, isLoaded ? 10 : 30) - 1);
    }, 100);
  }

  // The address has changed without a page load.
  function moved(how) {
    var url = address();
    if (url === current) return;
    if (how === "replace" && withoutQuery(url) === withoutQuery(current)) {
      // The same page, with parameters removed or a filter changed.
      Object.keys(said).forEach(function (what) {
        if (said[what].url === current) said[what].url = url;
      });
    } else {
      // What is replaced while it waits was a redirect.
      if (how !== "replace") sendWaiting();
      wait(10);
    }
    current = url;
  }

  function watchHistory(how) {
    var original = history[how + "State"];
    history[how + "State"] = function () {
      var result = original.apply(this, arguments);
      moved(how);
      return result;
    };
  }

  window.plaudit = {
    view: function (options) {
      sendView(targetHere(options));
    },
    like: sendLike.bind(null, "like"),
    unlike: sendLike.bind(null, "unlike"),
    identify: function (newUser, newSignature) {
      user = newUser && "" + newUser;
      signature = newSignature;
    },
  };

  target();
  if (attribute("manual") !== null) return;

  // An element may have the id "navigation": only the real one has a current entry.
  if ((window.navigation || {}).currentEntry) {
    navigation.addEventListener("currententrychange", function (event) {
      moved(event.navigationType);
    });
  } else {
    watchHistory("push");
    watchHistory("replace");
    addEventListener("popstate", moved);
  }
  addEventListener("pagehide", sendWaiting);
  document.addEventListener("visibilitychange", sendWaiting);
  // A page that comes back from the back/forward cache is viewed once more.
  addEventListener("pageshow", function (event) {
    if (event.persisted) sendView(target());
  });
  wait(30);
})(window, document);
