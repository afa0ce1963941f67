// What must hold of a page as it is laid out: returns a list of what does not. Contrast and labels are those of WCAG 2.2 (1.4.3, 1.1.1, 4.1.2).
(() => {
  const wrong = [];
  const named = (element) => `${element.tagName.toLowerCase()}${element.id ? "#" + element.id : ""} ${JSON.stringify((element.textContent || "").trim().slice(0, 40))}`;
  const visible = (element) => element.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true });

  // --- colours
  const rgb = (text) => { const [r, g, b, a = 1] = text.match(/[\d.]+/g).map(Number); return { r, g, b, a }; };
  const light = ({ r, g, b }) => {
    const [x, y, z] = [r, g, b].map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = rgb(getComputedStyle(at).backgroundColor);
      if (colour.a === 1) return colour;
      if (colour.a !== 0) wrong.push(`a half-transparent background: ${named(at)}`);
    }
    return { r: 255, g: 255, b: 255, a: 1 };
  };
  const texts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, element = node.parentElement;
    if (!node.data.trim() || ["SCRIPT", "STYLE", "NOSCRIPT"].includes(element.tagName) || !visible(element)) continue;
    texts.push(node);
    const [low, high] = [light(rgb(getComputedStyle(element).color)), light(ground(element))].sort((one, other) => one - other);
    const contrast = (high + 0.05) / (low + 0.05);
    if (contrast < 4.5) wrong.push(`contrast ${contrast.toFixed(2)}: ${named(element)}`);
  }

  // --- where texts are
  const boxes = texts.map((node) => {
    const range = document.createRange();
    range.selectNodeContents(node);
    return [node, [...range.getClientRects()].filter((box) => box.width > 0.5 && box.height > 0.5)];
  });
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width + 1) wrong.push(`the page is ${document.documentElement.scrollWidth} px wide, its window ${width} px`);
  const all = [];
  for (const [node, rows] of boxes) {
    const scrolls = node.parentElement.closest(".scroll, .tail");
    const shown = scrolls && scrolls.getBoundingClientRect();
    for (const box of rows) {
      if (shown && (box.bottom < shown.top + 3 || box.top > shown.bottom - 3)) continue;  // one scrolls to it
      if (!scrolls && (box.left < -1 || box.right > width + 1)) wrong.push(`outside of the window: ${named(node.parentElement)}`);
      all.push([box, node]);
    }
  }
  all.sort((one, other) => one[0].top - other[0].top);
  for (let i = 0; i < all.length; i++) {
    for (let j = i + 1; j < all.length && all[j][0].top < all[i][0].bottom - 3; j++) {
      const [a, one] = all[i], [b, other] = all[j];
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left), down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (one !== other && across > 1.5 && down > 3) wrong.push(`texts lie on each other: ${named(one.parentElement)} and ${named(other.parentElement)}`);
    }
  }
  for (const element of document.body.querySelectorAll("*")) {
    const style = getComputedStyle(element);
    if (visible(element) && ["hidden", "clip"].includes(style.overflowX) && element.scrollWidth > element.clientWidth + 1 && !(element instanceof SVGElement))
      wrong.push(`its text is cut: ${named(element)}`);
  }

  // --- names, for those who do not see the page
  const name = (element) => (element.getAttribute("aria-label") || element.textContent || "").trim();
  const every = (selector, holds, what) => document.querySelectorAll(selector).forEach((one) => holds(one) || wrong.push(`${what}: ${named(one)}`));
  if (!document.documentElement.lang) wrong.push("the page has no language");
  if (!document.title.trim()) wrong.push("the page has no title");
  if (document.querySelectorAll("h1").length !== 1) wrong.push(`${document.querySelectorAll("h1").length} headings of the first level`);
  if (document.querySelectorAll("main").length !== 1) wrong.push("not one main part");
  every("h1, h2, h3, a, button, summary, th", name, "without a name");
  every("svg:not(svg svg)", (one) => one.getAttribute("role") === "img" && one.getAttribute("aria-label"), "a drawing without words");
  every("img", (one) => one.hasAttribute("alt"), "a picture without words");
  every("input:not([type=hidden], [hidden]), select, textarea", (one) => one.labels.length && name(one.labels[0]), "a field without a label");
  every("section", (one) => one.ariaLabel || document.getElementById(one.getAttribute("aria-labelledby")), "a section without a heading");
  every("[tabindex]", (one) => one.tabIndex === 0 && name(one), "a place to tab to without a name");
  every("th", (one) => ["row", "col"].includes(one.scope), "a head of neither a row nor a column");
  const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
  if (new Set(ids).size !== ids.length) wrong.push("an id stands twice");
  const levels = [...document.querySelectorAll("h1,h2,h3,h4")].map((one) => Number(one.tagName[1]));
  levels.forEach((level, at) => at && level > levels[at - 1] + 1 && wrong.push(`a level of headings is left out before ${level}`));
  // a finger's target: 24 px (2.5.8), but for a link within a text
  every("button, summary, input:not([type=hidden], [hidden])", (one) => one.getBoundingClientRect().height >= 24 || !visible(one), "too small for a finger");
  return wrong;
})()
