// Keeps the page up to date: asks every two seconds whether there is a newer one, and renews what differs. Without it the page reloads.
"use strict";
(() => {
  const EVERY_MS = 2000, PATIENCE_MS = 30000;  // where a disk hangs, no answer comes at all
  const connection = document.getElementById("connection");
  let timer = 0, asks = false;

  function say(text) {
    if (connection.textContent !== text) connection.textContent = text;
  }

  // What did not change is not touched: a selection, the focus, a scroll position, what was typed. What was opened or closed stays so.
  function renew(old, fresh) {
    if (old.isEqualNode(fresh)) return;
    if (old.nodeType !== Node.ELEMENT_NODE || old.nodeName !== fresh.nodeName || old.id !== fresh.id) return old.replaceWith(fresh);
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
    for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value && name !== "open") old.setAttribute(name, value);
    const news = [...fresh.childNodes], ids = new Set(news.map((node) => node.id));
    for (const child of [...old.children]) if (child.id && !ids.has(child.id)) child.remove();
    news.forEach((node, place) => {
      const known = node.id && [...old.children].find((child) => child.id === node.id), here = old.childNodes[place];
      if (known && known !== here) old.insertBefore(known, here);
      if (known) renew(known, node);
      else if (here && !here.id) renew(here, node);
      else old.insertBefore(node, here || null);
    });
    while (old.childNodes.length > news.length) old.lastChild.remove();
  }

  // The list shows at once what is typed, and asks for it: the address has the filter, as it has where there is no script.
  const name = document.getElementById("name");
  function filter() {
    const part = name ? name.value.trim().toLowerCase() : "";
    for (const row of document.querySelectorAll("[data-job]")) row.hidden = !row.dataset.job.toLowerCase().includes(part);
    const folded = document.getElementById("ended-jobs");
    if (folded && part) folded.open = true;
  }

  async function ask() {
    clearTimeout(timer);
    if (asks || document.hidden) return;
    asks = true;
    try {
      const known = { "If-None-Match": `"${document.body.dataset.version}"` };
      const answer = await fetch(location.href, { cache: "no-store", redirect: "error", headers: known, signal: AbortSignal.timeout(PATIENCE_MS) });
      if (answer.status === 401) return location.reload();
      if (answer.status !== 304) {
        if (!answer.ok) throw new Error(`status ${answer.status}`);
        const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
        if (!fresh.body.dataset.version) throw new Error("another page");
        renew(document.querySelector("main"), fresh.querySelector("main"));
        filter();
        document.title = fresh.title;
        document.body.dataset.version = fresh.body.dataset.version;
      }
      document.getElementById("as-of").textContent = answer.headers.get("x-as-of");
      say("");
    } catch (error) {
      say(error instanceof TypeError || error.name === "TimeoutError" ? "Not up to date: supervise ui does not answer." : `Not up to date: the last answer failed (${error.message}).`);
    }
    asks = false;
    timer = setTimeout(ask, EVERY_MS);
  }

  if (name) name.addEventListener("input", () => {
    filter();
    history.replaceState(null, "", `./?${new URLSearchParams(new FormData(name.form))}`);
    ask();
  });
  document.addEventListener("visibilitychange", ask);
  timer = setTimeout(ask, EVERY_MS);
})();
