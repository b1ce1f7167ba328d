// Keys: / searches, ? shows help, g and a letter go to a page. They do nothing while text is typed.
const PAGES = { o: "/", q: "/queues", a: "/alerts", d: "/dashboards" };
const AFTER_G_MS = 1500;

export function listenForKeys() {
  let gAt = -Infinity;
  document.addEventListener("keydown", (event) => {
    const typed = event.target.closest?.("input, textarea, select, [contenteditable]");
    if (typed || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.key === "/") {
      const search = document.querySelector("input[type=search]");
      event.preventDefault();
      if (search) search.focus();
      else location.assign("/queues#search");
    } else if (event.key === "?") {
      document.getElementById("help")?.showModal();
    } else if (event.key === "g") {
      gAt = event.timeStamp;
    } else if (event.timeStamp - gAt < AFTER_G_MS && PAGES[event.key]) {
      location.assign(PAGES[event.key]);
    }
  });
  if (location.hash === "#search") document.querySelector("input[type=search]")?.focus();
}
