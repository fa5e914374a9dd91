"""The shape of the configuration: frozen, bounded settings, each key with its unit, bounds, default and meaning.

Attributes carry their unit (`poll_interval_s`); the keys that people write do not (`poll_interval: 10s`).
How they are read from the file and the environment is `load.py`'s business.
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    StringConstraints,
    WrapValidator,
    model_validator,
)
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from daemon.config.redaction import find_secrets, mask_section
from daemon.config.value_types import (
    ENV_PREFIX,
    SQLITE_FILE,
    URL,
    USERINFO,
    Duration,
    Location,
    Properties,
    identifier,
    or_reference,
    time_zone_name,
)

DAY_S = 86_400
GIB = 1 << 30


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StateSettings(_Frozen):
    url: Annotated[str, StringConstraints(pattern=URL), WrapValidator(or_reference)] = Field(
        "sqlite:///var/dvsync.db",
        description="SQLAlchemy URL of the state database.",
    )
    lease_s: Annotated[float, Duration] = Field(
        30.0,
        alias="lease",
        ge=1,
        le=3600,
        description="A standby daemon takes over from one that shows no sign of life for this long.",
    )

    @property
    def place(self) -> str:
        """Where the state is, for people and other machines: host and file, or the URL without user and options."""
        if self.sqlite_file is not None:
            return f"{socket.gethostname()}:{self.sqlite_file}"
        return USERINFO.sub("", self.url).partition("?")[0]

    @property
    def sqlite_file(self) -> Path | None:
        """The database file, where the state is in SQLite."""
        match = SQLITE_FILE.match(self.url)
        return Path(match["path"]) if match else None


class SparkSettings(_Frozen):
    master: str = Field(
        "local[*]",
        min_length=1,
        description="Spark master: local[N], spark://…, k8s://… or yarn.",
    )
    conf: Properties = Field(default_factory=dict, description="Any Spark setting, given as it is.")
    idle_timeout_s: Annotated[float, Duration] = Field(
        600.0,
        alias="idle_timeout",
        ge=1,
        le=DAY_S,
        description="The Spark session stops after this long without work.",
    )


class PipelineSettings(_Frozen):
    engine: Literal["auto", "spark", "local"] = Field(
        "auto",
        description=(
            "Where whole tables are read, deletion vectors are translated and footers are read: in the daemon's"
            " process (local), on Spark, or by size (auto)."
        ),
    )
    local_log_bytes_max: ByteSize = Field(
        ByteSize(16 << 20),
        ge=0,
        le=GIB,
        description=(
            "With auto, Spark reads a table's whole state where its checkpoint and the commits after that have more"
            " bytes than this. First syncs, resyncs, comparisons of states and doctor read whole states."
        ),
    )
    local_bytes_max: ByteSize = Field(
        ByteSize(64 << 20),
        ge=0,
        le=GIB,
        description="With auto, a change with more bytes of deletion vectors than this goes to Spark.",
    )
    local_deletion_vectors_max: int = Field(
        2_000,
        ge=0,
        le=1_000_000,
        description="With auto, a change of more deletion vectors than this goes to Spark.",
    )
    local_data_files_max: int = Field(
        5_000,
        ge=0,
        le=1_000_000,
        description=(
            "With auto, Spark reads the footers of more added data files than this, and the whole state of a table"
            " with more data files."
        ),
    )


class MaintenanceSettings(_Frozen):
    """What keeps a table quick to read and its storage small. Each part can be turned off by itself."""

    interval_s: Annotated[float, Duration] = Field(
        600.0,
        alias="interval",
        ge=1,
        le=30 * DAY_S,
        description="Time between two rounds of maintenance of a table in the daemon.",
    )
    compact: bool = Field(True, description="Whether the daemon compacts delete files.")
    expire: bool = Field(True, description="Whether the daemon expires snapshots.")
    cleanup: bool = Field(True, description="Whether the daemon removes files that nothing references any more.")
    delete_files_max: int = Field(
        10, ge=1, le=100_000, description="Compact a data file once more than this many delete files apply to it."
    )
    deleted_share: float = Field(
        0.3,
        ge=0,
        le=1,
        description="Compact a data file with two or more delete files once this share of its rows is deleted.",
    )
    partition_delete_files_max: int = Field(
        100,
        ge=1,
        le=1_000_000,
        description=(
            "With delete_granularity partition, compact a partition once it has more small delete files than this."
        ),
    )
    small_delete_file_max: ByteSize = Field(
        ByteSize(1 << 20), ge=0, le=GIB, description="A delete file of at most this size counts as small."
    )
    snapshot_age_max_s: Annotated[float, Duration] | None = Field(
        None,
        alias="snapshot_age_max",
        ge=0,
        le=3650 * DAY_S,
        description=(
            "Older snapshots are expired; unset follows the Iceberg table's history.expire.max-snapshot-age-ms, or 5"
            " days. Never more than Delta's own retention."
        ),
    )
    snapshots_max: int = Field(
        100, ge=1, le=1_000_000, description="The main branch keeps no more snapshots than this, whatever their age."
    )
    snapshots_min: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description=(
            "The main branch keeps so many snapshots, whatever their age; unset follows the Iceberg table's"
            " history.expire.min-snapshots-to-keep, or 1."
        ),
    )
    orphan_grace_s: Annotated[float, Duration] = Field(
        float(DAY_S),
        alias="orphan_grace",
        ge=60,
        le=3650 * DAY_S,
        description="A file that nothing references any more stays for this long, for readers that still have it open.",
    )
    history_s: Annotated[float, Duration] = Field(
        7.0 * DAY_S,
        alias="history",
        ge=0,
        le=3650 * DAY_S,
        description="How long the state database remembers removed files and past syncs.",
    )


class LimitsSettings(_Frozen):
    commits_max: int = Field(
        100, ge=1, le=10_000, description="Delta commits that one cycle of a table reads and syncs at most."
    )
    fold_after_versions: int = Field(
        200,
        ge=1,
        le=1_000_000,
        description="A table that is more versions behind than this catches up in snapshots of several versions each.",
    )
    fold_when_busy: bool = Field(
        True,
        description=(
            "Whether a table's versions share a snapshot while other tables wait for their turn; false gives each"
            " version a snapshot of its own and lets tables fall behind."
        ),
    )
    commit_bytes_max: ByteSize = Field(
        ByteSize(256 << 20),
        ge=1 << 20,
        le=64 * GIB,
        description=(
            "A Delta commit file larger than this is refused, and no more commits share a snapshot once they have more"
            " together. Reading one takes two to four times its size in memory."
        ),
    )
    tables_at_once: int = Field(4, ge=1, le=64, description="Tables that sync at the same time, at most.")


class _TableOptions(_Frozen):
    """What `defaults` and each table may set."""

    catalog: str = Field("", description="Name under `catalogs`; may be left out where there is only one.")
    poll_interval_s: Annotated[float, Duration] = Field(
        10.0,
        alias="poll_interval",
        ge=0.1,
        le=DAY_S,
        description="Time between two polls for the next Delta commit file.",
    )
    format_version: int = Field(
        2, ge=2, le=3, description="Format version of the Iceberg table. 3 is not supported yet and parks the table."
    )
    delete_granularity: Literal["file", "partition"] | None = Field(
        None,
        description=(
            "One delete file for each data file, or for each partition; unset follows the Iceberg table's"
            " write.delete.granularity."
        ),
    )
    int96_overflow: Literal["refuse", "follow"] = Field(
        "refuse",
        description=(
            "What to do with INT96 timestamps before 1677 or after 2262: PyIceberg and Polars show them wrong, Spark"
            " and DuckDB right."
        ),
    )
    partition_time_zone: Annotated[str, AfterValidator(time_zone_name)] = Field(
        "UTC",
        description=(
            "The zone of timestamp partition values that name none: the session time zone of Spark at the time. "
            "Another one for a table that is followed already, and is partitioned by them, needs a `dvsync resync`."
        ),
    )

    on_foreign_commit: Literal["park", "overwrite"] = Field(
        "park",
        description=(
            "What to do when someone else committed to the Iceberg table, or rolled it back: park it, or bring back"
            " Delta's state in one snapshot."
        ),
    )

    @property
    def may_overflow(self) -> bool:
        return self.int96_overflow == "follow"


class DefaultsSettings(_TableOptions):
    pass


class TableSettings(_TableOptions):
    source: Location = Field(
        description=(
            "The Delta table: a path or URI. With `*` in it, every Delta table that it fits, new ones as they come; the"
            " other keys may then use {name} and {parent}, the table's folder and the one above it."
        ),
    )
    target: Annotated[str, AfterValidator(identifier)] = Field(
        description="The Iceberg table: namespace and name, joined by dots."
    )
    name: str = Field(
        default_factory=lambda data: data.get("target", "unnamed"),
        pattern=r"^[^\s/]+$",
        description="The table's name in commands, logs and status; defaults to the target.",
    )
    location: Location | None = Field(
        None, description="Location of the Iceberg table; defaults to the catalog's choice."
    )
    delete_files_location: Location | None = Field(
        None, description="Folder for delete files; defaults to one below the Iceberg table."
    )
    pipeline: PipelineSettings = Field(
        default_factory=PipelineSettings, description="Overrides of `pipeline` for this table."
    )
    maintenance: MaintenanceSettings = Field(
        default_factory=MaintenanceSettings, description="Overrides of `maintenance` for this table."
    )

    @property
    def is_pattern(self) -> bool:
        return "*" in self.source

    @model_validator(mode="after")
    def _fits_its_source(self) -> Self:
        if self.is_pattern:
            for field in ("target", "name", "location", "delete_files_location"):
                if "{name}" not in (getattr(self, field) or "{name}"):
                    raise ValueError(f"the {field} of a pattern needs {{name}} in it, or its tables would share it")
        elif "{name}" in self.target or "{parent}" in self.target:
            raise ValueError("{name} and {parent} go with a source that has a `*` in it")
        return self

    def for_found(self, source: str) -> Self:
        """The settings of a table that this pattern fits. Raises ValueError when its folders are no names for it."""
        *_, parent, name = source.rsplit("/", 2)
        words = {"name": name, "parent": parent}

        def fill(text: str) -> str:
            for key, word in words.items():
                if f"{{{key}}}" in text and not re.fullmatch(r"[^.\s{}]+", word):
                    raise ValueError(
                        f"the folder {word!r} cannot be part of {text}: it holds a dot, a space or a brace"
                    )
                text = text.replace(f"{{{key}}}", word)
            return text

        filled = {
            field: fill(text)
            for field in ("target", "name", "location", "delete_files_location")
            if (text := getattr(self, field)) is not None
        }
        return self.model_copy(update={"source": source, **filled})


class HealthSettings(_Frozen):
    host: str = Field("127.0.0.1", min_length=1, description="Address of the health server; defaults to loopback.")
    port: int = Field(8080, ge=0, le=65_535, description="Port of the health server; 0 takes any free one.")
    lag_budget_s: Annotated[float, Duration] = Field(
        300.0,
        alias="lag_budget",
        ge=1,
        le=30 * DAY_S,
        description="A table that is behind for longer than this makes /readyz fail.",
    )


class LogSettings(_Frozen):
    format: Literal["auto", "json", "console"] = Field(
        "auto", description="JSON lines, lines for people, or the latter on a terminal only (auto)."
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="The lowest level of events that are logged."
    )


class _Variables(EnvSettingsSource):
    """`DVSYNC_…` variables. Properties are spelled as PyIceberg spells its own: `__` for a dot, `_` for a dash.

    `DVSYNC_STORAGE__S3__ACCESS_KEY_ID` is `s3.access-key-id`; with `__FILE` at the end, the path of a file that has it.
    """

    def __init__(self, settings_cls: type[BaseSettings]) -> None:
        super().__init__(settings_cls)
        sections = tuple(f"{ENV_PREFIX}{section}__".lower() for section in ("storage", "catalogs"))
        # The base class would read each value as JSON first: `1.50` would become `1.5`.
        self._properties = {key: value or "" for key, value in self.env_vars.items() if key.startswith(sections)}
        self.env_vars = {key: value for key, value in self.env_vars.items() if key not in self._properties}

    def __call__(self) -> dict[str, Any]:
        found = super().__call__()
        for key, value in self._properties.items():
            section, *parts = key.removeprefix(ENV_PREFIX.lower()).split("__")
            properties = found.setdefault(section, {})
            if section == "catalogs":
                properties = properties.setdefault(parts.pop(0), {})
            in_file = parts[-1:] == ["file"]
            name = ".".join(parts[:-1] if in_file else parts)
            # The only two with an underscore are PyIceberg's for its SQL catalog.
            name = name if name in ("init_catalog_tables", "pool_pre_ping") else name.replace("_", "-")
            properties[name] = {"file": value} if in_file else value
        return found


class Settings(BaseSettings):
    """The whole configuration, defaults applied to each table and every path absolute."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_prefix=ENV_PREFIX, env_nested_delimiter="__")

    state: StateSettings = StateSettings()
    spark: SparkSettings = SparkSettings()
    catalogs: dict[str, Properties] = Field(
        default_factory=dict,
        description="PyIceberg catalogs by a name of your choice, with their properties as PyIceberg has them.",
    )
    storage: Properties = Field(
        default_factory=dict,
        description=(
            "PyIceberg FileIO properties for the files of both sides: s3.endpoint and the like. Spark gets them, too."
        ),
    )
    pipeline: PipelineSettings = PipelineSettings()
    maintenance: MaintenanceSettings = MaintenanceSettings()
    limits: LimitsSettings = LimitsSettings()
    defaults: DefaultsSettings = DefaultsSettings()
    tables: tuple[TableSettings, ...] = Field((), description="The tables to keep in step.")
    health: HealthSettings = HealthSettings()
    log: LogSettings = LogSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return _Variables(settings_cls), init_settings

    def file_properties(self, catalog: str | None = None) -> dict[str, str]:
        """FileIO properties for the files of both sides of a catalog's tables: its own and `storage`, which wins.

        Without a region PyIceberg asks AWS for that of each bucket: AWS_REGION answers for it, and no store that has an
        endpoint of its own is asked about.
        """
        properties = {**self.catalogs.get(catalog or "", {}), **self.storage}
        if not properties.keys() & {"s3.region", "client.region"}:
            region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
            if region or "s3.endpoint" in properties:
                properties["s3.region"] = region or "us-east-1"
        return properties

    def secrets(self) -> set[str]:
        """Every text in the settings that is a secret, or may be one."""
        return set(find_secrets("", self.model_dump(by_alias=True)))

    def redacted(self) -> dict[str, Any]:
        """The settings by the keys that people write, without a secret in them: fit for printing and logs."""
        masked = mask_section("", self.model_dump(by_alias=True))
        assert isinstance(masked, dict)
        return masked
