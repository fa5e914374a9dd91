"""Read, resolve and check `config.yaml` and the `DVSYNC_…` variables. No other module reads them.

Each table gets the defaults, and relative paths begin at the file's folder. All faults are reported at once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import reduce
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from daemon.config.document import read_document, read_sections
from daemon.config.settings import (
    DefaultsSettings,
    HealthSettings,
    HookSettings,
    Settings,
    StateSettings,
    TableSettings,
    read_variables,
)
from daemon.config.value_types import ENV_PREFIX, SQLITE_FILE, URL, Reference, Secret, is_rest, with_dotted_auth
from daemon.errors import ConfigInvalid
from daemon.locations import canonical, normalize_location, vacuum_cleans

# The sections that are lists. Of these, a faulty entry is left out alone.
LISTS = ("tables", "hooks")

Section = TypeVar("Section", bound=BaseModel)


def load_settings(path: Path, text: str | None = None) -> Settings:
    """Read the file and the environment. If `text` is given, it is used instead of the file, which need not exist yet.

    Raises ConfigInvalid with all faults: one line each, with its place (`tables[2].poll_interval: …`).
    """
    readable, faults = _read(path, *read_document(path, text))
    if faults or readable is None:
        raise _invalid(path, faults)
    return readable.settings


def load_sections(path: Path, *sections: str) -> tuple[Settings, bool]:
    """Return settings of which these sections are valid, and whether all others are, too.

    Raises ConfigInvalid with all faults if one of them concerns these sections, or may.
    """
    is_whole = True
    try:
        document, faults = read_document(path, None)
    except ConfigInvalid:
        # A daemon keeps its former configuration, and its container must stay healthy.
        found = read_sections(path, *sections)
        if found is None:
            raise
        is_whole, document, faults = False, found, []
    readable, faults = _read(path, document, faults)
    places = [re.split(r"__|\W", fault.removeprefix(ENV_PREFIX), maxsplit=1)[0].lower() for fault in faults]
    # An unknown key may be a section that is spelled wrong.
    unsure = [place for place in places if place not in Settings.model_fields]
    about = [*set(sections).intersection(places), *(place for place in unsure if get_close_matches(place, sections))]
    if readable is None or about:
        raise _invalid(path, faults)
    return readable.settings, is_whole and not faults


def _invalid(path: Path, faults: Sequence[str]) -> ConfigInvalid:
    where = f"{path} or the {ENV_PREFIX}… variables" if any(_variables()) else path
    return ConfigInvalid(
        "\n".join(faults),
        hint=f"Correct {where}, then run `dvsync config check`. A running daemon keeps its former configuration, "
        "and its page shows the tables.",
    )


def _read(path: Path, document: dict[str, Any], faults: list[str]) -> tuple[_Readable | None, list[str]]:
    """Return what is valid in the document and the environment, if anything is, and all faults."""
    # Pydantic would take `Health` for health, and `_env_file` for an option of its own.
    known = Settings.model_fields
    faults += (_unknown_key(str(key), str(key).lower(), known) for key in document if key not in known)
    document = {key: value for key, value in document.items() if key in known}
    found, invalid = read_variables()
    faults += (f"{section}: the value of {name} (environment) is not JSON" for section, name in invalid)
    document = _merged(_with_dotted_auths(document), _with_dotted_auths(found))
    faults += (f"{name} (environment): no such setting" for name, section in _variables() if section not in known)
    readable = _validate(document, faults)
    if readable is None:
        return None, faults
    readable = readable.dereferenced(path.absolute().parent, faults).resolved(path.absolute().parent)
    faults += [
        *_property_faults(readable),
        *_health_faults(readable.settings.health),
        *_missing_extra(readable),
        *_catalog_faults(readable),
        *_clashes(readable),
        *_places_that_vacuum_cleans(readable),
    ]
    return readable, faults


@dataclass(frozen=True)
class _Readable:
    """The sections and tables that are valid by themselves. The checks across sections run on them."""

    settings: Settings
    places: Mapping[str, Sequence[str]]  # by list section, where each of its entries is in the file: `tables[2]`
    left_out: frozenset[str]  # invalid keys and unread references, such as `health.port`; `settings` has defaults
    other_catalogs: tuple[tuple[str, str], ...] = ()  # place and `catalog` of each table that is invalid by itself

    def tables(self) -> Iterator[tuple[str, TableSettings]]:
        return zip(self.places["tables"], self.settings.tables, strict=True)

    def dereferenced(self, folder: Path, faults: list[str]) -> _Readable:
        """Replace each reference by its text. A key whose reference cannot be read is left out, and is a fault."""
        settings, references = self.settings, _References(folder, faults)
        update: dict[str, Any] = {
            "storage": references.properties("storage", settings.storage),
            "catalogs": {
                name: references.properties(f"catalogs.{name}", each) for name, each in settings.catalogs.items()
            },
            "spark": settings.spark.model_copy(
                update={"conf": references.properties("spark.conf", settings.spark.conf)}
            ),
            "state": StateSettings(),
            "health": settings.health.model_copy(
                update={"token": settings.health.token and references.text("health.token", settings.health.token)}
            ),
            "hooks": tuple(map(references.hook, self.places["hooks"], settings.hooks)),
        }
        url = references.text("state.url", settings.state.url)
        if url is not None and not URL.match(url):
            faults.append(f"state.url: the text {_where(settings.state.url)} is not an SQLAlchemy URL")
        elif url is not None:
            update["state"] = settings.state.model_copy(update={"url": url})
        left_out = self.left_out | references.unread
        return replace(self, settings=settings.model_copy(update=update), left_out=left_out)

    def resolved(self, folder: Path) -> _Readable:
        """Apply the defaults to each table, and take relative paths from `folder`."""
        settings = self.settings
        catalogs = {name: _anchored_catalog(properties, folder) for name, properties in settings.catalogs.items()}
        state = settings.state.model_copy(update={"url": _anchored_sqlite(settings.state.url, folder)})
        tables = tuple(_resolved_table(table, settings, folder) for table in settings.tables)
        return replace(
            self,
            settings=settings.model_copy(update={"state": state, "catalogs": catalogs, "tables": tables}),
        )


def _with_dotted_auths(document: Mapping[str, Any]) -> Mapping[str, Any]:
    catalogs = document.get("catalogs")
    if not isinstance(catalogs, dict):
        return document
    return {**document, "catalogs": {name: with_dotted_auth(each) for name, each in catalogs.items()}}


def _merged(document: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with the values of the variables, which override those of the file."""
    merged = dict(document)
    for key, value in variables.items():
        below = merged.get(key)
        merged[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _validate(document: dict[str, Any], faults: list[str]) -> _Readable | None:
    """Validate the document. After faults, validate it again without the faulty parts, to check the rest as well."""
    left_out: frozenset[str] = frozenset()
    entries_out: dict[str, set[int]] = {section: set() for section in LISTS}
    try:
        settings = Settings(**document)
    except ValidationError as error:
        places: list[tuple[int | str, ...]] = []
        for fault in error.errors(include_url=False):
            if fault["type"] == "default_factory_not_called":
                continue  # `name` could not be derived from a faulty `target`; the target has its own fault.
            faults.append(_fault_line(fault))
            match fault["loc"]:
                case (str(section), int(index), *_) if section in entries_out:
                    entries_out[section].add(index)
                case place:
                    places.append(place)
        remaining, left_out = _without(document, places)
        for section, out in entries_out.items():
            if out:
                remaining[section] = [each for i, each in enumerate(document[section]) if i not in out]
        try:
            settings = Settings(**remaining)
        except ValidationError:
            return None  # A key that is no text cannot be left out.
    places_in = {
        section: [f"{section}[{i}]" for i in range(len(getattr(settings, section)) + len(out)) if i not in out]
        for section, out in entries_out.items()
    }
    other_catalogs = [
        (f"tables[{i}]", each["catalog"])
        for i, each in enumerate(document["tables"] if entries_out["tables"] else ())
        if i in entries_out["tables"] and isinstance(each, dict) and isinstance(each.get("catalog"), str)
    ]
    return _Readable(settings, places_in, left_out, tuple(other_catalogs))


def _without(
    document: dict[str, Any], places: Iterable[tuple[int | str, ...]]
) -> tuple[dict[str, Any], frozenset[str]]:
    """Return a copy of the document without these places, and the keys that it lacks.

    If a place is missing, or inside a list, the key around it is left out.
    """
    paths = set()
    for place in places:
        value: Any = document
        path: list[str] = []
        for part in place:
            if not isinstance(value, dict) or part not in value:
                break
            path.append(str(part))
            value = value[part]
        paths.add(tuple(path))
    remaining = deepcopy(document)
    for *outer, key in filter(None, paths):
        holder = reduce(lambda each, part: each.get(part, {}), outer, remaining)
        holder.pop(key, None)
    return remaining, frozenset(".".join(path) for path in paths)


# What a value is, by the type of Pydantic's error: its own words are those of Python.
PLAIN_WORDS = {
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "not a whole number"),
    **dict.fromkeys(("float_parsing", "float_type"), "not a number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "neither true nor false"),
    **dict.fromkeys(("list_type", "tuple_type", "frozen_set_type"), "not a list"),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type", "model_attributes_type"), "not a section of keys"),
    "string_type": "not a text",
}


WHOLE_WORDS = {
    "missing": "is missing",
    "invalid_key": "has a key that is not a text. YAML reads on, off, yes and no as true and false: write it in quotes",
    "byte_size": "is not a size: write a number and its unit, such as 64MiB",
}


def _fault_line(fault: ErrorDetails) -> str:
    kind, parts = fault["type"], fault["loc"]
    if parts[-1] == "[key]":
        kind, parts = "invalid_key", parts[:-1]
    if kind == "invalid_key":
        # The place of the key itself would read like that of a list's element.
        parts = parts[:-1]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).removeprefix(".")
    match kind:
        case "extra_forbidden":
            return _unknown_key(place, str(fault["loc"][-1]), _keys_beside(fault["loc"]))
        case "value_error":
            return f"{place}: {fault['ctx']['error']}"
        case "string_pattern_mismatch" if fault["loc"][-1] == "url":
            return f"{place}: is not an SQLAlchemy URL, such as sqlite:///var/dvsync.db"
        case _ if kind in WHOLE_WORDS:
            return f"{place}: {WHOLE_WORDS[kind]}"
        case _:
            # Values of these places may be secrets, so the message does not quote them.
            is_secret = fault["loc"][0] in SECRET_SECTIONS or fault["loc"] == ("health", "token")
            value = repr(fault["input"]) if not is_secret and isinstance(fault["input"], str | int | float) else ""
            if words := PLAIN_WORDS.get(kind):
                return f"{place}: is {words}" + (f": {value}" if value else "")
            return f"{place}: {fault['msg'][0].lower()}{fault['msg'][1:]}" + (f", not {value}" if value else "")


def _unknown_key(place: str, key: str, known: Iterable[str]) -> str:
    near = get_close_matches(key, [*known], n=1)
    return f"{place}: unknown key" + (f", did you mean {near[0]}?" if near else "")


def _keys_beside(place: tuple[int | str, ...]) -> list[str]:
    """Return the keys that may stand where `place` does."""
    model: Any = Settings
    for part in place[:-1]:
        if isinstance(part, str):
            fields = {field.alias or name: field for name, field in model.model_fields.items()}
            model = fields[part].annotation
            model = next((each for each in get_args(model) if isinstance(each, type)), model)
    return [field.alias or name for name, field in model.model_fields.items()]


def _variables() -> Iterator[tuple[str, str]]:
    """Yield the names of dvsync's variables in the environment, and their sections, known or not."""
    for name in sorted(os.environ):
        section, nested, _ = name.upper().removeprefix(ENV_PREFIX).lower().partition("__")
        # Another name without `__` may come from Kubernetes, for a service called dvsync: DVSYNC_PORT_8080_TCP.
        if name.upper().startswith(ENV_PREFIX) and (nested or section in Settings.model_fields):
            yield name, section


@dataclass(frozen=True)
class _References:
    """Reads the text behind `{file: PATH}` and `{env: NAME}`. A reference without a text is added to `faults`."""

    folder: Path
    faults: list[str]
    unread: set[str] = field(default_factory=set)

    def properties(self, place: str, properties: Mapping[str, str]) -> dict[str, str]:
        found = {key: self.text(f"{place}.{key}", value) for key, value in properties.items()}
        return {key: value for key, value in found.items() if value is not None}

    def hook(self, place: str, hook: HookSettings) -> HookSettings:
        url = self.address(f"{place}.url", hook.url)
        # Many services put a secret into the path of a webhook.
        return hook.model_copy(update={"url": url and Secret(url), "headers": self.headers(place, hook.headers)})

    # Addresses and headers are checked here, because the error of the HTTP client would show the text in the log.

    def address(self, place: str, value: str | None) -> str | None:
        url = value and self.text(place, value)
        if url is not None and not WEBHOOK.fullmatch(url):
            self.faults.append(f"{place}: is not an http or https address in ASCII, without user and password")
        return url

    def headers(self, place: str, values: Mapping[str, str]) -> dict[str, str]:
        headers = self.properties(f"{place}.headers", values)
        for name, value in headers.items():
            if not HEADER.fullmatch(name) or not SENT_TEXT.fullmatch(value):
                self.faults.append(f"{place}.headers.{name}: only printable ASCII characters can be sent")
        return headers

    def text(self, place: str, value: str) -> str | None:
        if not isinstance(value, Reference):
            return value
        kind, _, name = value.partition(":")
        try:
            text = (self.folder / Path(name).expanduser()).read_text("utf-8") if kind == "file" else os.environ[name]
        except (OSError, KeyError, ValueError, RuntimeError) as error:
            reason = "is not set" if isinstance(error, KeyError) else "is not a UTF-8 text file"
            if isinstance(error, OSError):
                reason = (error.strerror or str(error)).lower()
        else:
            text = text.rstrip("\r\n")
            if text:
                return Secret(text)
            reason = "is empty"
        self.faults.append(f"{place}: {name} ({_KINDS[kind]}): {reason}")
        self.unread.add(place)
        return None


_KINDS = {"file": "file", "env": "environment"}


def _where(reference: str) -> str:
    kind, _, name = reference.partition(":")
    return f"in {name} ({_KINDS[kind]})"


def _resolved_table(table: TableSettings, settings: Settings, folder: Path) -> TableSettings:
    inherited = {
        field: getattr(settings.defaults, field)
        for field in DefaultsSettings.model_fields
        if field not in table.model_fields_set
    }
    resolved = table.model_copy(
        update={
            **inherited,
            "pipeline": _overridden(settings.pipeline, table.pipeline),
            "maintenance": _overridden(settings.maintenance, table.maintenance),
            "verify": _overridden(settings.verify, table.verify),
        }
    )
    catalog = resolved.catalog or (next(iter(settings.catalogs)) if len(settings.catalogs) == 1 else "")
    return resolved.model_copy(
        update={
            "catalog": catalog,
            "source": _anchored(table.source, folder),
            "location": table.location and _anchored(table.location, folder),
            "delete_files_location": table.delete_files_location and _anchored(table.delete_files_location, folder),
        }
    )


def _overridden(shared: Section, own: Section) -> Section:
    return shared.model_copy(update={field: getattr(own, field) for field in own.model_fields_set})


def _anchored(location: str, folder: Path) -> str:
    if "://" not in location:
        location = os.path.normpath(folder / Path(location.removeprefix("file:")).expanduser())
    return normalize_location(location)


def _anchored_sqlite(url: str, folder: Path) -> str:
    match = SQLITE_FILE.match(url)
    if match is None:
        return url
    return type(url)(f"{match['scheme']}{os.path.normpath(folder / match['path'])}{match['query']}")


def _anchored_catalog(properties: dict[str, str], folder: Path) -> dict[str, str]:
    """Make the paths of an SQL catalog absolute. The warehouse of another catalog may be a name, not a path."""
    uri, warehouse = properties.get("uri", ""), properties.get("warehouse")
    anchored = {"uri": _anchored_sqlite(uri, folder)} if uri else {}
    if warehouse and (properties.get("type") == "sql" or SQLITE_FILE.match(uri)):
        anchored["warehouse"] = type(warehouse)(_anchored(warehouse, folder))
    return {**properties, **anchored}


# PyIceberg's catalog types. Importing PyIceberg to check a configuration would be slow; a test compares the two lists.
CATALOG_TYPES = ("rest", "hive", "glue", "dynamodb", "sql", "in-memory", "bigquery")

# The kinds of `auth` of a REST catalog, and what each needs. A test compares them with PyIceberg's.
AUTH_NEEDS = {
    "noop": (),
    "basic": ("basic.username", "basic.password"),
    "oauth2": ("oauth2.client_id", "oauth2.client_secret", "oauth2.token_url"),
    "google": (),
    "entra": (),
    "custom": ("impl",),
}
AUTH_NUMBERS = ("auth.oauth2.refresh_margin", "auth.oauth2.expires_in")

# Faults in these sections do not quote the value.
SECRET_SECTIONS = ("catalogs", "storage", "spark", "state", "hooks")

# Without a user and password, which Python's HTTP client takes for a part of the host.
WEBHOOK = re.compile(r"https?://[!-.0-?A-~]+(/[!-~]*)?")
HEADER = re.compile(r"[\w-]+", re.ASCII)
SENT_TEXT = re.compile(r"[ -~]*")
# A shorter token could be guessed.
TOKEN_MIN = 16

# The common catalog properties without a prefix, to suggest corrections. PyIceberg has many others.
COMMON_PROPERTIES = ("type", "uri", "warehouse", "credential", "token", "py-catalog-impl")


# PyIceberg's properties of stores. A test compares them with PyIceberg's own.
FILE_PROPERTIES = tuple(
    f"{store}.{key}"
    for store, keys in {
        "client": "profile-name region access-key-id secret-access-key session-token role-arn role-session-name",
        "s3": "profile-name anonymous endpoint access-key-id secret-access-key session-token region resolve-region "
        "proxy-uri connect-timeout request-timeout signer signer.uri signer.endpoint role-arn role-session-name "
        "force-virtual-addressing retry-strategy-impl server-side-encryption sse-kms-key-id",
        "hdfs": "host port user kerberos_ticket",
        "adls": "connection-string credential account-name account-key sas-token tenant-id client-id client-secret "
        "account-host blob-storage-authority dfs-storage-authority blob-storage-scheme dfs-storage-scheme token anon",
        "gcs": "oauth2.token oauth2.token-expires-at project-id access consistency cache-timeout requester-pays "
        "session-kwargs service.host default-bucket-location version-aware",
        "hf": "endpoint token",
    }.items()
    for key in keys.split()
)
DATABASES = ("sqlite", "postgresql", "mysql", "mariadb", "oracle", "mssql")


def _property_faults(readable: _Readable) -> Iterator[str]:
    """Find faults in the properties of catalogs, files and databases without connecting to them."""
    yield from _misspelt_database("state.url", readable.settings.state.url)
    for key in readable.settings.storage:
        yield from _misspelt(f"storage.{key}", key, FILE_PROPERTIES)
    for name, properties in readable.settings.catalogs.items():
        kind = properties.get("type", "").lower()
        if kind and kind not in CATALOG_TYPES:
            yield f"catalogs.{name}.type: PyIceberg has no such catalog type; it has {', '.join(CATALOG_TYPES)}"
        for key in properties:
            near = FILE_PROPERTIES if "." in key else COMMON_PROPERTIES
            yield from _misspelt(f"catalogs.{name}.{key}", key, near)
        given = {*properties, *(key.removeprefix(f"catalogs.{name}.") for key in readable.left_out)}
        yield from _auth_faults(f"catalogs.{name}", properties, given)
        if kind == "rest" and not re.match(r"https?://", properties.get("uri", "https://"), re.IGNORECASE):
            yield f"catalogs.{name}.uri: does not begin with http:// or https://"
        if kind != "sql":
            continue
        yield from _misspelt_database(f"catalogs.{name}.uri", properties.get("uri", ""))
        if "uri" not in given:
            yield f"catalogs.{name}.uri: is missing; give the SQLAlchemy URL of the catalog's database"
        homeless = next((each for _, each in readable.tables() if each.catalog == name and not each.location), None)
        if "warehouse" not in given and homeless is not None:
            yield f"catalogs.{name}.warehouse: is missing, and {homeless.name} has no location of its own"


def _auth_faults(catalog: str, properties: Mapping[str, str], given: Container[str]) -> Iterator[str]:
    """Find faults in a catalog's section `auth`. `given` are its properties and those that were left out as faulty."""
    own = {key: value for key, value in properties.items() if key.partition(".")[0] == "auth"}
    kind = properties.get("auth.type")
    if not own or (kind is None and "auth.type" in given):
        return
    if not is_rest(properties):
        yield f"{catalog}.auth: only a REST catalog has it"
    elif kind not in AUTH_NEEDS:
        wrong = "is missing" if kind is None else "PyIceberg has no such kind"
        yield f"{catalog}.auth.type: {wrong}; write one of {', '.join(AUTH_NEEDS)}"
    else:
        needed = [f"auth.{need}" for need in AUTH_NEEDS[kind]]
        yield from (f"{catalog}.{key}: is missing" for key in needed if key not in given)
        for key, value in own.items():
            if key not in ("auth.type", *needed) and not key.startswith(f"auth.{kind}."):
                yield f"{catalog}.{key}: does not belong to type {kind}"
            elif key in AUTH_NUMBERS and not value.isdecimal():
                yield f"{catalog}.{key}: is not a whole number"


def _misspelt(place: str, key: str, known: Sequence[str]) -> Iterator[str]:
    """Find a key that is like one of the `known` keys. PyIceberg ignores keys that it does not know."""
    # A suffix may be the name of an account: `adls.sas-token.ACCOUNT`.
    is_known = key in known or any(key.startswith(f"{each}.") for each in known)
    meant = [] if is_known else get_close_matches(key, known, n=1, cutoff=0.8)
    # `glue.access-key-id` is like `s3.access-key-id`, and is another property.
    if meant and ("." not in key or key.partition(".")[0] == meant[0].partition(".")[0]):
        yield f"{place}: unknown property, did you mean {meant[0]}?"


def _misspelt_database(place: str, url: str) -> Iterator[str]:
    scheme = re.split(r"[+:]", url, maxsplit=1)[0]
    meant = [] if scheme in DATABASES else get_close_matches(scheme, DATABASES, n=1, cutoff=0.8)
    if meant:
        yield f"{place}: SQLAlchemy knows no database {scheme}, did you mean {meant[0]}?"


def _health_faults(health: HealthSettings) -> Iterator[str]:
    if health.token is not None and len(health.token) < TOKEN_MIN:
        yield f"health.token: is shorter than {TOKEN_MIN} characters; `openssl rand -hex 32` makes a good one"
    if health.token is not None and not SENT_TEXT.fullmatch(health.token):
        yield "health.token: only printable ASCII characters can be sent; `openssl rand -hex 32` makes a good one"


def _missing_extra(readable: _Readable) -> Iterator[str]:
    """Find hooks whose package is not installed. It is not imported, which would be slow."""
    for place, hook in zip(readable.places["hooks"], readable.settings.hooks, strict=True):
        if hook.format == "openlineage" and not any(distributions(name="openlineage-python")):
            yield f"{place}.format: needs openlineage-python: install the extra `lineage` of dvsync's wheel"


def _catalog_faults(readable: _Readable) -> Iterator[str]:
    # Whether a catalog was named by mistake is unknown while a catalog's own entry is left out.
    if any(re.fullmatch(r"catalogs(\.[^.]*)?|defaults(\.catalog)?", key) for key in readable.left_out):
        return
    known = readable.settings.catalogs
    named = ", ".join(sorted(known)) or "none"
    default = readable.settings.defaults.catalog
    if default and default not in known:
        yield f"defaults.catalog: there is no catalog {default!r} under catalogs ({named})"
    of_tables = [(place, table.catalog) for place, table in readable.tables()]
    for place, catalog in (*of_tables, *readable.other_catalogs):
        if not catalog:
            yield f"{place}.catalog: is missing; name one of the catalogs ({named}), here or under defaults"
        elif catalog not in known and catalog != default:
            yield f"{place}.catalog: there is no catalog {catalog!r} under catalogs ({named})"


def _clashes(readable: _Readable) -> Iterator[str]:
    claims = Claims()
    patterns: dict[str, str] = {}
    for place, table in readable.tables():
        if table.is_pattern:
            # The tables that it matches are checked when they are discovered. The first pattern that finds one has it.
            if table.source in patterns:
                yield f"{place}.source: {patterns[table.source]} has the same pattern, and leaves no table to this one"
            elif not table.exclude:
                patterns[table.source] = place
            continue
        yield from (f"{place}{key}: {clash}" for key, clash in claims.clashes(table))
        claims.add(place, table)


class Claims:
    """The names, targets and folders that tables have: no two tables may have the same."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._targets: dict[tuple[str, str], str] = {}
        self._places: dict[str, str] = {}
        # The folders around these places, each with one of them.
        self._around: dict[str, str] = {}

    def add(self, who: str, table: TableSettings) -> None:
        self._names.setdefault(table.name, who)
        self._targets.setdefault((table.catalog, table.target), who)
        for location in _written(table):
            self._places.setdefault(location, who)
            self._around.update(dict.fromkeys(_folders_around(location), location))

    def clashes(self, table: TableSettings) -> Iterator[tuple[str, str]]:
        """Yield who has the target, the name or a folder of `table` already, each after the key that says so."""
        taken, named = self._targets.get((table.catalog, table.target)), self._names.get(table.name)
        if taken:
            yield ".target", f"{table.target} is already the target of {taken}"
        # Two tables with the same target and the same name get one fault, not two.
        if named and named != taken:
            yield ".name", f"{table.name} is already the name of {named}; give one of them another name"
        for own in _written(table):
            within = (folder for folder in (own, *_folders_around(own)) if folder in self._places)
            if location := next(within, self._around.get(own)):
                who = self._places[location]
                yield "", f"its files would overlap those of {who} at {location}; give each its own location"


def _written(table: TableSettings) -> list[str]:
    return [canonical(location) for location in (table.location, table.delete_files_location) if location]


def _folders_around(location: str) -> Iterator[str]:
    while "/" in location:
        location = location.rpartition("/")[0]
        yield location


def faults_of_found(settings: Settings, table: TableSettings) -> list[str]:
    """Find the faults of `table`, which a pattern of `settings` matched."""
    alone = settings.model_copy(update={"tables": (table,)})
    return list(_places_that_vacuum_cleans(_Readable(alone, {"tables": (table.name,)}, frozenset())))


def _places_that_vacuum_cleans(readable: _Readable) -> Iterator[str]:
    written = [
        (f"catalogs.{name}.warehouse", properties["warehouse"])
        for name, properties in readable.settings.catalogs.items()
        if "warehouse" in properties
    ]
    for place, table in readable.tables():
        written += [(f"{place}.location", table.location or "")]
        written += [(f"{place}.delete_files_location", table.delete_files_location or "")]
    sources = sorted({table.source for table in readable.settings.tables})
    for place, location in written:
        for source in sources:
            if vacuum_cleans(location, source):
                yield (
                    f"{place}: {location} is inside the Delta table {source}, where VACUUM removes every file that"
                    " Delta does not know: choose a folder outside of it, or one whose name begins with '_' or '.'"
                )
