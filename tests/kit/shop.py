"""A board as a busy daemon has it after a day, of invented tables."""

from __future__ import annotations

from msgspec.structs import replace

from daemon.config.settings import TableSettings
from daemon.status.board import Board
from daemon.status.table_status import Observation
from state import FileKind, FileStatus, MirrorCount, Pause, SyncRun, TableCounts, TableError, TableRecord, WrittenCount
from tests.kit.boards import board_of

NOW_MS = 1_796_040_000_000
PAUSE = Pause(NOW_MS - 3_600_000, "ada on lake-1", until_ms=NOW_MS + 7_200_000, reason="the files are moved")
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
    "the catalog warehouse does not answer: 503 Service Unavailable",
    "It is tried again with growing pauses; see the catalog's own log.",
    version=None,
    since_ms=NOW_MS - 9 * 60_000,
    consecutive=12,
    parked=False,
)


REFUSED = TableError(
    "Unsupported",
    "the Delta table needs the reader feature catalogManaged",
    "dvsync does not read it.",
    version=None,
    since_ms=NOW_MS - 90 * 60_000,
    consecutive=1,
    parked=False,
)
MIRRORS = (
    MirrorCount("footer", "column lines of the file has no field id for its elements", 1_240, 98_300_000_000),
    MirrorCount("copy", None, 3, 41_000_000),
)
SHOP_TABLES = ("orders", "order_lines", "payments", "customers", "products", "stock", "returns", "clicks", "invoices")


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


def make_board(*, said: str = "", tables: int = len(TABLES)) -> Board:
    """Seven tables: in step, syncing, parked, retrying, behind, not there yet, paused; errors end with `said`.

    With more `tables`, the others are in step, but for a few whose first sync runs.
    """
    settings = [
        TableSettings(source=source, target=f"lake.t{number}", name=name, catalog="local")
        for number, (name, source) in enumerate(TABLES)
    ]
    board = board_of(settings, StoppedClock(), lag_budget_s=300)
    synced = (4812, 4790, 1317, 655, 20_411, None, 88)
    counts = (
        replace(_counts(1_284, 48_120_554, 912_440, 1_077, 212), mirrors=MIRRORS),
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
            metadata_location=f"s3://warehouse/lake/t{number}/metadata/{version:05}-6a1f.metadata.json"
            if version
            else None,
            last_synced_at_ms=None if version is None else NOW_MS - 1000 * ((age_s or 0) + 4),
            error=error and replace(error, message=error.message + said),
            pause=PAUSE if each.name.startswith("hr.") else None,
        )
        seen = Observation(
            record=None if version is None else record,
            counts=counts[number],
            source_version=newest[number],
            behind_since_ms=NOW_MS - 1000 * age_s if age_s else None,
            syncing=number == 1,
            checked_at_s=0.0,
        )
        board.show(each.name, seen)
        board.activity.count(each.name, accounts_checked=version or 0)
        if version is not None:
            _show_syncs(board, number, each.name, version)
    for number in range(len(TABLES), tables):
        _add_shop(board, number)
    return board


def _add_shop(board: Board, number: int) -> None:
    """One table of a shop: in step, or in its first sync since the start, as each hundredth."""
    kind, shop = SHOP_TABLES[number % len(SHOP_TABLES)], number // len(SHOP_TABLES)
    name, version, syncs = f"shop_{shop:02}.{kind}", 90 + number * 37 % 4000, number % 100 == 0
    table = TableSettings(source=f"s3://lake/shop_{shop:02}/{kind}", target=name, name=name, catalog="local")
    board.add(table)
    record = TableRecord(
        number,
        name,
        table.source,
        table.target,
        synced_version=version,
        last_synced_at_ms=NOW_MS - 1000 * (number * 53 % 3600 + 3),
        error=replace(REFUSED, version=version + 1) if syncs else None,
    )
    counts = _counts(40 + number % 300, 90_000 * number, 311 * number, number % 80, number % 30)
    newest = None if syncs else version
    board.show(name, Observation(record, counts, newest, syncing=syncs, checked_at_s=None if syncs else 0.0))
    _show_syncs(board, number, name, version)


def _show_syncs(board: Board, number: int, name: str, version: int) -> None:
    board.add_runs(
        name,
        (
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
                operation=("WRITE", "MERGE", "DELETE", "OPTIMIZE")[back % 4],
            )
            for back in range(30)
        ),
    )
