"""What live pages show: for each kind of topic, how its fragments are made."""

from __future__ import annotations

from quaymaster.console.site import Site
from quaymaster.console.web.live import Fragments, Renderer, Topic
from quaymaster.console.web.page_calls import PageCall
from quaymaster.console.web.templating import Templates


def topic_of(call: PageCall) -> Topic | None:
    """Return the topic that a page asks for, within what its session may see; None: there is none of this kind."""
    match call.query("kind"):
        case "overview":
            return Topic("overview", call.scope)
        case _:
            return None


def renderer(site: Site, templates: Templates) -> Renderer:
    """Return what makes the fragments of topics."""

    async def render(topic: Topic) -> Fragments:
        assert topic.kind == "overview", "topics are made by topic_of"
        return {
            "overview": templates.macro(
                "parts.html", "overview_body", site.overview(topic.account), site.now_ms()
            )
        }

    return render
