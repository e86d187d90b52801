// Of every piece of text that can be seen: what it says, and its contrast (WCAG 2) on the worst ground behind it.
() => {
  const parse = (text) => {
    const [r, g, b, a = 1] = text.match(/[\d.]+/g).map(Number);
    return { r, g, b, a };
  };
  const over = (top, under) => {
    const mixed = ["r", "g", "b"].map((part) => [part, top.a * top[part] + (1 - top.a) * under[part]]);
    return Object.fromEntries(mixed);
  };
  const light = ({ r, g, b }) => {
    const [red, green, blue] = [r, g, b].map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const ratio = (one, two) => {
    const [low, high] = [light(one), light(two)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const ground = (node) => {
    if (!node) return parse(getComputedStyle(document.body).backgroundColor);
    const own = parse(getComputedStyle(node).backgroundColor);
    return own.a === 1 ? own : over(own, ground(node.parentElement));
  };
  const allowed = document.querySelector("#curve .allowed"); // drawn behind names in the curve
  const wash = allowed && parse(getComputedStyle(allowed).fill);
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const [text, at] = [walker.currentNode.textContent.trim(), walker.currentNode.parentElement];
    if (!text || !at.checkVisibility() || at.closest(".unseen, :disabled, script, style, noscript, option")) continue;
    const [style, under] = [getComputedStyle(at), ground(at)];
    const drawn = at instanceof SVGElement;
    const ink = parse(drawn ? style.fill : style.color);
    const grounds = drawn && wash ? [under, over(wash, under)] : [under];
    found.push([text, Math.min(...grounds.map((one) => ratio(ink, one)))]);
  }
  return found;
}
