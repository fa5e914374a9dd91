"""The types of the API's answers, and the OpenAPI document that is made of them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import msgspec

from daemon.status.board import Unready
from daemon.status.table_status import RunStatus, TableStatus
from daemon.sync.verbs import Verb


class Liveness(msgspec.Struct, frozen=True):
    alive: bool
    silent_s: float


class Readiness(msgspec.Struct, frozen=True):
    ready: bool
    share: str
    reasons: list[Unready]


class DaemonInfo(msgspec.Struct, frozen=True):
    """The process that answers. `state` is where its state database is; it stands by while another has the lease.

    `started_at` is ISO 8601, UTC.
    """

    version: str
    process: str
    host: str
    started_at: str
    state: str
    share: str
    stands_by: bool


class TableDetail(msgspec.Struct, frozen=True):
    """One table with its last syncs, the newest first.

    `read` has a line for each reader that reads the Iceberg table, as `dvsync show`; it is empty before the first sync.
    """

    status: TableStatus
    read: dict[str, str]
    runs: list[RunStatus]


class PauseRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `pause`, which may be left out. Without `for`, a duration such as `2h`, the pause has no end."""

    for_: str | None = msgspec.field(name="for", default=None)
    reason: str | None = None


decode_pause = msgspec.json.Decoder(PauseRequest).decode


class Accepted(msgspec.Struct, frozen=True):
    """The daemon does what was asked within seconds; `text` says what that is."""

    table: str
    verb: Verb
    text: str


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a request was refused, and what to do."""

    error: str
    hint: str | None = None


NAME = {
    "name": "name",
    "in": "path",
    "required": True,
    "schema": {"type": "string"},
    "description": "The table's name.",
}
VERBS = {
    Verb.SYNC: "Poll the table now, and sync it if Delta has a new version.",
    Verb.PAUSE: "Stop syncing the table until it is resumed, or for a time.",
    Verb.RESUME: "Try a parked, paused or retrying table again.",
    Verb.RESYNC: "Rewrite the Iceberg table from Delta's whole state.",
}
REFUSALS = {
    "401": "The bearer token is missing or wrong.",
    "403": "No token is configured, so the verbs are off.",
    "404": "There is no such table.",
    "409": "The table's state does not allow it; `hint` says what to do.",
    "503": "The state database cannot be written now.",
}


def make_document() -> dict[str, Any]:
    types = [Liveness, Readiness, DaemonInfo, list[TableStatus], TableDetail, Accepted, Problem, PauseRequest]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    alive, ready, daemon, tables, detail, accepted, problem, pause = schemas
    of_pause = {"requestBody": {"content": {"application/json": {"schema": pause}}}}
    table_paths: dict[str, Any] = {
        f"/api/tables/{{name}}/{verb}": {
            "post": {
                "operationId": verb.value,
                "summary": summary,
                "parameters": [NAME],
                **(of_pause if verb is Verb.PAUSE else {}),
                "security": [{"token": []}],
                "responses": {
                    "202": _answer("The daemon acts within seconds.", accepted),
                    **({"400": _answer("The body is wrong.", problem)} if verb is Verb.PAUSE else {}),
                    **{status: _answer(text, problem) for status, text in REFUSALS.items()},
                },
            }
        }
        for verb, summary in VERBS.items()
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "dvsync", "version": version("dvsync")},
        "paths": {
            "/livez": _get("Whether the daemon works.", {"200": ("It does.", alive), "503": ("It hangs.", alive)}),
            "/readyz": _get(
                "Whether all tables are in step.", {"200": ("They are.", ready), "503": ("See `reasons`.", ready)}
            ),
            "/api/daemon": _get("The process that answers.", {"200": ("Its version and state database.", daemon)}),
            "/api/tables": _get("All tables.", {"200": ("The configuration's order.", tables)}),
            "/api/tables/{name}": _get(
                "One table.", {"200": ("With its last syncs.", detail), "404": ("No such table.", problem)}, [NAME]
            ),
            **table_paths,
        },
        "components": {"schemas": components, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _get(
    summary: str, answers: dict[str, tuple[str, dict[str, Any]]], parameters: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    responses = {status: _answer(text, schema) for status, (text, schema) in answers.items()}
    return {"get": {"summary": summary, "parameters": list(parameters), "responses": responses}}


def _answer(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}
