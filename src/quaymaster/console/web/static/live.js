// Live values: the server sends HTML for elements by their ids. Hidden tabs disconnect.
const clock = () => `${new Date().toISOString().slice(11, 19)} UTC`;

export function followLive(onChanged) {
  let source = null;
  let topic = null;

  // Rows that were added to a list make its topic longer.
  function topicNow() {
    const more = [...document.querySelectorAll("[data-live-shown]")].at(-1);
    return more?.dataset.liveShown ?? document.querySelector("[data-live]")?.dataset.live ?? null;
  }

  function show(event) {
    const fragments = JSON.parse(event.data);
    for (const [id, html] of Object.entries(fragments)) {
      const element = document.getElementById(id);
      // What is used at this moment stays: a link with the focus, a table that was opened.
      if (!element || element.contains(document.activeElement) || element.querySelector("details[open]")) continue;
      element.innerHTML = html;
      element.classList.remove("changed");
      requestAnimationFrame(() => element.classList.add("changed"));
      onChanged(element);
    }
    const shown = document.getElementById("clock");
    if (shown) shown.textContent = clock();
    document.documentElement.dataset.following = "yes";
  }

  function connect() {
    topic = topicNow();
    if (topic === null) return;
    source = new EventSource(`/admin/v1/live?${topic}`);
    source.addEventListener("message", show);
    source.addEventListener("reload", () => location.reload());
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

  function followTopic() {
    if (!source || topicNow() === topic) return;
    source.close();
    connect();
  }

  document.addEventListener("visibilitychange", followVisibility);
  document.addEventListener("htmx:afterSettle", followTopic);
  addEventListener("pagehide", () => source?.close());
  followVisibility();
}
