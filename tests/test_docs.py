"""The documents say what is there: every name in them exists, what exists is documented, links lead somewhere."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import itertools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml  # with the AWS CLI
from harness.table_specs import all_specs

from pyspark_quaymaster.lag import METRICS as STREAM_METRICS
from quaymaster.cli.edge.layout import EdgeLayout
from quaymaster.cli.shared.profile_files import PROFILE_VARIABLE
from quaymaster.core.values.queues.attributes import ATTRIBUTES
from quaymaster.monitoring.metric_table import METRICS
from quaymaster.protocol.actions.table import QUERY_ACTIONS
from quaymaster.protocol.admin.openapi import make_document
from quaymaster.protocol.admin.operation import API as ADMIN_API
from quaymaster.protocol.admin.operations import OPERATIONS
from quaymaster.protocol.sqs.errors import WIRE_ERRORS
from quaymaster.protocol.usage.usage_blocks import BlockHeader
from quaymaster.protocol.usage.usage_records import UsageRecord
from quaymaster.settings import CONFIG_VARIABLE, Settings
from quaymaster_pipeline.archive.metrics import METRICS as ARCHIVE_METRICS
from quaymaster_pipeline.checks.status import METRICS as PIPELINE_METRICS
from quaymaster_pipeline.jobs.jobs import LayerBatch

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *DOCS.rglob("*.md"),
        *(page for name in ("deploy", "examples") for page in (ROOT / name).rglob("*.md")),
    ]
)
API = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
YAML = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
SETTING = re.compile(r"([a-z][a-z0-9_]*) = (.+)")
_OF_KEY_SERVICES = {
    "vault_url": "https://vault.example:8200",
    "vault_token_file": "token",
    "kms_key_id": "alias/quaymaster",
    "kms_credentials_file": "credentials",
}
NEEDED_BESIDE: dict[str, dict[str, Any]] = {
    "master_key_source": {"master_key": "A" * 43 + "=", **_OF_KEY_SERVICES},
    **dict.fromkeys(("kms", "vault_url", "kms_key_id"), _OF_KEY_SERVICES),
}
VARIABLES = {CONFIG_VARIABLE, PROFILE_VARIABLE}
SNAKE = re.compile(r"[a-z]+(?:_[a-z0-9]+)+")
TABLES = all_specs()
ADMIN_MEMBERS = {
    member
    for schema in make_document(OPERATIONS.values(), version="")["components"]["schemas"].values()
    for member in schema["properties"]
} | {member for one in OPERATIONS.values() for member in one.request.__struct_encode_fields__}
NOT_SETTINGS = {
    *("policy_name", "policy_ids", "trust_policy", "trusted_ids", "session_max_s", "sessions_generation"),
    "pyspark_quaymaster",
    *("register_views", "open_tables", "to_pyarrow_dataset", "to_pandas", "scan_delta"),
    *ADMIN_MEMBERS,
    # Ours: the words of the state, the admin API's fields, places in a result.
    *("in_flight", "body_bytes_max", "lag_records", "account_id", "visibility_timeout_ms"),
    *("next_token", "duration_s", "master_key_id", "previous_master_key_id", "keys_url"),
    *("key_id", "created_ms", "deletion_ms", "last_used_ms", "first_key", "last_key", "sealed_for_ms"),
    # Fields of the slow-request log line.
    *("queued_ms", "auth_ms", "parse_ms", "control_ms", "prepare_ms", "broker_ms", "render_ms"),
    # Of the clock, in the status of the admin API and of `cell status`.
    *("clock_ahead_ms", "clocks_ahead_ms"),
    # Labels of metrics.
    *("closed_for_others", "rejected_unsigned_full", "connection_refused"),
    # Columns of the pipeline's tables, and of its status.
    *("closed_until", "is_late"),
    # Columns of the Spark source and sink.
    *("message_id", "dedup_id", "sender_id", "string_value", "binary_value", "system_attributes", "md5_body"),
    "delay_seconds",
    # boto3's.
    *("read_timeout", "max_pool_connections", "visibility_timeout", "predefined_queues"),
    # Of the file that describes an edge.
    *EdgeLayout.__struct_fields__,
    # Prometheus's.
    *("process_cpu_seconds_total",),
}


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def code_lines(text: str) -> Iterator[str]:
    """Yield what a page shows as code: lines of blocks (continued ones joined) and spans."""
    for block in FENCE.findall(text):
        yield from block.replace("\\\n", " ").splitlines()
    for line in text.splitlines():
        if line.startswith("    "):
            yield line.strip()
    yield from CODE.findall(FENCE.sub("", text))


def settings_in(text: str) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of what a page writes as settings: `name = value`, the value as in TOML."""
    for code in CODE.findall(FENCE.sub("", text)):
        found = SETTING.fullmatch(code)
        if found is None:
            continue
        try:
            yield found[1], tomllib.loads(code)[found[1]]
        except tomllib.TOMLDecodeError:
            continue  # an equation in words


@pytest.fixture(scope="module")
def render_docs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("render_docs", ROOT / "scripts" / "render_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def commands(render_docs: ModuleType) -> dict[str, Any]:
    """All commands by their names; to make them takes half a second."""
    found: dict[str, Any] = render_docs.commands()
    return found


def test_generated_pages_are_what_the_code_says(render_docs: ModuleType) -> None:
    stale = [name_of(page) for page, text in render_docs.pages().items() if text_of(page) != text]

    assert stale == [], "run `make docs`"


def test_every_action_has_a_section_and_every_section_an_action() -> None:
    sections = set(re.findall(r"^## (\w+)$", API, re.MULTILINE))

    assert sections - {"Requests", "Limits", "Errors"} == set(QUERY_ACTIONS)


def test_error_codes_in_the_api_reference_exist_with_that_status() -> None:
    statuses: dict[str, set[int]] = {}
    for wire in WIRE_ERRORS.values():
        statuses.setdefault(wire.code, set()).add(wire.status)
        statuses.setdefault(wire.json_type.rpartition("#")[2], set()).add(wire.status)
    rows = re.findall(r"^\| (`\w[^|]*`) \| ([0-9, ]+) \|", API, re.MULTILINE)

    assert len(rows) >= 10
    for codes, status in rows:
        for code in CODE.findall(codes):
            assert statuses.get(code), f"{code} is in the API reference, but no error has it"
            assert statuses[code] <= {int(one) for one in status.split(",")}, code


def test_other_error_codes_in_the_api_reference_exist() -> None:
    known = {wire.code for wire in WIRE_ERRORS.values()} | {
        wire.code.rpartition(".")[2] for wire in WIRE_ERRORS.values()
    }
    sections = API[API.index("# Queues") :]

    for sentence in re.findall(r"Errors[^:]*: (.*?)(?:\n\n|$)", sections, re.DOTALL):
        for code in CODE.findall(sentence):
            if re.fullmatch(r"(AWS\.SimpleQueueService\.)?[A-Z]\w+", code):
                assert code in known or code.partition("=")[0] in ATTRIBUTES, code


def test_every_queue_attribute_has_a_row_in_the_reference() -> None:
    page = (DOCS / "reference" / "queue-attributes.md").read_text(encoding="utf-8")

    assert sorted(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == sorted(ATTRIBUTES)
    for name in re.findall(r"`(Approximate\w+)`", API):
        assert name in ATTRIBUTES, name


def test_every_request_of_the_admin_api_is_documented() -> None:
    page = (DOCS / "reference" / "admin.md").read_text(encoding="utf-8")
    served = {f"{one.method} {ADMIN_API}{one.path}" for one in OPERATIONS.values()}
    documented = re.findall(r"^\| `([A-Z]+ /admin/v1/[^`]+)`(?: †)? \|", page, re.MULTILINE)

    assert len(served) > 10
    assert sorted(documented) == sorted(served)


KINDS = {
    "timestamp[us, tz=UTC]": "timestamp",
    "date32[day]": "date",
    "list<item: int64>": "list of int64",
    "list<item: string>": "list of string",
    "list<item: binary>": "list of binary",
    "map<string, string>": "map of string to string",
    "map<string, struct<type: string, string_value: string, binary_value: binary>>": "map of string to struct",
}
"""Arrow's types as the page of tables has them, where they are not called the same."""


def test_every_column_of_every_table_is_described_with_its_type() -> None:
    page = (DOCS / "reference" / "tables.md").read_text(encoding="utf-8")

    described: dict[tuple[str, ...], dict[str, str]] = {}
    for heading, text in re.findall(r"^## (`[^\n]+`)$(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL):
        lines = re.findall(r"^\| (`[^|]+`) \| ([^|]+) \|", text, re.MULTILINE)
        pairs = [(name, kind) for names, kind in lines for name in CODE.findall(names)]
        assert len(pairs) == len(dict(pairs)), heading
        described[tuple(CODE.findall(heading))] = dict(pairs)

    assert sorted(name for names in described for name in names) == list(TABLES)
    for names, columns in described.items():
        for name in names:
            for field in TABLES[name].schema:
                kind = str(field.type).replace("decimal128", "decimal")
                assert columns.get(field.name) == KINDS.get(kind, kind), f"{field.name} of {name}"
        assert set(columns) == {column for name in names for column in TABLES[name].schema.names}


@functools.cache
def known_names() -> frozenset[str]:
    """Return what may be written as a setting is: settings, and names of other things."""
    measurements = {path.stem for path in (ROOT / "bench").glob("*.py")}
    of_pipeline = {path.stem for path in (ROOT / "src" / "quaymaster_pipeline").rglob("*.py")}
    of_pipeline |= {name.partition(".")[2] for name in TABLES}
    of_pipeline |= {name for spec in TABLES.values() for name in spec.schema.names}
    of_pipeline |= {field.name for field in dataclasses.fields(LayerBatch)}
    of_records = {*UsageRecord.__struct_fields__, *BlockHeader.__struct_fields__}
    return frozenset({*Settings.model_fields, *NOT_SETTINGS, *measurements, *of_pipeline, *of_records})


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_settings_named_in_a_page_exist(page: Path) -> None:
    text = text_of(page)
    known = known_names()

    for variable in re.findall(r"QUAYMASTER_[A-Z_]+", text):
        name = variable.removeprefix("QUAYMASTER_").lower()
        assert variable in VARIABLES or name in Settings.model_fields, variable
    for name in re.findall(r"--set ([a-z]\w+)=", text):
        assert name in Settings.model_fields, name
    for code in CODE.findall(FENCE.sub("", text)):
        name = code.partition(" = ")[0]
        is_setting = SNAKE.fullmatch(name) and not name.startswith(("quaymaster_", "test_"))
        if is_setting and page.parent.name != "decisions":
            assert name in known or "`" + name + "`" in text_of(DOCS / "reference" / "metrics.md"), name


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_values_of_settings_in_a_page_are_possible(page: Path) -> None:
    if page.parent.name == "decisions":
        return

    for name, value in settings_in(text_of(page)):
        assert name in Settings.model_fields, f"{name} = {value} is no setting"
        Settings(**{**NEEDED_BESIDE.get(name, {}), name: value})


def test_values_of_settings_are_found_in_a_page() -> None:
    page = 'On unless `encryption = "off"`, or `purge_interval_s = 0`; not `x=1`.\n'

    assert list(settings_in(page)) == [("encryption", "off"), ("purge_interval_s", 0)]
    assert {name for page in PAGES for name, _ in settings_in(text_of(page))} >= {"listen", "delete_queue"}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_metrics_named_in_a_page_exist(page: Path) -> None:
    for name in set(re.findall(r"\bquaymaster_[a-z_]+", text_of(page))) - {"quaymaster_pipeline"}:
        assert any(name in known for known in (METRICS, PIPELINE_METRICS, ARCHIVE_METRICS, STREAM_METRICS)), (
            name
        )


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_and_options_shown_in_a_page_exist(page: Path, commands: dict[str, Any]) -> None:
    words_of = [command.split() for command in commands]
    groups = {" ".join(words[:count]) for words in words_of for count in range(1, len(words))}

    for line in code_lines(text_of(page)):
        for shown in re.findall(r"(?:^|[\s(\"])(?:\S*/)?quaymaster ((?!\.)[a-z-][^\"#)]*)", line):
            words = list(itertools.takewhile(lambda word: word[0] not in "-[", shown.split()))
            name = _command_named(words, groups)
            if not words or name in groups - set(commands):
                continue
            assert name in commands, f"quaymaster {shown}"
            known = {flag for p in commands[name].params for flag in (*p.opts, *p.secondary_opts)}
            for flag in re.findall(r"(?<=\s)--?[a-z][a-z-]*", shown):
                assert flag in known, f"quaymaster {name} has no {flag}"


def _command_named(words: list[str], groups: set[str]) -> str:
    """Return the words that name a command: one more than those that name a group; the others are its arguments."""
    count = 0
    while count < len(words) and " ".join(words[: count + 1]) in groups:
        count += 1
    return " ".join(words[: count + 1])


def test_yaml_in_a_page_can_be_parsed() -> None:
    found = [text for page in PAGES for text in YAML.findall(page.read_text(encoding="utf-8"))]

    assert len(found) > 1
    for text in found:
        assert all(isinstance(document, dict | list) for document in yaml.safe_load_all(text)), text


def test_make_targets_in_documents_exist_and_all_are_documented() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", MAKEFILE, re.MULTILINE))
    named: set[str] = set()
    for page in PAGES:
        for line in code_lines(text_of(page)):
            named |= set(re.findall(r"(?:^|[\s;])make ([a-z-]+)", line))

    assert named <= targets
    assert targets - named == {"help"}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_inside_the_project_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(FENCE.sub("", text_of(page))):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        goal = (page.parent / path).resolve() if path else page
        assert goal.exists(), f"{target} does not exist"
        assert goal.is_relative_to(ROOT), f"{target} is outside the project"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text_of(goal)), re.MULTILINE)
            assert anchor in {_anchor(heading) for heading in headings}, target


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_modules_named_in_a_page_exist(page: Path) -> None:
    sources = ROOT / "src"
    packages = "|".join(path.name for path in (sources / "quaymaster").iterdir() if path.is_dir())

    for name in re.findall(
        rf"(?<![\w/.-])((?:quaymaster_pipeline|{packages})(?:/[a-z_]+)+)(?![\w/.*-])", text_of(page)
    ):
        path = sources / name if name.startswith("quaymaster_pipeline/") else sources / "quaymaster" / name
        is_module = path.with_suffix(".py").exists() or (path / "__init__.py").exists()
        assert is_module or (ROOT / "tests" / name).exists(), name


def test_every_document_can_be_reached_from_the_readme() -> None:
    reached = {ROOT / "README.md"}
    todo = [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        for target in LINK.findall(text_of(page)):
            goal = (page.parent / target.partition("#")[0]).resolve()
            if goal.suffix == ".md" and goal.exists() and goal not in reached:
                reached.add(goal)
                todo.append(goal)

    assert {name_of(page) for page in PAGES} == {name_of(page) for page in reached}


def test_decisions_are_numbered_dated_and_indexed() -> None:
    index = text_of(DOCS / "decisions" / "README.md")
    records = sorted((DOCS / "decisions").glob("[0-9]*.md"))

    assert [int(record.name[:4]) for record in records] == list(range(1, len(records) + 1))
    for number, record in enumerate(records, 1):
        text = text_of(record)
        title = text.splitlines()[0].removeprefix("# ")
        assert title.startswith(f"{number}. ")
        assert f"[{title}]({record.name})" in index
        assert re.search(r"^Status: \w+.* · Date: \d{4}-\d{2}-\d{2}$", text, re.MULTILINE), record.name
        for part in ("Context", "Decision", "What else we considered", "Consequences"):
            assert f"\n## {part}\n" in text, f"{record.name} has no {part}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_job_for_spark_imports_the_package_so_that_its_source_is_found(page: Path) -> None:
    """Without, a job of an environment that is not activated ends with an error that does not name the reason."""
    blocks = re.findall(r"```python\n(.*?)```", text_of(page), re.DOTALL)

    if any(re.search(r'spark\.read(Stream)?\.format\("quaymaster"\)', block) for block in blocks):
        assert any("import pyspark_quaymaster" in block for block in blocks)


@pytest.mark.parametrize("note", sorted((ROOT / "changes").glob("*")), ids=lambda note: note.name)
def test_a_change_note_is_one_sentence_of_a_known_kind(note: Path) -> None:
    text = text_of(note).strip()

    assert re.fullmatch(r"[a-z0-9-]+\.(feature|fix|removal|security|doc)\.md", note.name)
    assert text.endswith(".")
    assert "\n" not in text
    assert not re.search(r"[.!?] [A-Z]", text), "two sentences are two changes"


def _anchor(heading: str) -> str:
    kept = re.sub(r"[^\w\- ]", "", heading.lower())
    return kept.strip().replace(" ", "-")
