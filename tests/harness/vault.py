"""A stand-in for Vault's transit engine: an HTTP server that really encrypts, and refuses as Vault does.

It is made after Vault's API documentation, and knows only what is asked of it here.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from harness.web_servers import WebServer, web_server

TOKEN = "hvs.token-of-the-tests"


class StandInVault:
    """Its keys by name, each a list of versions. `says`: a status and errors that it answers with instead."""

    def __init__(self, *names: str, mount: str = "transit", namespace: str | None = None) -> None:
        self.keys = {name: [os.urandom(32)] for name in names}
        self.min_decryption_version: dict[str, int] = {}
        self.token = TOKEN
        self.mount = mount
        self.namespace = namespace
        self.says: tuple[int, list[str]] | None = None
        self.answer: bytes | None = None
        """What it answers with instead of JSON."""
        self.asked: list[str] = []
        self.server: WebServer

    @asynccontextmanager
    async def running(self, host: str = "127.0.0.1") -> AsyncIterator[StandInVault]:
        """Serve until the block ends."""
        async with web_server(self._answer, host=host) as self.server:
            yield self

    @property
    def url(self) -> str:
        """Where it is."""
        return self.server.url

    def rotate(self, name: str) -> None:
        """Give a key a new version, which encrypts from now on."""
        self.keys[name].append(os.urandom(32))

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if self.answer is not None:
            return web.Response(body=self.answer)
        if self.says is not None:
            return _errors(*self.says)
        if request.headers.get("X-Vault-Token") != self.token:
            return _errors(403, ["permission denied"])
        if request.headers.get("X-Vault-Namespace") != self.namespace:
            return _errors(403, ["permission denied"])
        prefix = f"/v1/{self.mount}/"
        operation, _, name = request.path.removeprefix(prefix).partition("/")
        if not request.path.startswith(prefix):
            return _errors(404, ["no handler for route"])
        self.asked.append(f"{operation} {name}")
        if operation == "keys":
            return (
                _data({"name": name, "supports_encryption": True}) if name in self.keys else _errors(404, [])
            )
        given = json.loads(await request.read())
        return self._encrypt(name, given) if operation == "encrypt" else self._decrypt(name, given)

    def _encrypt(self, name: str, given: dict[str, str]) -> web.Response:
        # A token that may create keys has the engine make them.
        versions = self.keys.setdefault(name, [os.urandom(32)])
        nonce = os.urandom(12)
        bound_to = base64.b64decode(given.get("associated_data", ""))
        sealed = nonce + AESGCM(versions[-1]).encrypt(nonce, base64.b64decode(given["plaintext"]), bound_to)
        return _data({"ciphertext": f"vault:v{len(versions)}:{base64.b64encode(sealed).decode()}"})

    def _decrypt(self, name: str, given: dict[str, str]) -> web.Response:
        if name not in self.keys:
            return _errors(400, ["encryption key not found"])
        _, version, sealed = given["ciphertext"].split(":")
        number = int(version.removeprefix("v"))
        if number < self.min_decryption_version.get(name, 1):
            return _errors(400, ["ciphertext or signature version is disallowed by policy (too old)"])
        data = base64.b64decode(sealed)
        bound_to = base64.b64decode(given.get("associated_data", ""))
        try:
            plaintext = AESGCM(self.keys[name][number - 1]).decrypt(data[:12], data[12:], bound_to)
        except (InvalidTag, IndexError):
            return _errors(400, ["cipher: message authentication failed"])
        return _data({"plaintext": base64.b64encode(plaintext).decode()})


def _data(data: dict[str, object]) -> web.Response:
    return web.json_response({"data": data})


def _errors(status: int, errors: list[str]) -> web.Response:
    return web.json_response({"errors": errors}, status=status)
