"""Reads the files of `deploy/`, and asks the program whether the commands and settings in them exist."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from quaymaster.settings import ENVIRONMENT_PREFIX, Settings, load_settings

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
TOOLS = Path(sys.executable).parent
TOOL_TIMEOUT_S = 120
USER = 10001
"""That containers run as."""
A_KEY = "A" * 43 + "="


def lint(*command: str | Path, **environment: str) -> str:
    """Run a linter of the test environment, which must find nothing; return what it prints."""
    program, *arguments = map(str, command)
    done = subprocess.run(
        [str(TOOLS / program) if "/" not in program else program, *arguments],
        capture_output=True,
        text=True,
        timeout=TOOL_TIMEOUT_S,
        env=os.environ | environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def documents(path: Path) -> list[dict[str, Any]]:
    """Return the documents of a YAML file."""
    return [found for found in yaml.safe_load_all(path.read_text(encoding="utf-8")) if found]


def program_or_skip(name: str, why: str) -> str:
    """Return a program of this machine; the test is skipped where there is none, with what is not tested."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: {why}")
    return found


@functools.cache
def _commands() -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location("render_docs", ROOT / "scripts" / "render_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, Any] = module.commands()
    return found


def check_command(words: Sequence[str]) -> str:
    """Return the name of the command in these words after `quaymaster`, its options and arguments parsed as it does."""
    for count in range(len(words), 0, -1):
        name = " ".join(words[:count])
        if name in _commands():
            _commands()[name].make_context(name, list(words[count:]))
            return name
    raise AssertionError(f"quaymaster {' '.join(words)}: there is no such command")


def check_settings(environment: Mapping[str, str]) -> Settings:
    """Return the settings that a process with this environment has; every variable of ours must be one."""
    ours = {name: value for name, value in environment.items() if name.startswith(ENVIRONMENT_PREFIX)}
    for name in ours:
        assert name.removeprefix(ENVIRONMENT_PREFIX).lower() in Settings.model_fields, name
    return load_settings(environment=ours)


def mounted(paths: Mapping[str, Path], text: str) -> str:
    """Return a text in which the paths of a container, and what is below them, are those of this machine."""
    longest_first = "|".join(re.escape(inside) for inside in sorted(paths, key=len, reverse=True))
    pattern = rf"(?<![\w./*}}-])({longest_first})(?![\w.-])"
    return re.sub(pattern, lambda found: str(paths[found[1]]), text) if paths else text


def instructions(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield (stage, instruction, arguments) of a Containerfile, continued lines joined, comments left out."""
    stage = ""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        name, _, arguments = line.strip().partition(" ")
        if name == "FROM":
            stage = arguments.partition(" AS ")[2]
        yield stage, name, arguments.strip()
