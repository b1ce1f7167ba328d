"""Writes the reference pages that are made from the code: actions, admin API, attributes, conditions, settings, and
commands and metrics.

    python scripts/render_docs.py      (make docs)

`tests/test_docs.py` fails when a page is not what this gives.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, get_args

from quaymaster.cli.commands import whole_command
from quaymaster.core.access.conditions import Comparing, Quantifier
from quaymaster.core.access.keys import ALWAYS_THERE, THERE_FOR_ROLES, THERE_SOMETIMES
from quaymaster.core.access.operators import OPERATORS, Operator
from quaymaster.core.access.permissions import MONITORING_SERVICE
from quaymaster.core.values.queues.attributes import COMPUTED, SETTABLE, Attribute, QueueKinds
from quaymaster.monitoring.metric_table import METRICS
from quaymaster.protocol.actions.sqs_json import TARGET_PREFIXES
from quaymaster.protocol.actions.table import ACTIONS, Action, QueueState, Scope, UsageColumn
from quaymaster.protocol.admin.openapi import make_document
from quaymaster.protocol.admin.operation import API, AdminOperation
from quaymaster.protocol.admin.operations import OPERATIONS
from quaymaster.protocol.cloudwatch.json_form import TARGET_PREFIX
from quaymaster.protocol.cloudwatch.operations import SCRAPE, ResourceKind
from quaymaster.settings import settings_as_markdown

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"

CLI_HEAD = """\
# Command line

<!-- Made by `make docs`; the text of a command is its docstring. -->

**Which server.** `--endpoint-url` with credentials from `AWS_ACCESS_KEY_ID` and its kin; else `--data`, where a server
left `client.json` at its start, or `--profile`; else `AWS_ENDPOINT_URL_SQS` or `AWS_ENDPOINT_URL`; else the profile in
`QUAYMASTER_PROFILE`; else `QUAYMASTER_DATA_DIRECTORY`; else the profile in use; else `./quaymaster-data`. Commands on
accounts, keys, consumer groups and backups, `queue peek`, `queue policy` and `queue delete` use the
[admin API](admin.md), the others the SQS API. [Profiles](../guides/operations.md#profiles) are named ways to reach
servers and cells.

**Output.** Tables on a terminal, tab-separated lines in a pipe, JSON with `--json`. Notes go to standard
error; so do progress bars, on a terminal and without `--json`. Times are UTC.

**How it ends.** 0 done · 1 refused by the service, or `doctor` found a problem · 2 wrong command line, setting or
file · 3 no server there, or it cannot answer now · 130 interrupted. A failure is one line on standard error, a
wrong option or argument four lines, with the command's usage; with `--json` both are an object
`{"error": {"code", "message"}}`.

**Completion.** `quaymaster --install-completion`, for bash, zsh and fish. **Version.** `quaymaster --version`.

Every command but `serve` and `run` takes `--json`; those that speak to a server take `--profile NAME`, `--data DIR`
and `--endpoint-url URL` or `--admin-url URL`, which are not repeated below.
"""

ACTIONS_HEAD = """\
# Actions

<!-- Made by `make docs` from protocol/actions/table.py. -->

What each action of the SQS endpoint concerns, takes and costs. [API](api.md) and [Log API](log-api.md) say what it
does.

- **Target**: of `X-Amz-Target`. Actions of `AmazonSQS` can be asked for in the Query form as well, those of CloudWatch
  (`GraniteServiceVersion20100801`) in the Query form and in CBOR.
- **Category**: management actions are in the [audit log](../guides/audit.md); those that change something are
  there with what was asked and answered.
- **Concerns**: the account; alarms, dashboards or metrics; a queue, by its name or its URL; messages of a queue, in a
  log those of a consumer group; the source of a message move task.
- **Queue**: what the queue must be.
- **Permissions**: under the names of SQS; of CloudWatch's actions as `cloudwatch:` and their name. The owner of a queue
  has all of them, and other accounts have none. Permissions in italics cannot be given to other accounts.
- **FIFO rate**: whether the action costs the FIFO rate on FIFO queues. All others cost the standard rate; actions of
  STS and CloudWatch are free.
- **Usage**: columns of [usage](tables.md) that the action fills besides those of every request.

| Action | Target | Category | Concerns | Queue | Permissions | FIFO rate | Usage |
|---|---|---|---|---|---|---|---|
"""

_CONCERNS: dict[Scope, str] = {
    "account": "the account",
    "resources": "",  # `_MONITORED` says which
    "name": "a queue, by name",
    "queue": "a queue",
    "counted": "a queue",
    "consumed": "messages of a queue",
    "source": "the source of a task",
}
_MONITORED: dict[ResourceKind, str] = {
    "all": "metrics, or all of the account",
    "alarm": "alarms",
    "dashboard": "dashboards",
    "arn": "an alarm or a dashboard, by ARN",
}
_STATES: dict[QueueState, str] = {
    "any": "",
    "no group": "no consumer group",
    "log": "a log, or a group of one",
    "group of a log": "a group of a log",
}

METRICS_HEAD = """\
# Metrics

<!-- Made by `make docs` from monitoring/metric_table.py. -->

`GET /metrics` on the admin port, in Prometheus's text format. Counters start at zero with the process. Metrics of
queues are sums of all queues: a scrape costs the same at any number of them.
Of a server with [workers](../guides/scale.md), samples of each worker have the label `worker` besides.
Prometheus's own `process_*` metrics (CPU, memory, open files) are there too. What to watch is in the
[operations guide](../guides/operations.md#what-to-watch).

| Metric | Kind | Labels | Meaning |
|---|---|---|---|
"""


def render_actions() -> str:
    """Return the page of actions."""
    return ACTIONS_HEAD + "".join(_action_row(action) for action in ACTIONS.values())


def _action_row(action: Action) -> str:
    own = f"*{action.name}*" if action.owner_only else ""
    operation = action.operation
    concerns = _CONCERNS[action.scope] if operation is None else _MONITORED[operation.resource]
    permissions = ", ".join(own if name == action.name and own else name for name in action.permissions)
    if operation is not None:
        permissions = f"*{MONITORING_SERVICE}:{operation.asks_for}*"
    cells = (
        f"`{action.name}`",
        _target_of(action),
        action.category + (", reads only" if action.read_only else ""),
        concerns + ("; makes a group that is missing" if action.makes_group else ""),
        _STATES[action.queue_state],
        permissions + "".join(f"; {name} at each destination" for name in action.destination_permissions),
        "yes" if action.billing == "by queue" else "",
        ", ".join(f"`{name}`" for name in get_args(UsageColumn) if name in action.usage),
    )
    return f"| {' | '.join(cells)} |\n"


ADMIN_HEAD = """\
# Admin API

<!-- Made by `make docs` from protocol/admin. -->

What operators and owners of queues need and SQS has no action for. It takes and gives JSON, and every request under
`/admin/v1` is signed with SigV4 (service `sqs`), also where `authentication` is `open`. The `quaymaster` command is its
first client.

- **Admin port** (`admin`, by default 127.0.0.1:9325): all operations, for operators. Root keys of the default account
  may ask for everything, its [users](../guides/users-roles-policies.md) for the operations that their policies allow.
- **SQS port**: operations marked *owner*, for the caller's own account only. Root keys of the account may ask for all
  of them, its users for those that their policies allow. Anyone may ask for those without a permission.

Policies of users name an operation by its permission: `quaymaster:CreateAccount`. Its resource is
`arn:aws:quaymaster:REGION:ACCOUNT:NAME`, where NAME is what the path names, and empty otherwise. A user makes, rotates
and uses no root key of its own account, whatever its policies say.

Members in braces are in the path. The others are in the JSON body of a `POST`, and in the query of a `GET` or
`DELETE`. Required members are in bold; others have the value that is shown. `account_id` is by default the caller's. A
member that an operation does not have is refused. In `v1`, members are only added.

Times are milliseconds since 1970. A list with `next_token` has more: ask again with it. A failure is
`{"error": {"code", "message"}}` with the code and HTTP status that SQS would use, and with `field` where one member is
the reason.

The same as an OpenAPI 3.1 document: `GET /admin/v1/openapi.json`.

Each change that a key of this server signed, and each look marked †, leaves an
[audit event](../guides/audit.md), whatever came of it. A path that is no request of this API leaves none, nor does a
request that is refused because its key has too many connections. While the server stops, these are refused with 503.
"""

ADMIN_SECTIONS = {
    "Callers": ("openapi.json", "me", "sessions", "sign-in", "sign-in-links"),
    "The server": ("status", "pauses", "settings", "clock", "front-ends", "backup"),
    "Accounts and limits": ("accounts", "limits"),
    "Access keys": ("keys",),
    "Users, roles, web identities": ("users", "roles", "oidc"),
    "Keys for queues": ("kms-keys", "kms-aliases"),
    "Queues": ("queues", "policies"),
}
"""By the first part of the path. Operations of other parts have a section by themselves."""

ADMIN_TAIL = """
## Without a signature

For load balancers and Prometheus, on the admin port:

| Request | Answer |
|---|---|
| `GET /health/live` | 200 while the process answers at all |
| `GET /health/ready` | 200 when requests should be sent here; 404 while the process drains or takes no more \
connections: those it has are served; else 503; with the `reason`; `notices`, if there are any, are lines for \
operators |
| `GET /metrics` | [metrics](metrics.md) in Prometheus's text format |
| `GET /` | leads browsers to the [console](../guides/console.md): to `console_url`, or where a server on the same \
machine has one; 404 where its address is not known |
"""


def render_admin() -> str:
    """Return the page of the admin API."""
    document = make_document(OPERATIONS.values(), version="")
    named = {part for parts in ADMIN_SECTIONS.values() for part in parts}
    sections: dict[str, list[AdminOperation]] = {title: [] for title in ADMIN_SECTIONS}
    for operation in OPERATIONS.values():
        part = operation.parts[0]
        title = next((title for title, parts in ADMIN_SECTIONS.items() if part in parts), "")
        sections.setdefault(title if part in named else part.replace("-", " ").capitalize(), []).append(
            operation
        )
    text = ADMIN_HEAD
    for title, operations in sections.items():
        text += f"\n## {title}\n\n| Request | Permission | Members | Answer |\n|---|---|---|---|\n"
        text += "".join(_admin_row(operation, document) for operation in operations)
    schemas = document["components"]["schemas"]
    text += "\n## Members of answers\n\n| Answer | Member | Meaning |\n|---|---|---|\n"
    for name, schema in sorted(schemas.items()):
        for member, kind in schema["properties"].items():
            if "description" in kind and member != "behind":
                text += f"| {name} | `{member}` | {kind['description']} |\n"
    behind = schemas["AccountView"]["properties"]["behind"]["description"]
    text += f"| every change | `behind` | {behind} |\n"
    return text + ADMIN_TAIL


def _admin_row(operation: AdminOperation, document: dict[str, Any]) -> str:
    found = document["paths"][API + operation.path][operation.method.lower()]
    members = [_admin_member(each["name"], each["required"], each["schema"]) for each in found["parameters"]]
    content = found.get("requestBody", {}).get("content", {}).get("application/json", {})
    body = content.get("schema", {"properties": {}, "required": []})
    members += [
        _admin_member(name, name in body["required"], schema) for name, schema in body["properties"].items()
    ]
    answer = (
        found["responses"]["200"]["content"]["application/json"]["schema"].get("$ref", "").rpartition("/")[2]
    )
    owner = "owner" if operation.who == "owner" else ""
    mark = " †" if operation.is_recorded else ""
    permission = "" if operation.permission is None else f"`{operation.permission}`"
    answered = f" {answer}" if answer else ""
    return (
        f"| `{operation.method} {API}{operation.path}`{mark} | {', '.join(filter(None, (permission, owner)))} | "
        f"{'; '.join(member for member in members if member)} | {operation.says}{answered} |\n"
    )


def _admin_member(name: str, required: bool, schema: dict[str, Any]) -> str:
    default = schema.get("default")
    shown = f"**`{name}`**" if required else f"`{name}`"
    if default not in (None, "", False):
        shown += f" ({default})"
    return shown


def _target_of(action: Action) -> str:
    if action.operation is SCRAPE:
        return "`GET /monitoring/metrics`"
    if action.operation is not None:
        return TARGET_PREFIX.decode().rstrip(".")
    return (
        TARGET_PREFIXES[action.service].decode().rstrip(".") if action.service in TARGET_PREFIXES else "STS"
    )


QUEUE_ATTRIBUTES_HEAD = """\
# Queue attributes

<!-- Made by `make docs` from core/values/queues/attributes.py. -->

CreateQueue, SetQueueAttributes, `quaymaster queue` and the file of declared queues ([`queues_file`](settings.md)) take
them; GetQueueAttributes and `quaymaster queue show` return them. A consumer group has the attributes of its queue.

## Attributes of SQS

"""

QUEUE_ATTRIBUTE_COLUMNS = """\
| Attribute | Values | Default | Queues | Meaning |
|---|---|---|---|---|
"""

QUEUES_WORDS = {
    QueueKinds.STANDARD | QueueKinds.FIFO: "all",
    QueueKinds.FIFO: "FIFO",
    QueueKinds.LOG: "log-retained",
    QueueKinds.KMS: "all; the default with a `KmsMasterKeyId`",
    QueueKinds.FIFO | QueueKinds.EXACTLY_ONCE: "FIFO, `ExactlyOnce`",
}


def render_queue_attributes() -> str:
    """Return the page of queue attributes."""
    of_sqs = [_attribute_row(attribute) for attribute in SETTABLE.values() if not attribute.is_ours]
    ours = [_attribute_row(attribute) for attribute in SETTABLE.values() if attribute.is_ours]
    computed = [f"| `{attribute.name}` | {attribute.meaning} |" for attribute in COMPUTED.values()]
    return "\n".join(
        (
            QUEUE_ATTRIBUTES_HEAD + QUEUE_ATTRIBUTE_COLUMNS + "\n".join(of_sqs),
            "\n## Attributes that SQS does not have\n",
            "GetQueueAttributes returns them by name, and with `All` where somebody set them.\n",
            QUEUE_ATTRIBUTE_COLUMNS + "\n".join(ours),
            "\n## Attributes that cannot be set\n",
            "| Attribute | Meaning |\n|---|---|",
            *computed,
            "",
        )
    )


def _attribute_row(attribute: Attribute[Any]) -> str:
    values = attribute.values.words
    if attribute.values_of_log is not None:
        values += f"; log-retained {attribute.values_of_log.words}"
    meaning = attribute.meaning
    if attribute.fixed:
        meaning += ". Given at CreateQueue, never changed"
    if attribute.is_removable and attribute.values.words != "none":
        meaning += ". An empty value removes it"
    default = f"`{attribute.default}`" if attribute.default else ""
    return f"| `{attribute.name}` | {values} | {default} | {QUEUES_WORDS[attribute.queues]} | {meaning} |"


CONDITIONS_HEAD = """\
# Conditions of policies

<!-- Made by `make docs` from core/access/operators.py and core/access/keys.py. -->

The operators and keys of `Condition` in [queue policies](../guides/queue-policies.md), policies of
[users and roles](../guides/users-roles-policies.md), and trust policies. Names of operators are case-sensitive, names
of keys are not. All conditions of a statement must hold.

## Operators

The last four columns say what a condition is when the request does not have its key: with the operator alone, with
`IfExists` behind its name, and with `ForAllValues:` or `ForAnyValue:` in front of it.

| Operator | Values in the policy | True if the request's value \
| Key absent | `IfExists` | `ForAllValues:` | `ForAnyValue:` |
|---|---|---|---|---|---|---|
"""

CONDITIONS_MIDDLE = """
- `Null` takes `true` (the request does not have the key) or `false` (it has the key). It has no `IfExists`,
  `ForAllValues:` or `ForAnyValue:`.
- Where a request has several values of a key, `ForAllValues:` holds if each of them makes the condition true, and
  `ForAnyValue:` if one does.
- A value of the request that is no number, time or address makes `Numeric`, `Date` and `IpAddress` conditions false,
  and their negations true.
- With version `2012-10-17`, values of `String` and `Arn` operators may contain variables:
  `${aws:PrincipalAccount}`, `${aws:userid}` and `${aws:username}`. `${*}`, `${?}` and `${$}` are these characters.

## Keys

| Key | Value | Requests have it |
|---|---|---|
"""


def render_conditions() -> str:
    """Return the page of operators and keys of conditions."""
    operators = [
        f"| `{name}` | {operator.values} | {operator.holds_if} | {' | '.join(_if_absent(operator))} |\n"
        for name, operator in OPERATORS.items()
    ]
    keys = [
        f"| `{name}` | {meaning} | {presence} |\n"
        for there, presence in (
            (ALWAYS_THERE, "always"),
            (THERE_SOMETIMES, "where it exists"),
            (THERE_FOR_ROLES, "in trust policies, where it was given"),
        )
        for name, meaning in there.items()
    ]
    keys += [
        "| `ISSUER:CLAIM` | a claim of a web identity token, such as `tokens.example.com:sub` | in trust policies, "
        "for web identities |\n",
        "| other keys of `aws:` | | never; `policy check` warns of them |\n",
        "| keys of tags (`aws:PrincipalTag/`, `aws:RequestTag/`, `aws:ResourceTag/`, `aws:TagKeys`), and all others | "
        "| the policy is refused |\n",
    ]
    return CONDITIONS_HEAD + "".join(operators) + CONDITIONS_MIDDLE + "".join(keys)


def _if_absent(operator: Operator) -> list[str]:
    """Return what conditions with an operator are for a request without their key."""
    variants = (
        (False, Quantifier.NONE),
        (True, Quantifier.NONE),
        (False, Quantifier.ALL),
        (False, Quantifier.ANY),
    )
    return [
        str(
            Comparing("", lambda value, find: False, operator.is_negated, if_exists, quantifier).holds(
                lambda key: ()
            )
        ).lower()
        for if_exists, quantifier in variants
    ]


def render_metrics() -> str:
    """Return the metrics page."""
    rows = [
        f"| `{name}` | {metric.kind} | {', '.join(f'`{label}`' for label in metric.labels)} | {metric.help} |"
        for name, metric in METRICS.items()
    ]
    return METRICS_HEAD + "\n".join(rows) + "\n"


def commands() -> dict[str, Any]:
    """Return every command that does something, by its words: `queue create`, and so on."""
    found: dict[str, Any] = {}

    def walk(command: Any, words: str) -> None:
        if hasattr(command, "commands"):
            if command.invoke_without_command and words:
                found[words] = command
            for name, child in command.commands.items():
                walk(child, f"{words} {name}".strip())
        else:
            found[words] = command

    walk(whole_command(), "")
    return found


def render_cli() -> str:
    """Return the command line page."""
    parts = [CLI_HEAD]
    for words, command in commands().items():
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        options = [p for p in command.params if p.param_type_name == "option" and not _is_common(p)]
        usage = " ".join(["quaymaster", words, *(_usage(argument) for argument in arguments)])
        parts.append(f"\n## quaymaster {words}\n\n    {usage}{' [OPTIONS]' if options else ''}\n")
        parts.append(f"\n{inspect.cleandoc(command.help or '')}\n")
        rows = [(f"`{_metavar(argument)}`", argument.help or "") for argument in arguments]
        rows += [(f"`{_flags(option)}`", _help(option)) for option in options]
        if rows:
            parts.append("\n| | |\n|---|---|\n" + "".join(f"| {name} | {text} |\n" for name, text in rows))
    return "".join(parts)


def _is_common(option: Any) -> bool:
    return option.name in ("help", "as_json", "endpoint_url", "admin_url", "profile") or (
        option.name == "data" and "Data directory of the server" in option.help
    )


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _usage(argument: Any) -> str:
    text = _metavar(argument) + ("..." if argument.nargs == -1 else "")
    return text if argument.required else f"[{text}]"


def _flags(option: Any) -> str:
    names = sorted(option.opts, key=len) + list(option.secondary_opts)
    text = ", ".join(names)
    if option.is_flag:
        return text
    return f"{text} {option.metavar or 'N'}"


def _help(option: Any) -> str:
    text = option.help or ""
    default = option.default
    is_plain = (
        isinstance(default, int | float | str) and not isinstance(default, bool) and default not in ("", 0)
    )
    return f"{text} Default: {default:g}." if is_plain and not isinstance(default, str) else text


def pages() -> dict[Path, str]:
    """Return every generated page by its place."""
    return {
        REFERENCE / "actions.md": render_actions(),
        REFERENCE / "admin.md": render_admin(),
        REFERENCE / "policy-conditions.md": render_conditions(),
        REFERENCE / "settings.md": settings_as_markdown(),
        REFERENCE / "cli.md": render_cli(),
        REFERENCE / "metrics.md": render_metrics(),
        REFERENCE / "queue-attributes.md": render_queue_attributes(),
    }


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
