"""Delta and Iceberg tables on ADLS, by Azurite: what Spark wrote is followed, deleted from, and cleaned up."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Event

import pytest
from pyarrow.fs import FileSelector
from pyiceberg.catalog import load_catalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT, Properties

from daemon.errors import ObjectMissing, ObjectStoreAway
from daemon.iceberg.references import referenced_files
from daemon.maintenance.maintainer import Maintainer
from daemon.store.locations import Span
from daemon.store.put_if_absent import put_if_absent
from daemon.store.storage import FileIOStorage
from tests.kit.daemons import Daemon, until, write_config
from tests.kit.forking import run_forked
from tests.kit.handmade import Bench, sql_catalog
from tests.kit.made import LaterClock
from tests.kit.readers import assert_same_rows, rows_of
from tests.kit.servers import AZURE_ACCOUNT, Azure, azurite
from tests.kit.writer import Writer

pytestmark = [pytest.mark.long, pytest.mark.live]

DAY_S = 86_400.0
HOST = f"{AZURE_ACCOUNT}.dfs.core.windows.net"
LAKE = f"abfss://lake@{HOST}"
CREATE = """
    CREATE TABLE {t} (id INT, part STRING) USING delta PARTITIONED BY (part)
    TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', 'delta.checkpointInterval' = '3')
"""
ROWS = "SELECT id, CASE id % 2 WHEN 0 THEN 'a b%/ü' ELSE 'x=1&+' END AS part FROM range(0, 60, 1, 1)"
CHANGES = ("DELETE FROM {t} WHERE id IN (1, 2)", "RESTORE TABLE {t} TO VERSION AS OF 2", "DELETE FROM {t} WHERE id < 9")


class ArrowsFileIO(PyArrowFileIO):
    """PyIceberg 0.12 gives Arrow the account as a part of the container's name (apache/iceberg-python#2698)."""

    @staticmethod
    def parse_location(location: str, properties: Properties = EMPTY_DICT) -> tuple[str, str, str]:
        return PyArrowFileIO.parse_location(location.replace(f"@{HOST}", ""), properties)


class OnAzure:
    """A table that Spark writes to a folder, copied to the container `lake`; the Iceberg table is in `warehouse`."""

    def __init__(self, writer: Writer, azure: Azure, folder: Path) -> None:
        self.writer, self.azure, self.folder = writer, azure, folder
        self.copied: set[Path] = set()
        write_config(
            folder / "config.yaml",
            catalogs={"local": {**sql_catalog(folder), "warehouse": f"abfss://warehouse@{HOST}/w"}},
            storage=azure.properties,
            maintenance={"steps": [], "snapshots_max": 1, "orphan_grace": "1m"},
            defaults={"poll_interval": "100ms", "engine": "local"},
            tables=[{"source": f"{LAKE}/t", "target": "lake.t", "deletes": "command"}],
        )
        self.daemon = Daemon(folder / "config.yaml")

    def sql(self, *statements: str) -> None:
        """Run the statements, and copy what they wrote, commits last."""
        for statement in statements:
            self.writer.sql(statement, self.folder / "t")
        files = {path for path in (self.folder / "t").rglob("*") if path.is_file() and path.suffix != ".crc"}
        for path in sorted(files - self.copied, key=lambda each: (each.parent.name == "_delta_log", each)):
            with self.azure.files.open_output_stream(f"lake/{path.relative_to(self.folder)}") as stream:
                stream.write(path.read_bytes())
        self.copied |= files

    def take_back(self, keys: set[str]) -> None:
        for key in keys:
            path = self.folder / key.removeprefix("lake/")
            path.write_bytes(self.azure.files.open_input_stream(key).read())
            self.copied.add(path)

    def keys(self, container: str) -> set[str]:
        found = self.azure.files.get_file_info(FileSelector(container, recursive=True))
        return {each.path for each in found if each.is_file}

    def command(self, *words: str) -> str:
        done = run_forked([*words, "lake.t"], folder=self.folder)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def check(self, version: int) -> None:
        self.daemon.synced_to("lake.t", version)
        self.check_rows(version)

    def check_rows(self, version: int) -> None:
        """Arrow's client reads what Spark does."""
        properties = {**self.azure.properties, "py-io-impl": f"{__name__}.{ArrowsFileIO.__name__}"}
        with closing(load_catalog("local", **{**sql_catalog(self.folder), **properties})) as catalog:
            table = catalog.load_table("lake.t")
        fields = table.schema().fields
        expected = rows_of(self.writer.delta(self.folder / "t"), fields)
        assert expected
        assert_same_rows(rows_of(table.scan().to_arrow(), fields), expected, "PyIceberg", f"version {version}")


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azure]:
    with azurite(tmp_path_factory.mktemp("azurite"), "lake", "warehouse") as started:
        yield started


def test_a_table_on_adls_is_followed(writer: Writer, azure: Azure, tmp_path: Path) -> None:
    """An idle poll is one request; dvsync deletes rows, which Spark reads from a copy; its own files leave."""
    lake = OnAzure(writer, azure, tmp_path)
    lake.sql(CREATE, f"INSERT INTO {{t}} {ROWS}", "DELETE FROM {t} WHERE id % 10 = 3")
    lake.daemon.launch()
    try:
        lake.daemon.started()
        lake.check(2)
        for version, statement in enumerate(CHANGES, 3):
            lake.sql(statement)
            lake.check(version)
        deltas = lake.keys("lake")
        assert "deleted 3 rows in 2 files, version 6: " in lake.command("delete", "--where", "id IN (20, 21, 22)")
        lake.take_back(lake.keys("lake") - deltas)
        lake.check(6)
        # The emulator may write down what readers asked a while later.
        poll = f"GET /{AZURE_ACCOUNT}/lake/t/_delta_log/{7:020d}.json 404"
        until(lambda: set(azure.requests()[-10:]) == {poll}, "ten polls of one request each")
    finally:
        lake.daemon.kill()
    assert "matches Delta: version 6 " in lake.command("verify", "--metadata")
    lake.command("compact")
    lake.command("expire")
    clock, place = LaterClock(), {"warehouse": f"abfss://warehouse@{HOST}/w"}
    bench = Bench(tmp_path, f"{LAKE}/t", name="lake.t", clock=clock, catalog=place, properties=azure.properties)
    clock.late_s = DAY_S
    assert Maintainer(bench.context).clean_up(Event()).failed == []
    used = referenced_files(bench.iceberg(), delete_files=True)
    assert {f"abfss://{key.replace('/', f'@{HOST}/', 1)}" for key in lake.keys("warehouse")} == used
    assert lake.keys("lake") >= deltas
    lake.check_rows(6)


def test_files_on_adls(azure: Azure) -> None:
    """Spans, listings, what is missing, conditional writes by many at once, and what is not allowed."""
    storage, path, folder = FileIOStorage(azure.properties), f"{LAKE}/files/a b%20/ü.bin", f"{LAKE}/files/a b%20"
    with ThreadPoolExecutor(8) as pool:
        data = [bytes([number]) * 100 for number in range(8)]
        won = list(pool.map(lambda each: put_if_absent(path, each, f"{LAKE}/files", azure.properties), data))
    assert won.count(True) == 1
    assert storage.read(path) == data[won.index(True)]
    assert [file.path for file in storage.list_below(f"{LAKE}/files")] == [path], "what was tried is gone"
    assert [file.path for file in storage.list_from(folder, "a")] == [path]
    assert storage.list_folders(f"{LAKE}/files") == ["a b%20"]
    assert [len(storage.read(path, Span(offset, 20))) for offset in (0, 90, 100, 1000)] == [20, 10, 0, 0]
    assert [len(storage.read_tail(path, size)[1]) for size in (7, 700)] == [7, 100]
    storage.delete(path)
    storage.delete(path)
    assert not storage.exists(path)
    assert list(storage.list_from(folder, "")) == []
    # As Hadoop marks the folder `marked/t`.
    for key, content in (("t", b""), ("t/a", b"1"), ("file", b"1"), ("file/a", b"1")):
        with azure.files.open_output_stream(f"lake/marked/{key}") as stream:
            stream.write(content)
    assert storage.list_folders(f"{LAKE}/marked") == ["t"]
    assert [file.path for file in storage.list_from(f"{LAKE}/marked", "")] == [f"{LAKE}/marked/file"]
    assert f"{LAKE}/marked/t/a" in {file.path for file in storage.list_below(LAKE)}
    with pytest.raises(ObjectMissing):
        storage.read(path)
    with pytest.raises(ObjectStoreAway, match="ContainerNotFound"):
        storage.list_from(f"abfss://nobody@{HOST}/t", "")
    with pytest.raises(ObjectStoreAway, match="AuthorizationFailure"):
        FileIOStorage({**azure.properties, "adls.account-key": "a2V5"}).read(path)
