"""Files that readers misread are shown by mirrors: whatever happens to them in Delta, all readers show Delta's rows."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import date, datetime
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from daemon.doctor.diagnosis import Verdict, diagnose
from daemon.errors import Unsupported
from daemon.maintenance.cleanup import clean_up
from daemon.maintenance.expiry import Expirer
from daemon.mirror.substitution import find_mirror_name
from daemon.translate.readers import Fault
from daemon.verify.findings import Level, Scope
from daemon.verify.verifier import Verifier
from state import FileKind, FileStatus, OrphanReason
from tests.kit.broken_logs import checkpoint
from tests.kit.checks import check, rows_of, table_id
from tests.kit.daemons import command, daemon, write_config
from tests.kit.handmade import COLUMNS, RANDOM, Bench, HandmadeTable
from tests.kit.handmade_mirrored import Mirrored
from tests.kit.load import Load
from tests.kit.mirror_files import column
from tests.kit.mirror_files import field as stored
from tests.kit.misread import CASES, GROWING, SPARK_2, Misread
from tests.kit.readers import READERS, assert_readers_agree
from tests.kit.servers import ObjectStore

# The poll interval is a second.
MANY, LAG_MAX_S = 2000, 5.0


@pytest.fixture
def table(tmp_path: Path) -> Mirrored:
    made = Mirrored(tmp_path / "delta", partitioned=True)
    made.create()
    return made


def add_files(table: HandmadeTable, count: int = 3) -> list[str]:
    first = len(table.rows)
    files = [
        table.write_file([(10 * number + n, "xy"[number % 2], f"v{n}") for n in range(6)])
        for number in range(first, first + count)
    ]
    table.commit([table.add(path) for path in files])
    return files


@contextmanager
def following(table: HandmadeTable, name: str = "dvsync", **options: Any) -> Iterator[Bench]:
    with closing(
        Bench(table.folder.parent / name, table.location, table_options={"mirrors": "copy", **options})
    ) as made:
        yield made


def agree(bench: Bench, table: HandmadeTable, where: str) -> None:
    """All readers but Spark, which the integration tests ask; and so does a verification."""
    proof = Verifier(bench.context).verify(Scope(Level.METADATA), Event())
    assert proof and proof.is_right, proof
    iceberg = bench.iceberg()
    rows = table.live_rows_in(iceberg.schema())
    assert_readers_agree(iceberg, None, rows, where, without=READERS.keys() & {"Spark"})


def mirrors_of(bench: Bench) -> dict[str, str]:
    """The live mirrors by the paths of their data files."""
    return {mirror.data_file: mirror.path for mirror in bench.store.list_live_mirrors(table_id(bench))}


@pytest.mark.parametrize("version", [2, 3])
def test_a_life_with_mirrors(table: Mirrored, version: int) -> None:
    """New files, deletion vectors that grow and shrink, OPTIMIZE, RESTORE: a mirror stays one file, and comes back."""
    with following(table, format_version=version) as bench:
        a, b, c = add_files(table)
        bench.sync()
        agree(bench, table, "first sync")
        at_first = mirrors_of(bench)
        assert {find_mirror_name(path).kind for path in at_first.values()} == {"footer", "copy"}  # type: ignore[union-attr]
        table.commit(table.delete({a: [0, 1], b: [2], c: [3]}), operation="DELETE")
        bench.sync()
        agree(bench, table, "delete")
        table.commit([table.remove(a), table.remove(b), table.add(a, deleted=[1]), table.add(b)], operation="RESTORE")
        bench.sync()
        agree(bench, table, "rows that come back")
        assert mirrors_of(bench) == at_first

        rows = [row for path in (a, b, c) for row in table.rows[path] if row[1] == "x"]
        merged = table.write_file(rows)
        before = {path: (table.live[path], table.deleted[path]) for path in (a, c)}
        table.commit(
            [*(table.remove(path, data_change=False) for path in (a, c)), table.add(merged, data_change=False)]
        )
        bench.sync()
        agree(bench, table, "OPTIMIZE")
        assert mirrors_of(bench).keys() == {f"{table.location}/{path}" for path in (b, merged)}
        table.commit([table.remove(merged), *(table.add(path, deleted=before[path][1]) for path in (a, c))])
        bench.sync()
        agree(bench, table, "RESTORE")
        assert mirrors_of(bench) == at_first, "the mirror of before is there again"
        check(bench, table, list(range(table.version + 1))[1:])


def test_the_state_is_rebuilt_from_iceberg_alone(table: Mirrored) -> None:
    """Without a state database mirrors are found by their names, also when Delta no longer has the version."""
    with following(table) as bench:
        a, *_ = add_files(table)
        bench.sync()
        table.commit(table.delete({a: [0]}))
        bench.sync()
        before = mirrors_of(bench)
        bench.close()
        bench.state_file.unlink()
        bench.open()
        assert bench.sync().outcome == "rebuilt"
        assert mirrors_of(bench) == before
        versions = [1, 2]
        check(bench, table, versions)
        table.commit(table.delete({a: [1]}))
        bench.sync()
        agree(bench, table, "after the rebuild")

        bench.sync(full=True)
        assert mirrors_of(bench) == before, "a resync uses them, too"
        agree(bench, table, "resync")


@pytest.mark.parametrize("version", [2, 3])
def test_the_state_is_rebuilt_without_deltas_version(
    table: Mirrored, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No mirror is made twice, also if only an older snapshot shows it, and none is shown for another file of the same
    name and size. Cleanup removes those that are not used again.
    """
    options = {"maintenance": {"snapshots_max": 1, "orphan_grace": "60s"}}
    with following(table, format_version=version, **options) as bench:
        stays, leaves, _, comes_back, replaced, _ = add_files(table, 6)
        bench.sync()
        before = mirrors_of(bench)
        table.commit([*table.delete({stays: [0], leaves: [1], replaced: [2]}), table.remove(comes_back)])
        bench.sync()
        bench.close()
        bench.state_file.unlink()
        bench.open()

        size = (table.folder / replaced).stat().st_size
        table.commit([table.remove(leaves), table.remove(replaced), table.add(comes_back, deleted=[3])])
        rows = [(number, part, value) for number, (_, part, value) in enumerate(table.rows[replaced], 900)]
        HandmadeTable.write_file(table, rows, name=Path(replaced).stem)
        table.commit([table.add(replaced)])
        assert (table.folder / replaced).stat().st_size == size
        checkpoint((), table)
        bench.sync()
        agree(bench, table, "after the rebuild")
        after = mirrors_of(bench)
        of = {path: f"{table.location}/{path}" for path in (stays, leaves, comes_back, replaced)}
        assert {path for path in of if after.get(of[path]) == before[of[path]]} == {stays, comes_back}
        assert of[replaced] in after and of[leaves] not in after
        unused = {before[of[leaves]], before[of[replaced]]}
        assert unused == {
            each.path for each in written(bench) if (each.kind, each.status) == (FileKind.MIRROR, FileStatus.ORPHANED)
        }

        table.commit(table.delete({stays: [1]}))
        bench.sync()
        agree(bench, table, "a later delete")
        assert clean_up(bench.context, Event()).removed == []
        Expirer(bench.context).expire()
        now_ms = bench.clock.now_ms
        monkeypatch.setattr(type(bench.clock), "now_ms", lambda _: now_ms() + 120_000)
        assert unused <= {file.path for file in clean_up(bench.context, Event()).removed}
        left = {f"file://{path}" for path in bench.folder.rglob("*-mirror.parquet")}
        assert left == set(mirrors_of(bench).values())

        bench.close()
        bench.state_file.unlink()
        bench.open()
        bench.sync(full=True)
        assert set(mirrors_of(bench).values()) == left, "a resync without the state finds them, too"


def test_older_metadata_that_is_gone(table: Mirrored) -> None:
    """A rebuild and a resync do without it, and find the mirrors that the rest of the metadata tells of."""
    with following(table) as bench:
        a, b, _ = add_files(table)
        bench.sync()
        of_b = mirrors_of(bench)[f"{table.location}/{b}"]
        for path in (a, b):
            table.commit([table.remove(path)])
            bench.sync()
        first, second, _ = bench.iceberg().snapshots()
        (manifest,) = second.manifests(bench.iceberg().io)
        Path(first.manifest_list.removeprefix("file://")).unlink()
        bench.close()
        bench.state_file.unlink()
        bench.open()
        assert bench.sync().outcome == "rebuilt"
        assert of_b in {file.path for file in written(bench) if file.reason is OrphanReason.FOUND_IN_USE}
        Path(manifest.manifest_path.removeprefix("file://")).unlink()
        bench.sync(full=True)
        agree(bench, table, "resync")


def test_mirrors_that_are_used_again_are_not_for_cleanup(table: Mirrored) -> None:
    """What is said of the limit does not promise their bytes."""
    with following(table) as bench:
        a, b, _ = add_files(table)
        bench.sync()
        unused = Path(mirrors_of(bench)[f"{table.location}/{b}"].removeprefix("file://")).stat().st_size
        table.commit([table.remove(a), table.remove(b)])
        bench.sync()
        table.commit([table.add(a), table.add(table.write_file([(100, "x", "v")]))])
        object.__setattr__(bench.context, "settings", bench.settings.model_copy(update={"mirror_bytes_max": 5}))
        with pytest.raises(Unsupported, match="more than mirror_bytes_max") as raised:
            bench.sync()
        assert f"Cleanup will remove orphans of {unused:,} bytes" in raised.value.hint


def test_a_limit_parks_before_the_disk_is_full(tmp_path: Path) -> None:
    """Mirrors that get larger than their files are counted as they are made; a higher limit uses those that are."""
    table = GROWING.make(tmp_path / "delta")
    table.commit([GROWING.add(table) for _ in range(5)])
    size = max(path.stat().st_size for path in table.folder.glob("*.parquet"))
    config = tmp_path / "config.yaml"

    def sync(limit: str, *words: str) -> tuple[str, set[Path]]:
        entry = {"source": str(table.folder), "target": "lake.t", "name": "t"}
        write_config(config, tables=[{**entry, "mirrors": "rewrite", "mirror_bytes_max": limit, "engine": "local"}])
        done = command(config, *words)
        return done.stdout + done.stderr, set(tmp_path.rglob("*-mirror.parquet"))

    said, made = sync("1MiB", "sync", "t")
    assert "more than mirror_bytes_max, 1,048,576" in said
    # Each is 400 kB.
    assert 6 * size < 1 << 20 and len(made) == 3
    said, again = sync("1MiB", "sync", "t")
    assert "more than mirror_bytes_max, 1,048,576" in said
    assert again == made, "no further one"
    for _ in range(2):
        said, all_of_them = sync("2MiB", "sync", "t")
        assert "more than mirror_bytes_max, 2,097,152" in said, "the last one is too many, also when it is there"
        assert made < all_of_them and len(all_of_them) == 6
    said, used = sync("10MiB", "sync", "t")
    assert used == all_of_them and "advanced, version 2" in said


def test_a_crash_between_commit_and_record_of_a_first_sync(table: Mirrored, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mirrors that the landed snapshot shows are live, and not made again."""
    with following(table) as bench:
        add_files(table)
        monkeypatch.setattr(type(bench.store), "record_rebuilt", _die)
        with pytest.raises(ZeroDivisionError):
            bench.sync()
        monkeypatch.undo()
        bench.reopen()
        assert bench.sync().outcome == "rebuilt"
        check(bench, table, [1])
        assert len(list((table.folder.parent / "dvsync").rglob("*-mirror.parquet"))) == 2


def _die(*_: object, **__: object) -> None:
    raise ZeroDivisionError


def test_cleanup_removes_a_mirror_after_its_snapshots(table: Mirrored, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never before, and never a file of Delta's; if the data file comes back later, it gets another mirror."""
    options = {"maintenance": {"snapshots_max": 1, "orphan_grace": "60s"}}
    with following(table, **options) as bench:
        a, *_ = add_files(table)
        bench.sync()
        mirror = mirrors_of(bench)[f"{table.location}/{a}"]
        there = Path(mirror.removeprefix("file://"))
        table.commit([table.remove(a)])
        bench.sync()
        assert clean_up(bench.context, Event()).removed == []
        orphan = next(file for file in written(bench) if file.path == mirror)
        assert (orphan.kind, orphan.status, orphan.reason) == (
            FileKind.MIRROR,
            FileStatus.ORPHANED,
            OrphanReason.DATA_FILES_GONE,
        )
        Expirer(bench.context).expire()
        now_ms = bench.clock.now_ms
        monkeypatch.setattr(type(bench.clock), "now_ms", lambda _: now_ms() + 120_000)
        removed = {file.path for file in clean_up(bench.context, Event()).removed}
        assert mirror in removed
        assert not there.exists()
        assert not [path for path in removed if path.startswith(table.location)]
        table.commit([table.add(a, deleted=[2])])
        bench.sync()
        agree(bench, table, "after the cleanup")
        assert mirrors_of(bench)[f"{table.location}/{a}"] != mirror


def written(bench: Bench) -> list[Any]:
    return bench.store.list_written(table_id(bench), tuple(FileStatus))


def test_a_scan_finds_mirrors_that_nobody_knows(table: Mirrored) -> None:
    """After the loss of the state database: those in use stay."""
    with following(table) as bench:
        a, *_ = add_files(table)
        bench.sync()
        path = Path(mirrors_of(bench)[f"{table.location}/{a}"].removeprefix("file://"))
        left = path.with_name(f"7{path.name}")
        shutil.copy(path, left)
        found = clean_up(bench.context, Event(), scan=True, remove_found=True).found
        assert [Path(file.path).name for file in found] == [left.name]
        check(bench, table, [1])


def test_without_the_setting_the_file_is_refused_and_the_hint_names_it(table: Mirrored) -> None:
    """At a first sync and later; with too little room, no mirror is made."""
    table.write_file([(0, "x", "v")], name="plain")
    with following(table, mirrors="refuse") as bench:
        bench.sync()
        add_files(table, 1)
        with pytest.raises(Unsupported, match="contains '#'") as raised:
            bench.sync()
        assert "mirrors: copy" in raised.value.hint
    with following(table, mirrors="footer", name="footer") as bench:
        with pytest.raises(Unsupported, match="contains '#'") as raised:
            bench.sync()
        assert "mirrors: copy" in raised.value.hint
    with following(table, "little", mirror_bytes_max="1MiB") as bench:
        bench.settings = bench.settings.model_copy(update={"mirror_bytes_max": 5})
        object.__setattr__(bench.context, "settings", bench.settings)
        with pytest.raises(
            Unsupported, match=r"need mirrors of [\d,]+ bytes, .* of 0 bytes: [\d,]+ bytes more than"
        ) as it:
            bench.sync()
        assert "set mirror_bytes_max: 1MiB or more for it" in it.value.hint
        assert not list(bench.folder.rglob("*-mirror.parquet"))


def test_a_setting_that_is_taken_back(table: Mirrored) -> None:
    """Mirrors that are there follow Delta; new ones are refused."""
    with following(table) as bench:
        a, b, _ = add_files(table)
        bench.sync()
    with following(table, mirrors="refuse") as bench:
        table.commit([*table.delete({a: [1]}), table.remove(b)])
        bench.sync()
        agree(bench, table, "taken back")
        add_files(table, 1)
        with pytest.raises(Unsupported):
            bench.sync()


def test_a_schema_that_reaches_files_gives_them_other_mirrors(table: Mirrored) -> None:
    """A column that only files had gets its values; mirrors without it are replaced, with their deletion vectors."""
    with following(table) as bench:
        path = table.write_file([(n, "x", f"v{n}") for n in range(4)])
        stored = pq.ParquetFile(table.folder / path).read()
        extra = stored.append_column(pa.field("extra", pa.int64(), metadata={"PARQUET:field_id": "3"}), [[7, 8, 9, 10]])
        pq.write_table(extra, table.folder / path)
        table.commit([table.add(path, deleted=[1])])
        bench.sync()
        before = mirrors_of(bench)
        table.commit([{"metaData": table.metadata((*COLUMNS, ("extra", "long")))}], operation="ADD COLUMNS")
        bench.sync()
        after = mirrors_of(bench)
        assert after.keys() == before.keys()
        assert after != before
        rows = bench.iceberg().scan().to_arrow().select(["id", "extra"]).to_pylist()
        assert sorted(json.dumps(row) for row in rows) == [json.dumps({"id": n, "extra": 7 + n}) for n in (0, 2, 3)]


def test_mirrors_on_s3(table: Mirrored, store: ObjectStore) -> None:
    """The store copies the pages of a large file itself; the mirror is read with the Iceberg table's properties."""
    client, prefix = store.client("s3"), table.table_id
    options = {"properties": store.properties, "catalog": {"warehouse": f"s3://warehouse/{prefix}"}}

    def send() -> None:
        for path in table.take_new_files():
            client.upload_file(str(path), "lake", f"{prefix}/{path.relative_to(table.folder)}")

    values = [RANDOM.randbytes(1_500_000).hex() for _ in range(3)]
    large = table.write_file([(number, "x", value) for number, value in enumerate(values)])
    assert (table.folder / large).stat().st_size > 5 << 20
    small = table.write_file([(10, "x", "v")])
    table.commit([table.add(large, deleted=[1]), table.add(small)])
    send()
    folder = table.folder.parent / "dvsync"
    with closing(Bench(folder, f"s3://lake/{prefix}", table_options={"mirrors": "copy"}, **options)) as bench:
        store.requests.clear()
        bench.sync()
        found = diagnose(bench.settings, bench.context.log, bench.spark)
        told = {each.text.partition(" mirrors of ")[2] for each in found.findings if each.subject == "mirrors"}
        size = (table.folder / small).stat().st_size
        passing = f"{size:,} bytes in all, of which {size:,} are copied through dvsync"
        assert passing in told and len(told) == 2
        assert min(told - {passing}).endswith(" bytes in all, copied server-side, by the store")
        mirrors = mirrors_of(bench)
        of_large = mirrors[f"s3://lake/{prefix}/{large}"]
        puts = [each for each in store.requests if each.startswith("PUT") and of_large.rpartition("/")[2] in each]
        assert len(puts) == 2, "a part that is copied, and the footer"
        proof = Verifier(bench.context).verify(Scope(Level.METADATA), Event())
        assert proof and proof.is_right, proof
        assert rows_of(bench.iceberg().scan().to_arrow()) == table.live_rows()
        table.commit([*table.delete({large: [0]}), table.remove(small)])
        send()
        bench.sync()
        assert mirrors_of(bench) == {f"s3://lake/{prefix}/{large}": of_large}
        assert rows_of(bench.iceberg().scan().to_arrow()) == table.live_rows()


def test_a_table_made_anew_with_the_same_file_names(tmp_path: Path) -> None:
    """Nothing of the old table's mirrors is shown for the new one's files of the same names and sizes."""
    old, new = (Mirrored(tmp_path / name, partitioned=True) for name in ("delta", "new"))
    for table, first in ((old, 1), (new, 41)):
        table.create()
        path = table.write_file([(first + row, "x", "v") for row in range(4)], name="data")
        table.commit([table.add(path)])
    with following(old) as bench:
        bench.sync()
        before = mirrors_of(bench)
        shutil.rmtree(old.folder)
        new.folder = new.folder.rename(old.folder)
        bench.sync()
        agree(bench, new, "made anew")
        after = mirrors_of(bench)
        assert after.keys() == before.keys()
        assert after != before


@pytest.mark.parametrize(("stored_as", "ending", "kind"), [("int32", ".parquet", "rewrite"), ("float64", "#", "copy")])
def test_a_path_that_comes_back_with_other_rows(stored_as: str, ending: str, kind: str, tmp_path: Path) -> None:
    """Another file of the same name and size, as tables that were converted may have it, gets a mirror of its own."""

    def case(*rows: int) -> Misread:
        file = pa.table({"id": pa.array(rows, pa.int64()), "d": pa.array(rows, stored_as)})
        return Misread([column("id", "long"), column("d", "double")], file, [], ending=ending)

    table = case(1, 2, 3).make(tmp_path / "delta")
    (path,) = table.live
    size = (table.folder / path).stat().st_size
    with following(table, mirrors=kind) as bench:
        bench.sync()
        table.commit([table.remove(path)])
        table.rows.clear()
        table.commit([case(7, 8, 9).add(table)])
        assert (table.folder / path).stat().st_size == size
        bench.sync()
        assert sorted(bench.iceberg().scan().to_arrow()["d"].to_pylist()) == [7.0, 9.0]
        assert len(mirrors_of(bench)) == 1
        # Of another size, in a state that is compared.
        table.commit([table.remove(path)])
        table.rows.clear()
        table.commit([case(1, 2, 3, 4).add(table)])
        bench.follower.compare("the log has a gap")
        bench.sync()
        assert sorted(bench.iceberg().scan().to_arrow()["d"].to_pylist()) == [1.0, 3.0, 4.0]


def test_a_widening_under_column_mapping(tmp_path: Path) -> None:
    """Iceberg cannot change the column's type; a new Iceberg table has the new one, with mirrors of older files."""
    columns = [column("id", "long", 1), column("f", "integer", 2)]
    fields = pa.schema([stored("id", pa.int64(), 1), stored("f", pa.int32(), 2)])
    rows = pa.table([[1, 2, 3], [4, 5, 6]], schema=fields)
    with following(Misread(columns, rows, [], is_mapped=True).make(tmp_path / "delta"), mirrors="rewrite") as bench:
        bench.sync()
        widened = HandmadeTable(tmp_path / "delta", version=1)
        metadata = bench.context.log.read_commit(1).metadata
        assert metadata
        schema = metadata.schema_string.replace("integer", "double")
        action = widened.metadata() | {"id": metadata.id, "schemaString": schema}
        widened.commit([{"metaData": action | {"configuration": metadata.configuration}}])
        for full in (False, True):
            with pytest.raises(Unsupported, match="changed from int to double") as refused:
                bench.sync(full=full)
            assert "drop the Iceberg table" in refused.value.hint and "mirrors: rewrite" in refused.value.hint
        bench.catalogs.open("local").drop_table(bench.target)
        bench.sync(full=True)
        assert sorted(bench.iceberg().scan().to_arrow()["f"].to_pylist()) == [4.0, 6.0]


@pytest.mark.long
def test_other_tables_stay_fresh_meanwhile(tmp_path: Path) -> None:
    """While thousands of mirrors are made for one table, each commit of another one is shown within seconds."""
    load, large = Load(tmp_path / "lake", Random(1), count=1, busy=1), Mirrored(tmp_path / "large")
    (name,) = load.tables
    large.create()
    rows = [(number, "x", "v") for number in range(10)]
    first = large.write_file(rows)
    tables = {name: load.tables[name].location, "large": large.location}
    write_config(
        tmp_path / "config.yaml",
        defaults={"poll_interval": "1s", "engine": "local", "mirrors": "footer"},
        tables=[{"source": each, "target": f"lake.{name}", "name": name} for name, each in tables.items()],
    )
    with daemon(tmp_path / "config.yaml") as running:
        running.synced_to("large", 0)
        running.synced_to(name, load.tables[name].version)
        files = [f"{number}.parquet" for number in range(MANY)]
        for path in files:
            shutil.copyfile(large.folder / first, large.folder / path)
            large.rows[path] = rows
        load.start()
        try:
            large.commit([large.add(path) for path in files])
            running.synced_to("large", 1)
        finally:
            load.stop()
        running.synced_to(name, load.tables[name].version)
        assert [each["files"] for each in running.tables()["large"]["mirrors"]] == [MANY]
    shown_s: dict[tuple[str, int], float] = {}
    for line in running.lines:
        if (line["event"], line.get("table")) == ("sync.advanced", name):
            at_s = datetime.fromisoformat(line["timestamp"]).timestamp()
            shown_s |= {(name, version): at_s for version in range(line["from_version"] or 0, line["to_version"] + 1)}
    lags_s = [shown_s[key] - committed_s for key, committed_s in load.committed_s.items()]
    assert len(lags_s) > 2, "the mirrors were made too soon to keep anybody waiting"
    assert max(lags_s) < LAG_MAX_S, lags_s


def test_the_doctor_says_what_mirrors_cost(table: Mirrored) -> None:
    """How many files of how many bytes, by the setting that is needed; with it, they are followed."""
    add_files(table)
    with following(table, mirrors="footer") as bench:
        log = bench.context.log
        found = diagnose(bench.settings, log, bench.spark)
        assert not found.is_followed
        told = {(each.verdict, each.text) for each in found.findings if each.subject == "mirrors"}
        sizes = [(table.folder / path).stat().st_size for path in table.live]
        copied = "bytes in all, copied by the file system"
        assert (Verdict.NOTE, f"with mirrors: copy, 1 of 3 files have mirrors of {sizes[1]:,} {copied}") in told
        assert any(
            verdict is Verdict.FOLLOWED and text.startswith("1 of 3 files") and text.endswith(copied)
            for verdict, text in told
        )
        followed = diagnose(bench.settings.model_copy(update={"mirrors": "copy"}), log, bench.spark)
        assert followed.is_followed
        assert followed.rows == sum(map(len, table.rows.values()))


def test_the_doctor_names_the_mirror_that_is_enough(tmp_path: Path) -> None:
    """For a file with two faults, of which the first one alone would need less."""
    days = pa.array([date(1500, 1, 1)] * 3)
    fields = pa.schema([stored("id", pa.int64(), 1), stored("d", pa.date32(), 7)], SPARK_2)
    case = Misread([column("id", "long"), column("d", "date")], pa.table([[1, 2, 3], days], schema=fields), [])
    with following(case.make(tmp_path / "delta"), mirrors="refuse") as bench:
        found = diagnose(bench.settings, bench.context.log, bench.spark)
        (refused,) = [each for each in found.findings if each.verdict is Verdict.REFUSED]
        assert "carries the field id 7" in refused.text
        assert str(refused.hint).count("mirrors: ") == str(refused.hint).count("mirrors: rewrite") == 1


def test_the_doctor_says_what_mirrors_cost_of_a_refused_column(tmp_path: Path) -> None:
    """A column is refused by Delta's schema alone, and the files tell how many mirrors would be needed."""
    with following(CASES[Fault.ELEMENT_IDS].make(tmp_path / "delta"), mirrors="refuse") as bench:
        found = diagnose(bench.settings, bench.context.log, bench.spark)
        refused = {each.subject for each in found.findings if each.verdict is Verdict.REFUSED}
        assert {"column l", "column s"} < refused
        (told,) = [each.text for each in found.findings if each.subject == "mirrors"]
        assert told.startswith("with mirrors: footer, 1 of 1 files have mirrors of")
