// Live values: the server sends HTML for elements by their ids. Hidden tabs disconnect.
const clock = () => `${new Date().toISOString().slice(11, 19)} UTC`;

export function followLive(onChanged) {
  const followed = document.querySelector("[data-live]");
  if (!followed) return;
  let source = null;

  function show(event) {
    const fragments = JSON.parse(event.data);
    for (const [id, html] of Object.entries(fragments)) {
      const element = document.getElementById(id);
      if (!element || element.contains(document.activeElement)) continue;
      element.innerHTML = html;
      element.classList.remove("changed");
      requestAnimationFrame(() => element.classList.add("changed"));
      onChanged(element);
    }
    const shown = document.getElementById("clock");
    if (shown) shown.textContent = clock();
    document.documentElement.dataset.live = "yes";
  }

  function connect() {
    source = new EventSource(`/admin/v1/live?${followed.dataset.live}`);
    source.addEventListener("message", show);
    source.addEventListener("ended", () => location.assign("/sign-in?done=ended"));
  }

  function followVisibility() {
    if (document.visibilityState === "hidden") {
      source?.close();
      source = null;
    } else if (!source) {
      connect();
    }
  }

  document.addEventListener("visibilitychange", followVisibility);
  addEventListener("pagehide", () => source?.close());
  followVisibility();
}
