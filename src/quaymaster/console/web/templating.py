"""Pages from templates. All values are escaped; a value that a template names and does not get is an error."""

from __future__ import annotations

import hashlib
from functools import partial
from importlib import resources
from typing import Any, Final
from urllib.parse import quote

import jinja2

from quaymaster.console.web.path_names import path_of_name
from quaymaster.console.web.views import words
from quaymaster.console.web.views.depth_bar import depth_bar

STATIC: Final = resources.files("quaymaster.console.web") / "static"
NOTICES: Final = {
    "out": "You are signed out.",
    "everywhere": "All your sessions are ended.",
    "created": "The queue is created. It is in lists within 5 s.",
    "saved": "Saved.",
    "deleted": "The queue is deleted.",
    "purged": "All messages are deleted.",
    "sent": "The message is sent.",
    "message-deleted": "The message is deleted.",
    "redriven": "The redrive has begun.",
    "redrive-cancelled": "The redrive is cancelled.",
    "alert-created": "The alert is made. It is evaluated each minute.",
    "alert-deleted": "The alert is deleted.",
    "alert-tested": "The alert fires as a test, until it is evaluated next.",
    "destination-created": "The destination is made. A mail address is told to once its link is opened.",
    "destination-deleted": "The destination is deleted.",
    "destination-delivered": "The test was delivered.",
    "destination-retry": "The test was not taken. An alert would be tried again.",
    "destination-failed": "The test was refused. An alert would be lost.",
    "dashboard-deleted": "The dashboard is deleted.",
    "account-deleted": "The account is deleted.",
    "user-deleted": "The user is deleted.",
    "key-deleted": "The key is deleted.",
    "ended": "Your session has ended. Sign in again.",
}
"""What the page after a change says of it, by the parameter `done` of its URL."""
_HASH_CHARS: Final = 12


class Templates:
    """The console's templates, compiled when they are first used."""

    def __init__(self) -> None:
        self._environment = jinja2.Environment(
            loader=jinja2.PackageLoader("quaymaster.console.web"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        hashes = {file.name: file_hash(file.read_bytes()) for file in STATIC.iterdir() if file.is_file()}
        # With its hash in the URL a file can be kept by the browser for good.
        self._environment.globals.update(
            static=lambda name: f"/static/{name}?v={hashes[name]}",
            depth_bar=depth_bar,
            notices=NOTICES,
        )
        self._environment.filters.update(
            count=words.count,
            rate=words.rate,
            age=words.age,
            ago=words.ago,
            size=words.size,
            clock=words.clock,
            share=words.share,
            day=words.day,
            measure=words.measure,
            sentence=words.sentence,
            # Jinja's own leaves slashes, which end the part of a path that a name is.
            urlencode=partial(quote, safe=""),
            path_name=path_of_name,
        )

    def render(self, template: str, /, **values: Any) -> str:
        """Return a page."""
        return self._environment.get_template(template).render(**values)

    def macro(self, name: str, macro: str, *values: Any) -> str:
        """Return a part of a page, made by a macro of a template."""
        return str(getattr(self._environment.get_template(name).module, macro)(*values))


def file_hash(content: bytes) -> str:
    """Return what the URL of a file for browsers holds, so that it can be kept for good."""
    return hashlib.sha256(content).hexdigest()[:_HASH_CHARS]
