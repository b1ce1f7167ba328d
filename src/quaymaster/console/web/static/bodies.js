// Bodies of messages as JSON, text or base64. What the server sent is kept, so that each form is made of it.
const originals = new WeakMap();

function asBase64(text) {
  const bytes = new TextEncoder().encode(text);
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
}

function asJSON(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

export function showBodies() {
  const chosen = document.getElementById("as");
  if (!chosen) return;
  for (const element of document.querySelectorAll("pre.body")) {
    if (!originals.has(element)) originals.set(element, element.textContent);
    const text = originals.get(element);
    element.textContent = { JSON: asJSON, base64: asBase64 }[chosen.value]?.(text) ?? text;
  }
  chosen.onchange = showBodies;
}
