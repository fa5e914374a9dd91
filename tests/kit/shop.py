"""Boards as busy daemons have them after a day; `python -m tests.kit.shop docs` draws the status pages of them."""

from __future__ import annotations

import io
import sys
from math import sin
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace
from PIL import Image

from daemon.config.settings import HealthSettings, TableSettings
from daemon.status.board import Board
from daemon.status.table_status import AccountCounts, Observation
from daemon.status.timeline import FileDeletions
from daemon.web.endpoints import make_app
from daemon.web.server import WebServer
from state import FileKind, FileStatus, Sample, SyncRun, TableCounts, TableError, TableRecord, WrittenCount
from tests.kit.boards import board_of

NOW_MS = 1_796_040_000_000
MINUTES = 24 * 60
TABLES = (
    ("sales.orders", "s3://lake/sales/orders"),
    ("sales.order_lines", "s3://lake/sales/order_lines"),
    ("sales.payments", "s3://lake/sales/payments"),
    ("crm.customers", "s3://lake/crm/customers"),
    ("web.clicks", "s3://lake/web/clicks"),
    ("web.sessions", "s3://lake/web/sessions"),
    ("hr.salaries", "s3://lake/hr/salaries"),
)
PARKED = TableError(
    "CorruptInput",
    "deletion vector: CRC-32 is 8d1f2c04 but the bytes give 51a0be77 [version 1318, file "
    "s3://lake/sales/payments/deletion_vector_4a7c.bin, offset 1]",
    "Restore the file from a backup or rewrite the data file in Delta, then `dvsync resume sales.payments`.",
    version=1318,
    since_ms=NOW_MS - 47 * 60_000,
    consecutive=1,
    parked=True,
)
AWAY = TableError(
    "CatalogAway",
    "the catalog of crm.customers does not answer: 503 Service Unavailable",
    "It is tried again with growing pauses; see the catalog's own log.",
    version=None,
    since_ms=NOW_MS - 9 * 60_000,
    consecutive=12,
    parked=False,
)


class StoppedClock:
    def now_ms(self) -> int:
        return NOW_MS

    def monotonic_s(self) -> float:
        return 0.0


def _counts(data_files: int, rows: int, deleted: int, delete_files: int, orphans: int) -> TableCounts:
    written = (
        WrittenCount(FileKind.DELETE_FILE, FileStatus.LIVE, delete_files, delete_files * 9_400, NOW_MS - 7_000_000),
        WrittenCount(FileKind.MANIFEST, FileStatus.LIVE, 31, 902_000, NOW_MS - 80_000_000),
        WrittenCount(FileKind.MANIFEST_LIST, FileStatus.ORPHANED, orphans, orphans * 4_200, NOW_MS - 61_000_000),
    )
    return TableCounts(
        live_data_files=data_files, live_rows=rows, deleted_positions=deleted, live_bytes=0, written=written
    )


def make_board(*, said: str = "") -> Board:
    """Seven tables: in step, syncing, parked, retrying, behind, not there yet, paused; errors end with `said`."""
    settings = [
        TableSettings(source=source, target=f"lake.t{number}", name=name)
        for number, (name, source) in enumerate(TABLES)
    ]
    board = board_of(settings, StoppedClock(), lag_budget_s=300)
    synced = (4812, 4790, 1317, 655, 20_411, None, 88)
    counts = (
        _counts(1_284, 48_120_554, 912_440, 1_077, 212),
        _counts(3_950, 160_377_201, 2_204_918, 3_102, 644),
        _counts(640, 9_817_330, 88_120, 240, 31),
        _counts(96, 1_204_400, 10_031, 61, 12),
        _counts(18_206, 2_410_553_018, 5_120, 44, 9),
        None,
        _counts(12, 40_200, 310, 8, 3),
    )
    newest = (4812, 4793, 1320, 656, 20_437, None, 91)
    behind_s = (0, 8, 2820, 540, 194, None, 86_400)
    errors = (None, None, PARKED, AWAY, None, None, None)
    for number, (each, version) in enumerate(zip(settings, synced, strict=True)):
        age_s, error = behind_s[number], errors[number]
        record = TableRecord(
            number,
            each.name,
            each.source,
            each.target,
            synced_version=version,
            snapshot_id=None if version is None else 7_302_118_845_990_112_000 + version,
            last_synced_at_ms=None if version is None else NOW_MS - 1000 * ((age_s or 0) + 4),
            error=error and replace(error, message=error.message + said),
            paused=each.name.startswith("hr."),
        )
        seen = Observation(
            record=None if version is None else record,
            counts=counts[number],
            source_version=newest[number],
            behind_since_ms=NOW_MS - 1000 * age_s if age_s else None,
            syncing=number == 1,
            accounts=AccountCounts(checked=version or 0),
            polled_at_s=0.0,
        )
        board.show(each.name, seen)
        if version is not None:
            _live_a_day(board, number, each.name, version, age_s or 0)
    return board


def _live_a_day(board: Board, number: int, name: str, version: int, age_s: int) -> None:
    timeline = board.timeline(name)
    for minute in range(0, MINUTES, 5):
        to_end = MINUTES - minute
        busy = max(0.0, sin((minute + 170 * number) / 95)) ** 6 * (20 + 14 * number)
        lag = max(busy + (minute * 37 % 11) / 4, age_s - 60.0 * to_end)
        deleted = 200_000 + 520 * minute - 310_000 * (minute // 480)
        timeline.add_sample(Sample(NOW_MS - to_end * 60_000, lag, deleted, minute % 300 // 5, minute % 90))
    timeline.show_worst_files(
        [
            FileDeletions(
                f"s3://lake/{name.replace('.', '/')}/part-0000{file}-6a1f0c9e-c000.snappy.parquet",
                2_000_000,
                700_000 - 140_000 * file,
                tuple(max(0.0, sin((part + 20 * file) / 9)) ** 2 for part in range(72)),
            )
            for file in range(5)
        ]
    )
    timeline.add_runs(
        SyncRun(
            number,
            NOW_MS - (30 - back) * 9_000,
            40 + back * 13 % 90,
            "advanced",
            version - 30 + back,
            version - 29 + back,
            data_files_added=back % 4,
            data_files_removed=back % 3,
            delete_files_added=back % 7,
            positions_added=back * 331 % 4_000,
        )
        for back in range(30)
    )


def make_large_board(tables: int = 300) -> Board:
    """So many tables of a lake, after a day. One in 50 is parked, one in 60 retrying, one in 75 behind."""
    settings = [
        TableSettings(
            source=f"s3://lake/{area}/{what}_{number:03}", target=f"{area}.{what}_{number:03}", catalog="main"
        )
        for number in range(tables)
        for area in [("sales", "crm", "web", "ops", "hr")[number % 5]]
        for what in [("orders", "events", "items")[number % 3]]
    ]
    board = board_of(settings, StoppedClock(), lag_budget_s=300)
    for number, each in enumerate(settings):
        version = 100 + 37 * number
        age_s = 1800 if number % 50 == 7 else 400 if number % 60 == 11 or number % 75 == 13 else 0
        error = PARKED if number % 50 == 7 else AWAY if number % 60 == 11 else None
        record = TableRecord(
            number,
            each.name,
            each.source,
            each.target,
            synced_version=version,
            snapshot_id=7_302_118_845_990_112_000 + version,
            metadata_location=f"s3://lake/iceberg/{each.name.replace('.', '/')}/metadata/00041-5f.metadata.json",
            last_synced_at_ms=NOW_MS - 1000 * (age_s + number % 90),
            error=error,
        )
        seen = Observation(
            record=record,
            counts=_counts(100 + number, 1000 * number, 17 * number, number % 40, number % 9),
            source_version=version + (2 if age_s else 0),
            behind_since_ms=NOW_MS - 1000 * age_s if age_s else None,
            polled_at_s=0.0,
        )
        board.show(each.name, seen)
        _live_a_day(board, number, each.name, version, age_s)
    return board


# The file, the board, and the window's width and height in pixels; None is as high as the page.
PICTURES = (
    ("status-page.png", make_board, 1200, None),
    ("status-page-300.png", make_large_board, 1200, 1100),
    ("status-page-300-narrow.png", make_large_board, 400, 1100),
)


def draw(folder: Path) -> None:
    """Draw each of PICTURES at twice the resolution, as a PNG of few colours."""
    from tests.kit.chromium import Page, chromium  # noqa: PLC0415 - `make_board` needs no browser

    with TemporaryDirectory() as profile, chromium(Path(profile)) as socket:
        for name, make, width, height in PICTURES:
            web = WebServer.start(HealthSettings(port=0), make_app(make()))
            try:
                page = Page.open(socket)
                page.resize(width, height or 200, scale=2)
                page.visit(web.url)
                image = Image.open(io.BytesIO(page.screenshot(whole=height is None))).convert("RGB")
            finally:
                web.stop()
            image.quantize(96, dither=Image.Dither.NONE).save(folder / name, optimize=True)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
