// What every page does: keys, live values, charts, and a form that signs in with the token of a link.
import { drawCharts, redrawCharts } from "./charts.js";
import { followLive } from "./live.js";
import { listenForKeys } from "./keys.js";
import { showBodies } from "./bodies.js";

function signInByLink() {
  const form = document.getElementById("by-link");
  // As `quaymaster open` prints it; anything short is a place on the page.
  const token = /^#([\w.-]{20,})$/.exec(location.hash)?.[1];
  if (!form || !token) return;
  // The token works once; it must not stay in the history.
  history.replaceState(null, "", location.pathname);
  form.elements.token.value = token;
  form.submit();
}

function closeDialogs(event) {
  event.target.closest("[data-closes]")?.closest("dialog").close();
}

function openDialogs(event) {
  const opener = event.target.closest("[data-opens]");
  if (!opener) return;
  event.preventDefault();
  document.getElementById(opener.dataset.opens)?.showModal();
}

function copyText(event) {
  const button = event.target.closest("[data-copies]");
  if (!button) return;
  const text = document.getElementById(button.dataset.copies)?.textContent ?? "";
  navigator.clipboard?.writeText(text).then(() => { button.textContent = "Copied"; });
}

signInByLink();
listenForKeys();
showBodies();
drawCharts(document);
followLive((changed) => drawCharts(changed));
document.addEventListener("click", openDialogs);
document.addEventListener("click", closeDialogs);
document.addEventListener("click", copyText);
document.addEventListener("htmx:load", (event) => drawCharts(event.target));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawCharts);
