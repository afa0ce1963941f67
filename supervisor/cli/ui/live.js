// Keeps the page up to date: the server says that there is a newer version, and the parts that differ are replaced.
"use strict";
(() => {
  const RETRY_MS = 5000;
  const connection = document.getElementById("connection");
  let source = null, retry = 0, loading = false, again = false, version = document.body.dataset.version;

  function lost(text) {
    if (connection.textContent !== text) connection.textContent = text;
  }

  // What was opened stays open, and what did not change is not touched: a selection, a scroll position, the focus.
  function take(fresh) {
    const main = document.querySelector("main"), parts = [...main.children], news = [...fresh.querySelector("main").children];
    for (const open of main.querySelectorAll("details[open][id]")) {
      const same = fresh.getElementById(open.id);
      if (same) same.open = true;
    }
    const focused = document.activeElement && document.activeElement.closest("main [href], main details[id]");
    const at = focused && (focused.id ? "#" + CSS.escape(focused.id) + " > summary" : `a[href="${CSS.escape(focused.getAttribute("href"))}"]`);
    news.forEach((part, place) => {
      if (place >= parts.length) main.append(document.adoptNode(part));
      else if (parts[place].outerHTML !== part.outerHTML) parts[place].replaceWith(document.adoptNode(part));
    });
    parts.slice(news.length).forEach((part) => part.remove());
    if (at && !main.contains(document.activeElement)) main.querySelector(at)?.focus();
    document.title = fresh.title;
    document.getElementById("as-of").textContent = fresh.getElementById("as-of").textContent;
    version = document.body.dataset.version = fresh.body.dataset.version;
  }

  async function load() {
    if (loading) { again = true; return; }
    loading = true;
    try {
      const answer = await fetch(location.href, { cache: "no-store", redirect: "error" });
      if (answer.status === 401) { location.reload(); return; }
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (!fresh.getElementById("as-of")) throw new Error("another page");
      take(fresh);
      lost("");
    } catch (error) {
      lost(`Not up to date: the last answer failed (${error.message}).`);
    } finally {
      loading = false;
      if (again) { again = false; load(); }
    }
  }

  function connect() {
    clearTimeout(retry);
    if (source || document.hidden) return;
    source = new EventSource(document.body.dataset.changes);
    source.onmessage = (event) => { if (event.data !== version) load(); else lost(""); };
    source.onerror = () => {
      lost("Not up to date: supervise ui does not answer.");
      if (source && source.readyState === EventSource.CLOSED) {
        close();
        retry = setTimeout(connect, RETRY_MS);
      }
    };
  }

  function close() {
    if (source) source.close();
    source = null;
  }

  document.addEventListener("visibilitychange", () => (document.hidden ? close() : connect()));
  connect();
})();
