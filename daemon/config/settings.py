"""The settings: immutable models. Each key has its unit, bounds, default and description.

Attributes carry their unit (`poll_interval_s`); the keys in the file do not (`poll_interval: 10s`).
`load.py` reads them from the file and the environment.
"""

from __future__ import annotations

import os
import re
import socket
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    PrivateAttr,
    StringConstraints,
    WrapValidator,
    model_validator,
)

from daemon.config.share import ALL, Share
from daemon.config.value_types import (
    URL,
    Duration,
    Location,
    Properties,
    folder_names,
    identifier,
    or_reference,
    sqlite_file,
    time_zone_name,
    who_deletes,
)
from daemon.masking import USERINFO, find_secrets
from state.records import SourceEntry

DAY_S = 86_400
MirrorSetting = Literal["refuse", "footer", "copy", "rewrite"]
# `prod:main.sales.orders`. A path that has a colon before its first slash is written as `./path`.
SOURCE_NAME = re.compile(r"(?!file:)([\w-]+):([^/]+)")


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StateSettings(_Frozen):
    url: Annotated[str, StringConstraints(pattern=URL), WrapValidator(or_reference)] = "sqlite:///var/dvsync.db"
    """SQLAlchemy URL of the state database."""

    @property
    def place(self) -> str:
        """Where the state is stored: host and file, or the URL without user and options. It contains no secret."""
        if self.sqlite_file is not None:
            return f"{socket.gethostname()}:{self.sqlite_file}"
        return USERINFO.sub("", self.url).partition("?")[0]

    @property
    def sqlite_file(self) -> Path | None:
        """The database file of SQLite; None for another database."""
        return sqlite_file(self.url)


class SparkSettings(_Frozen):
    master: str = Field("local[*]", min_length=1)
    """Spark master: local[N], or [a cluster](scaling.md#on-a-cluster): spark://…, k8s://… or yarn."""
    conf: Properties = Field(default_factory=dict)
    """Any Spark settings."""


class MaintenanceStep(StrEnum):
    COMPACT = "compact"
    EXPIRE = "expire"
    CLEANUP = "cleanup"


class MaintenanceSettings(_Frozen):
    """Compaction, expiry and cleanup keep a table fast to read and its storage small."""

    interval_s: Annotated[float, Duration] = Field(600.0, alias="interval", ge=1, le=30 * DAY_S)
    """Time between two rounds for a table; also after `snapshots_max` new snapshots."""
    steps: tuple[MaintenanceStep, ...] = tuple(MaintenanceStep)
    """What a round does: compact delete files, expire snapshots, remove dvsync's files that nothing references."""
    snapshot_age_max_s: Annotated[float, Duration] | None = Field(None, alias="snapshot_age_max", ge=0, le=3650 * DAY_S)
    """Older snapshots are expired. Unset: history.expire.max-snapshot-age-ms, or 5 days. Delta's retention
    limits it."""
    snapshots_max: int = Field(100, ge=1, le=1_000_000)
    """The main branch keeps at most this many snapshots."""
    orphan_grace_s: Annotated[float, Duration] = Field(float(DAY_S), alias="orphan_grace", ge=60, le=3650 * DAY_S)
    """Cleanup waits this long before it removes an unreferenced file, which a reader may have open."""


class VerifySettings(_Frozen):
    level: Literal["off", "metadata", "bitmaps", "rows"] = "metadata"
    """How deep the daemon [verifies](verification.md). The levels after `metadata` need Spark and its Iceberg jar."""
    period_s: Annotated[float, Duration] = Field(7.0 * DAY_S, alias="period", ge=1, le=365 * DAY_S)
    """The daemon compares every data file once in this time."""
    on_difference: Literal["report", "park"] = "report"
    """What the daemon does about a difference: report it, or also park the table."""

    @property
    def needs_spark(self) -> bool:
        return self.level in ("bitmaps", "rows")


class LimitsSettings(_Frozen):
    one_snapshot_per_version: bool = False
    """With true, no two versions share a snapshot, and tables may fall behind. With false, versions share one while
    other tables wait to sync, or if a table is far behind."""
    commit_bytes_max: ByteSize = Field(ByteSize(256 << 20), ge=1 << 20, le=64 << 30)
    """Larger Delta commit files are refused, and commits share a snapshot up to this size together. A sync takes 8 to
    17 times a commit file's size in memory."""
    tables_at_once: int = Field(4, ge=1, le=64)
    """The most tables that sync at the same time."""


class Reader(StrEnum):
    """A program that reads Iceberg tables. `POLARS` are both its readers: its own, and the one by PyIceberg."""

    SPARK = "spark"
    PYICEBERG = "pyiceberg"
    POLARS = "polars"
    DUCKDB = "duckdb"
    CLICKHOUSE = "clickhouse"
    TRINO = "trino"
    ATHENA = "athena"
    SNOWFLAKE = "snowflake"
    BIGQUERY = "bigquery"


# Those that are tested with every type and operation.
TESTED_READERS = (Reader.SPARK, Reader.PYICEBERG, Reader.POLARS, Reader.DUCKDB)


class SourceName(NamedTuple):
    source: str  # a name under `sources`
    pattern: str

    @classmethod
    def parse(cls, text: str) -> Self | None:
        match = SOURCE_NAME.fullmatch(text)
        return cls(*match.groups()) if match else None


class DefaultsSettings(_Frozen):
    catalog: str = ""
    """A name under `catalogs`. Not needed if there is only one catalog."""
    poll_interval_s: Annotated[float, Duration] = Field(10.0, alias="poll_interval", ge=0.1, le=DAY_S)
    """Time between two polls for the next Delta commit file."""
    engine: Literal["auto", "local", "spark"] = "auto"
    """Where dvsync reads tables and translates deletion vectors: in its own process (local), on Spark, or on Spark if
    they are large (auto)."""
    format_version: int = Field(2, ge=2, le=3)
    """[Iceberg's format version](formats.md#format-version-2-or-3). A table is upgraded in place, and cannot
    go back."""
    readers: tuple[Reader, ...] = Field(TESTED_READERS, min_length=1)
    """The programs that read the Iceberg table. What only others [would misread](compatibility.md#readers) is followed.
    `polars` stands for both its readers."""
    partition_time_zone: Annotated[str, AfterValidator(time_zone_name)] = "UTC"
    """Time zone of timestamp partition values without a zone: the session time zone of the Spark that wrote them. A
    change needs `dvsync resync` of such tables."""

    mirrors: MirrorSetting = "refuse"
    """Refuse data files that some reader would misread, or show [mirrors](formats.md#mirrors) of them: with a new
    footer (footer), also copied under another name (copy), also rewritten (rewrite)."""
    mirror_bytes_max: ByteSize = Field(ByteSize(100 << 30), ge=1 << 20, le=64 << 40)
    """A table is parked rather than that its mirrors take more bytes, but for [what is being
    written](formats.md#mirrors)."""
    on_foreign_commit: Literal["park", "overwrite"] = "park"
    """If someone else committed to the Iceberg table or rolled it back: park the table, or overwrite it with Delta's
    state."""
    on_schema_change: Literal["follow", "park"] = "follow"
    """If columns or partitioning of the Delta table change: follow, or park the table before the change until `dvsync
    resync` accepts it."""
    deletes: Annotated[str, AfterValidator(who_deletes)] = "none"
    """Who may delete rows of the Delta table: nobody (none); [`dvsync delete`](deletes.md) (command); or also whoever
    [deletes in Iceberg](deletes.md#deletes-made-in-iceberg), up to a share of the rows at a time, such as 10%."""
    tag_every: int | None = Field(None, ge=1, le=1_000_000_000)
    """[Tag](maintenance.md#tags-for-chosen-versions) the snapshot of each version that is a multiple of this."""
    tag_retention_s: Annotated[float, Duration] = Field(30.0 * DAY_S, alias="tag_retention", ge=60, le=3650 * DAY_S)
    """Expiry keeps a tag and its snapshot for this long. Let Delta keep its files for as long
    (delta.deletedFileRetentionDuration)."""
    version_hint: bool = False
    """Write metadata/version-hint.text after each commit, for readers [by folder](reading.md#by-folder)."""

    @property
    def may_delete(self) -> bool:
        return self.deletes != "none"

    @property
    def foreign_deletes_max(self) -> float:
        """The share of the rows that others may delete in Iceberg at a time, and so in Delta; 0 if they may not."""
        return float(self.deletes[:-1]) / 100 if self.deletes.endswith("%") else 0.0

    @property
    def has_mirrors(self) -> bool:
        return self.mirrors != "refuse"

    def is_tagged(self, version: int) -> bool:
        return self.tag_every is not None and version % self.tag_every == 0


class TableSettings(DefaultsSettings):
    source: Location
    """Path or URI of the Delta table, or its name in one of `sources`: `prod:main.sales.orders`. With `*` a pattern for
    every matching table, also new ones."""
    exclude: tuple[Annotated[str, AfterValidator(folder_names)], ...] = ()
    """Folders that a pattern leaves out: by name or by the last folders of the path, such as `tmp_*` or `archive/*`."""
    target: Annotated[str, AfterValidator(identifier)]
    """The Iceberg table: namespace and name, joined by a dot."""
    name: str = Field(default_factory=lambda data: data.get("target", "unnamed"), pattern=r"^[^\s/]+$")
    """The table's name in commands, logs and status. Unset: the target."""
    location: Location | None = None
    """Location of the Iceberg table. Unset: the catalog chooses it."""
    delete_files_location: Location | None = None
    """Folder for delete files. Unset: a folder below the Iceberg table's location."""
    maintenance: MaintenanceSettings = Field(default_factory=MaintenanceSettings)
    """Overrides of `maintenance` for this table."""
    verify: VerifySettings = Field(default_factory=VerifySettings)
    """Overrides of `verify` for this table."""
    _entry: SourceEntry | None = PrivateAttr(None)

    @property
    def source_name(self) -> SourceName | None:
        """The name of a source catalog, and the table's name there or a pattern of names; None for a location."""
        return SourceName.parse(self.source)

    @property
    def is_pattern(self) -> bool:
        """Whether tables must be found: by a pattern, or by a name in a catalog."""
        return "*" in self.source or self.source_name is not None

    @property
    def entry(self) -> SourceEntry | None:
        """Where the table was found in a catalog; None if it was not."""
        # Every status of every table asks for it, and pydantic's own way to a private attribute is slow.
        private = self.__pydantic_private__
        assert private is not None, "the model has private attributes"
        entry: SourceEntry | None = private["_entry"]
        return entry

    @property
    def shown_source(self) -> str:
        """What people call the Delta table: its name in a catalog, or where it is."""
        return self.entry.full_name if self.entry else self.source

    @property
    def is_managed(self) -> bool:
        """Whether a catalog says what is committed to the Delta table."""
        return self.entry is not None and self.entry.is_managed

    @model_validator(mode="after")
    def _fits_its_source(self) -> Self:
        word = "table" if self.source_name else "name"
        if "*" in self.source:
            for field in ("target", "name", "location", "delete_files_location"):
                if f"{{{word}}}" not in (getattr(self, field) or f"{{{word}}}"):
                    raise ValueError(f"the {field} of a pattern must contain {{{word}}}, or its tables would share it")
        elif "{name}" in self.target or "{parent}" in self.target:
            raise ValueError("{name} and {parent} need a source that contains `*`")
        elif self.exclude:
            raise ValueError("exclude needs a source that contains `*`")
        return self

    def for_found(self, source: str) -> Self:
        """Return the settings of a table that matches this pattern. Raises ValueError if a folder cannot be a name."""
        *_, parent, name = source.rsplit("/", 2)
        return self.model_copy(update={"source": source, "exclude": (), **self._filled(name=name, parent=parent)})

    def for_entry(self, entry: SourceEntry) -> Self:
        """Return the settings of a table of a catalog. Raises ValueError as `for_found`."""
        filled = self._filled(catalog=entry.catalog, schema=entry.schema, table=entry.table)
        found = self.model_copy(update={"source": entry.location, "exclude": (), **filled})
        found._entry = entry
        return found

    def _filled(self, **words: str) -> dict[str, str]:
        """Return the fields of a pattern with these words in place of those in braces."""

        def fill(text: str) -> str:
            for key, word in words.items():
                if f"{{{key}}}" in text and not re.fullmatch(r"[^.\s{}]+", word):
                    raise ValueError(
                        f"the name {word!r} cannot be part of {text}: it contains a dot, a space or a brace"
                    )
                text = text.replace(f"{{{key}}}", word)
            return text

        return {
            field: fill(text)
            for field in ("target", "name", "location", "delete_files_location")
            if (text := getattr(self, field)) is not None
        }


class HealthSettings(_Frozen):
    host: str = Field("127.0.0.1", min_length=1)
    """Address of the health server."""
    port: int = Field(8080, ge=0, le=65_535)
    """Port of the health server; 0 takes any free port."""
    lag_budget_s: Annotated[float, Duration] = Field(300.0, alias="lag_budget", ge=1, le=30 * DAY_S)
    """/readyz fails when a table is behind for longer than this."""
    token: Annotated[str, WrapValidator(or_reference)] | None = None
    """Bearer token for POST requests to the [API](monitoring.md#the-api), at least 16 characters. Unset: POST is
    disabled."""


class NoticeKind(StrEnum):
    """An event of a table that a hook can be notified of."""

    PARKED = "parked"
    RECOVERED = "recovered"
    GONE = "gone"
    SCHEMA_CHANGED = "schema_changed"
    TARGET_CHANGED = "target_changed"
    ROWS_DELETED = "rows_deleted"
    SOURCE_REPLACED = "source_replaced"
    PROOF_FAILED = "proof_failed"
    SYNCED = "synced"


NOTIFIED = tuple(kind for kind in NoticeKind if kind is not NoticeKind.SYNCED)


class HookSettings(_Frozen):
    url: Annotated[str, WrapValidator(or_reference)] | None = None
    """Webhook: dvsync sends JSON by POST to this http or https address."""
    headers: Properties = Field(default_factory=dict)
    """Headers of the requests."""
    command: tuple[str, ...] = ()
    """Instead of `url`: a program and its arguments, with the JSON on standard input."""
    events: tuple[NoticeKind, ...] = NOTIFIED
    """Only these events."""
    tables: tuple[str, ...] = ("*",)
    """Only tables with such names."""
    format: Literal["json", "openlineage"] = "json"
    """[Notices](monitoring.md#notices), or instead [OpenLineage](monitoring.md#telemetry) run events, which need the
    extra `lineage` of dvsync's wheel."""

    @model_validator(mode="after")
    def _is_one_thing(self) -> Self:
        if (self.url is None) == (not self.command):
            raise ValueError("set either url or command")
        if self.format == "openlineage" and "events" in self.model_fields_set:
            raise ValueError("events cannot be set with format: openlineage, whose events are its own")
        return self


class LogSettings(_Frozen):
    format: Literal["auto", "json", "console"] = "auto"
    """JSON lines (json), readable lines (console), or console on a terminal and json elsewhere (auto)."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Events below this level are not logged."""


class Settings(_Frozen):
    """The whole configuration. After `load_settings`, each table has the defaults and every path is absolute."""

    state: StateSettings = StateSettings()
    share: Annotated[Share, PlainValidator(Share.parse), PlainSerializer(str)] = ALL
    """The [share of the tables](scaling.md#more-than-one-daemon) that this daemon follows: `1/2` is the first
    of two."""
    spark: SparkSettings = SparkSettings()
    catalogs: dict[str, Properties] = Field(default_factory=dict)
    """PyIceberg's catalog properties, under a name of your choice. `auth` of a REST catalog is a section."""
    sources: dict[str, Properties] = Field(default_factory=dict)
    """Catalogs of Delta tables, under a name of your choice: `{type: unity, uri, token}`."""
    storage: Properties = Field(default_factory=dict)
    """PyIceberg FileIO properties, such as s3.endpoint, for the files of Delta and Iceberg tables. Spark gets them as
    well."""
    maintenance: MaintenanceSettings = MaintenanceSettings()
    verify: VerifySettings = VerifySettings()
    limits: LimitsSettings = LimitsSettings()
    defaults: DefaultsSettings = DefaultsSettings()
    tables: tuple[TableSettings, ...] = ()
    """The tables to keep in step."""
    health: HealthSettings = HealthSettings()
    hooks: tuple[HookSettings, ...] = ()
    """Webhooks and commands that get notices of the tables' events."""
    log: LogSettings = LogSettings()

    def file_properties(self, catalog: str | None = None) -> dict[str, str]:
        """Return the FileIO properties for the files of a catalog's tables: the catalog's own, overridden by `storage`.

        They always have a region if AWS_REGION or an endpoint is set. Otherwise PyIceberg would ask AWS for the region
        of each bucket, which fails for stores other than Amazon's.
        """
        properties = {**self.catalogs.get(catalog or "", {}), **self.storage}
        if not properties.keys() & {"s3.region", "client.region"}:
            region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
            if region or "s3.endpoint" in properties:
                properties["s3.region"] = region or "us-east-1"
        return properties

    @property
    def may_need_spark(self) -> bool:
        """Whether some table, also one that is added later, is not bound to do without Spark."""
        return any(each.engine != "local" for each in (self.defaults, *self.tables)) or any(
            table.verify.needs_spark for table in self.tables
        )

    def secrets(self) -> set[str]:
        """Return every text in the settings that is or may be a secret."""
        return set(find_secrets("", self.model_dump(by_alias=True)))
