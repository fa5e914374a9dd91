"""Finds faults between the parts of a configuration: what is missing, misspelt, or claimed twice."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from importlib.metadata import distributions

from daemon.config.readable import SENT_TEXT, Readable
from daemon.config.settings import Settings, SourceName, TableSettings
from daemon.config.value_types import is_metastore
from daemon.store.locations import by_spelling, canonical, vacuum_cleaners

# A shorter token could be guessed.
TOKEN_MIN = 16
# Type of a source -> the schemes of its server's address, and what it cannot do without.
SOURCE_TYPES = {"unity": ("https?", None), "hive": ("thrift", "thrift"), "glue": (None, "boto3")}


def find_faults(readable: Readable) -> Iterator[str]:
    """Find the faults that can be seen without PyIceberg: most commands do not import it."""
    token, advice = readable.settings.health.token, "`openssl rand -hex 32` makes a good one"
    if token is not None and len(token) < TOKEN_MIN:
        yield f"health.token: is shorter than {TOKEN_MIN} characters; {advice}"
    if token is not None and not SENT_TEXT.fullmatch(token):
        yield f"health.token: only printable ASCII characters can be sent; {advice}"
    for place, hook in zip(readable.places["hooks"], readable.settings.hooks, strict=True):
        # Its import would be slow.
        if hook.format == "openlineage" and not any(distributions(name="openlineage-python")):
            yield f"{place}.format: needs openlineage-python: install the extra `lineage` of dvsync's wheel"
    yield from _property_faults(readable)
    yield from _catalog_faults(readable)
    yield from _source_faults(readable)
    yield from _clashes(readable)
    yield from _places_that_vacuum_cleans(readable)


def find_unknown_properties(settings: Settings) -> Iterator[str]:
    """Find types of catalogs that PyIceberg does not have, and properties that are like one of its own."""
    import pyiceberg.catalog  # noqa: PLC0415 - see `find_faults`

    types = [each.value for each in pyiceberg.catalog.CatalogType]
    constants = {**vars(pyiceberg.catalog), **vars(pyiceberg.io)}
    known = {value for name, value in constants.items() if name.isupper() and isinstance(value, str)}
    for key in settings.storage:
        yield from _misspelt(f"storage.{key}", key, known)
    for name, properties in settings.catalogs.items():
        kind = properties.get("type", "").lower()
        if kind and kind not in types:
            yield f"catalogs.{name}.type: PyIceberg has no such catalog type; it has {', '.join(types)}"
        for key in properties:
            yield from _misspelt(f"catalogs.{name}.{key}", key, known)


def _misspelt(place: str, key: str, known: Collection[str]) -> Iterator[str]:
    """Find a key that is like one of the `known` keys. PyIceberg ignores keys that it does not know."""
    # A suffix may be the name of an account: `adls.sas-token.ACCOUNT`.
    if key in known or any(key.startswith(f"{each}.") for each in known):
        return
    # `glue.access-key-id` is like `s3.access-key-id`, and is another property, as `credential` of a REST catalog is.
    prefix = key[: key.find(".") + 1]
    beside = [each for each in known if each[: each.find(".") + 1] == prefix]
    if meant := get_close_matches(key, beside, n=1, cutoff=0.8):
        yield f"{place}: unknown property, did you mean {meant[0]}?"


def _property_faults(readable: Readable) -> Iterator[str]:
    for name, properties in readable.settings.catalogs.items():
        given = {*properties, *(key.removeprefix(f"catalogs.{name}.") for key in readable.left_out)}
        kind = properties.get("type", "").lower()
        if "auth" in properties:
            yield f"catalogs.{name}.auth: is not a section of keys, such as {{type: basic, basic: {{username: …}}}}"
        needed = SOURCE_TYPES.get(kind, ("", None))[1]
        if needed and not any(distributions(name=needed)):
            yield f"catalogs.{name}.type: needs {needed}: install the extra `{kind}` of dvsync's wheel"
        if kind == "rest" and not re.match(r"https?://", properties.get("uri", "https://"), re.IGNORECASE):
            yield f"catalogs.{name}.uri: does not begin with http:// or https://"
        if kind == "hive" and not properties.get("uri", "thrift://").startswith("thrift://"):
            yield f"catalogs.{name}.uri: does not begin with thrift://"
        if kind != "sql":
            continue
        if "uri" not in given:
            yield f"catalogs.{name}.uri: is missing; give the SQLAlchemy URL of the catalog's database"
        homeless = next((each for _, each in readable.tables() if each.catalog == name and not each.location), None)
        if "warehouse" not in given and homeless is not None:
            yield f"catalogs.{name}.warehouse: is missing, and {homeless.name} has no location of its own"


def _catalog_faults(readable: Readable) -> Iterator[str]:
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
    for place, table in readable.tables():
        if is_metastore(known.get(table.catalog, {})) and table.target.count(".") > 1:
            yield f"{place}.target: Hive and Glue have one level of namespaces: write database.table"


def _source_faults(readable: Readable) -> Iterator[str]:
    sources = readable.settings.sources
    for name, properties in sources.items():
        given = {*properties, *(key.removeprefix(f"sources.{name}.") for key in readable.left_out)}
        kind = properties.get("type", "")
        if kind not in SOURCE_TYPES:
            yield f"sources.{name}.type: must be {', '.join(SOURCE_TYPES)}"
            continue
        schemes, needed = SOURCE_TYPES[kind]
        if needed and not any(distributions(name=needed)):
            yield f"sources.{name}.type: needs {needed}: install the extra `{kind}` of dvsync's wheel"
        is_left_out = "uri" in given and "uri" not in properties
        if schemes and not is_left_out and not re.match(f"{schemes}://", properties.get("uri", "")):
            example = "thrift://HOST:9083" if kind == "hive" else "https://HOST"
            yield f"sources.{name}.uri: must be the address of the catalog's server: {example}"
        if "credential" in given and "oauth2-server-uri" not in given:
            yield f"sources.{name}.oauth2-server-uri: is missing; credential is sent there for a token"
    for place, table in readable.tables():
        if table.source_name and (fault := fault_of_name(sources, table.source_name)):
            yield f"{place}.source: {fault}"


def fault_of_name(sources: Mapping[str, Mapping[str, str]], wanted: SourceName) -> str | None:
    """What is wrong with the name of a table in a catalog, or with a pattern of names."""
    if wanted.source not in sources:
        named = ", ".join(sorted(sources)) or "none"
        return f"there is no {wanted.source!r} under sources ({named}); write ./ before a path"
    is_unity = sources[wanted.source].get("type") == "unity"
    if re.fullmatch(r"[^.*]+\.[^.]+\.[^.]+" if is_unity else r"[^.]+\.[^.]+", wanted.pattern):
        return None
    parts = "catalog, schema and table" if is_unity else "schema and table"
    return f"name {parts}, joined by dots; the last two may contain `*`"


def _clashes(readable: Readable) -> Iterator[str]:
    claims = Claims(readable.settings)
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

    def __init__(self, settings: Settings) -> None:
        self._ignore_case = {name for name, each in settings.catalogs.items() if is_metastore(each)}
        self._names: dict[str, str] = {}
        self._targets: dict[tuple[str, str], str] = {}
        self._places: dict[str, str] = {}
        # The folders around these places, each with one of them.
        self._around: dict[str, str] = {}

    def add(self, who: str, table: TableSettings) -> None:
        self._names.setdefault(table.name, who)
        self._targets.setdefault(self._target_of(table), who)
        for location in _written(table):
            self._places.setdefault(location, who)
            self._around.update(dict.fromkeys(_folders_around(location), location))

    def clashes(self, table: TableSettings) -> Iterator[tuple[str, str]]:
        """Yield who has the target, the name or a folder of `table` already, each after the key that says so."""
        taken, named = self._targets.get(self._target_of(table)), self._names.get(table.name)
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

    def _target_of(self, table: TableSettings) -> tuple[str, str]:
        return table.catalog, table.target.lower() if table.catalog in self._ignore_case else table.target


def _written(table: TableSettings) -> list[str]:
    return [canonical(location) for location in (table.location, table.delete_files_location) if location]


def _folders_around(location: str) -> Iterator[str]:
    while "/" in location:
        location = location.rpartition("/")[0]
        yield location


def faults_of_found(settings: Settings, table: TableSettings) -> list[str]:
    alone = settings.model_copy(update={"tables": (table,)})
    return list(_places_that_vacuum_cleans(Readable(alone, {"tables": (table.name,)}, frozenset())))


def _places_that_vacuum_cleans(readable: Readable) -> Iterator[str]:
    written = [
        (f"catalogs.{name}.warehouse", properties["warehouse"])
        for name, properties in readable.settings.catalogs.items()
        if "warehouse" in properties
    ]
    for place, table in readable.tables():
        written += [(f"{place}.{key}", getattr(table, key) or "") for key in ("location", "delete_files_location")]
    # Thousands of tables have thousands of locations: not each is compared with each.
    sources = by_spelling(table.source for table in readable.settings.tables)
    for place, location in written:
        for source in sorted(vacuum_cleaners(location, sources)) if location else ():
            yield (
                f"{place}: {location} is inside the Delta table {source}, where VACUUM removes every file that"
                " Delta does not know: choose a folder outside of it, or one whose name begins with '_' or '.'"
            )
