"""Mirrors on S3, with moto: S3 copies the pages, and only footers go through this process."""

from __future__ import annotations

import gc
import io
import secrets
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import StaticTable

from daemon.clock import SystemClock
from daemon.errors import CorruptInput, ObjectMissing, ObjectStoreAway, Unsupported
from daemon.mirror import copying
from daemon.mirror.copying import MirrorCopy, copy_bytes
from daemon.mirror.footer import mend_footer
from daemon.mirror.making import make_mirrors
from daemon.mirror.parquet import encode_footer, load_footer
from daemon.mirror.rewriting import RewriteTask
from daemon.sources.credentials import Credentials, Vended, VendedStorage
from daemon.store import object_store, s3_parts
from daemon.store.storage import FileIOStorage
from tests.kit.checks import rows_of
from tests.kit.handmade import RANDOM, Bench
from tests.kit.handmade_mirrored import Mirrored
from tests.kit.mirror_files import column, table_of
from tests.kit.servers import ObjectStore

SMALL, LARGE = 100_000, 12 << 20


@dataclass
class Counted:
    """A server before moto that counts the bytes both ways, and may answer some requests itself."""

    port: int = 0
    bytes_through: int = 0
    answers: dict[bytes, list[bytes]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def counted(to_port: int) -> Iterator[Counted]:
    listener = socket.create_server(("127.0.0.1", 0))
    found = Counted(listener.getsockname()[1])
    threads: list[threading.Thread] = []

    def between(client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", to_port)) as server, suppress(OSError):
            while True:
                for source in select.select((client, server), (), ())[0]:
                    if not (data := source.recv(1 << 16)):
                        return
                    found.bytes_through += len(data)
                    own = [each for sign, each in found.answers.items() if source is client and sign in data and each]
                    if own:
                        client.sendall(own[0].pop(0))
                    else:
                        (server if source is client else client).sendall(data)

    def serve() -> None:
        with suppress(OSError):
            while True:
                threads.append(threading.Thread(target=between, args=(listener.accept()[0],)))
                threads[-1].start()

    threads.append(threading.Thread(target=serve))
    threads[0].start()
    try:
        yield found
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        object_store._opened.cache_clear()  # Its client keeps connections open.
        gc.collect()
        for each in threads:
            each.join(10)


@pytest.fixture
def proxy(store: ObjectStore) -> Iterator[Counted]:
    object_store._opened.cache_clear()
    with counted(store.port) as found:
        yield found


def properties(store: ObjectStore, proxy: Counted) -> dict[str, str]:
    return {**store.properties, "s3.endpoint": proxy.url}


def put(store: ObjectStore, key: str, data: bytes) -> str:
    store.client("s3").put_object(Bucket="lake", Key=key, Body=data)
    return f"s3://lake/{key}"


def read(store: ObjectStore, key: str, bucket: str = "warehouse") -> bytes:
    return bytes(store.client("s3").get_object(Bucket=bucket, Key=key)["Body"].read())


def uploads(store: ObjectStore) -> list[object]:
    return list(store.client("s3").list_multipart_uploads(Bucket="warehouse").get("Uploads", ()))


def test_only_the_footer_goes_through(store: ObjectStore, proxy: Counted) -> None:
    """Reading a footer and making the mirror take less than 64 KiB of a file of more than 5 MiB."""
    file = io.BytesIO()
    numbers = pa.array(range(1_500_000), pa.int64())
    pq.write_table(pa.table({"ID": numbers}), file, use_dictionary=False, compression="none", row_group_size=300_000)
    path = put(store, "t/date=2020-01-01/é ~a+b.parquet", file.getvalue())
    assert len(file.getvalue()) > LARGE - (1 << 20)
    source = FileIOStorage(properties(store, proxy))
    footer = load_footer(source, path)
    tail = encode_footer(mend_footer(footer.metadata, table_of(column("id", "long"))))
    copy = MirrorCopy(path, footer.start, tail, "s3://warehouse/m/é ~a+b.parquet")
    assert copy_bytes(copy, source, properties(store, proxy)) == footer.start + len(tail)
    assert proxy.bytes_through < 64 << 10
    rows = pq.read_table(io.BytesIO(read(store, "m/é ~a+b.parquet")))
    assert rows.column_names == ["id"] and rows["id"].to_pylist() == list(range(1_500_000))
    assert not uploads(store)


def test_large_files_are_copied_in_parts(store: ObjectStore, proxy: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a file that is only to have another name ends with a copied part."""
    monkeypatch.setattr(s3_parts, "COPIED_PART_BYTES_MAX", 10 << 20)
    data = secrets.token_bytes(LARGE + 1)
    path = put(store, "t/a#b?c=%41.parquet", data)
    told = properties(store, proxy)
    copy_bytes(MirrorCopy(path, len(data), b"", "s3://warehouse/m/copy.parquet"), FileIOStorage(told), told)
    assert read(store, "m/copy.parquet") == data
    assert proxy.bytes_through < 8 << 10
    assert sum("partNumber" in each for each in store.requests if "copy.parquet" in each) == 2


def test_small_files_are_put_whole(store: ObjectStore, proxy: Counted) -> None:
    """S3 has no parts of less than 5 MiB."""
    data = secrets.token_bytes(SMALL)
    path, told = put(store, "t/small.parquet", data), properties(store, proxy)
    copy_bytes(MirrorCopy(path, SMALL - 10, b"end", "s3://warehouse/m/small.parquet"), FileIOStorage(told), told)
    assert read(store, "m/small.parquet") == data[:-10] + b"end"
    assert [each for each in store.requests if "m/small.parquet" in each and "GET" not in each] == [
        "PUT /warehouse/m/small.parquet"
    ]


def test_a_source_that_the_target_may_not_read_is_streamed(store: ObjectStore, proxy: Counted) -> None:
    """Each with its own credentials, and in blocks."""
    data = secrets.token_bytes(LARGE)
    path = put(store, "t/secret.parquet", data)
    reads, writes = store.new_user("reads", "lake"), store.new_user("writes", "warehouse")
    source, target = (
        {**properties(store, proxy), "s3.access-key-id": key, "s3.secret-access-key": secret}
        for key, secret in (reads, writes)
    )
    # moto does not ask whether the source may be read.
    proxy.answers[b"x-amz-copy-source"] = [FORBIDDEN]
    copy_bytes(MirrorCopy(path, LARGE, b"end", "s3://warehouse/m/streamed"), FileIOStorage(source), target)
    assert read(store, "m/streamed") == data + b"end"
    assert proxy.bytes_through > 2 * LARGE
    assert not uploads(store)


@pytest.mark.parametrize("may_read", [True, False])
def test_credentials_of_a_catalog(store: ObjectStore, proxy: Counted, tmp_path: Path, *, may_read: bool) -> None:
    """They read the Delta table, and those of the target write: S3 copies if these may read it, too."""
    table = Mirrored(tmp_path / "delta")
    table.create()
    values = [RANDOM.randbytes(1_500_000).hex() for _ in range(2)]
    files = [
        table.write_file([(number, "x", value) for number, value in enumerate(values)]),
        table.write_file([(2, "x", "a")]),
        table.write_file([(3, "x", "b"), (4, "y", "c")]),
    ]
    table.commit([table.add(path) for path in files])
    for path in table.take_new_files():
        store.client("s3").upload_file(str(path), "lake", f"{table.table_id}/{path.relative_to(table.folder)}")
    location, told = f"s3://lake/{table.table_id}", properties(store, proxy)
    users = {name: store.new_user(f"{name}-{table.table_id}", name) for name in ("lake", "warehouse")}
    key, secret = users["lake"]
    given = Vended(location, None, {"s3.access-key-id": key, "s3.secret-access-key": secret})
    key, secret = users["warehouse"]
    target = {**told, "s3.access-key-id": key, "s3.secret-access-key": secret}
    storage = VendedStorage(Credentials(lambda: [given], location, target, SystemClock()))
    proxy.answers[b"x-amz-copy-source"] = [] if may_read else [FORBIDDEN]
    options = {"catalog": {"warehouse": f"s3://warehouse/{table.table_id}"}, "properties": target}
    folder = tmp_path / "dvsync"
    with closing(Bench(folder, location, table_options={"mirrors": "copy"}, storage=storage, **options)) as bench:
        proxy.bytes_through = 0
        bench.sync()
        size = (table.folder / files[0]).stat().st_size
        assert (proxy.bytes_through > 2 * size) == (not may_read)
        read_by_other = StaticTable.from_metadata(bench.iceberg().metadata_location, store.properties)
        assert rows_of(read_by_other.scan().to_arrow()) == table.live_rows()
        assert len(bench.store.list_live_mirrors(1)) == 2


def test_what_a_sync_reads_of_large_files(store: ObjectStore, proxy: Counted, tmp_path: Path) -> None:
    """All in all less than 64 KiB go through this process for each file, in a first sync and in a later one."""
    table, count = Mirrored(tmp_path / "delta"), 1
    location, told = f"s3://lake/{table.table_id}", properties(store, proxy)
    options = {"catalog": {"warehouse": f"s3://warehouse/{table.table_id}"}, "properties": told}

    def send() -> None:
        for path in table.take_new_files():
            store.client("s3").upload_file(str(path), "lake", f"{table.table_id}/{path.relative_to(table.folder)}")

    def sync(bench: Bench) -> None:
        proxy.bytes_through = 0
        bench.sync()
        assert [each.kind for each in bench.store.list_live_mirrors(1)] == ["footer"] * count
        assert proxy.bytes_through < count * (64 << 10)

    table.create()
    send()
    with closing(Bench(tmp_path / "later", location, table_options={"mirrors": "footer"}, **options)) as bench:
        bench.sync()
        files = []
        for number in range(count):
            # Of three files, the first has wrong ids.
            files.append(table.write_file([(number, "x", RANDOM.randbytes(3_000_000).hex())]))
            table.rows |= {f"{number}": [], f"{number} too": []}
            assert (table.folder / files[-1]).stat().st_size > 5 << 20
        table.commit([table.add(path) for path in files])
        send()
        sync(bench)
    with closing(Bench(tmp_path / "first", location, table_options={"mirrors": "footer"}, **options)) as bench:
        sync(bench)


def test_another_store_is_streamed_to_and_from(store: ObjectStore, proxy: Counted, tmp_path: object) -> None:
    """Here a local disk."""
    data, told = secrets.token_bytes(LARGE), properties(store, proxy)
    path = put(store, "t/near.parquet", data)
    copy_bytes(MirrorCopy(path, LARGE, b"end", f"file://{tmp_path}/m/near"), FileIOStorage(told), {})
    with open(f"{tmp_path}/m/near", "rb") as file:
        assert file.read() == data + b"end"
    copy_bytes(MirrorCopy(f"{tmp_path}/m/near", LARGE, b"2", "s3://warehouse/m/far"), FileIOStorage({}), told)
    assert read(store, "m/far") == data + b"2"


def test_rows_are_written_from_bucket_to_bucket(store: ObjectStore, proxy: Counted) -> None:
    """A mirror appears when it is whole and closed, and then it is read again."""
    file, told = io.BytesIO(), properties(store, proxy)
    rows = pa.table({"n": pa.array(range(3_000_000), pa.int32()), "t": pa.array([None] * 3_000_000, pa.date32())})
    pq.write_table(rows, file, row_group_size=1_000_000, use_dictionary=False, compression="none")
    path = put(store, "t/ints.parquet", file.getvalue())
    table = table_of(column("n", "double"), column("t", "date"))
    task = RewriteTask(path, "s3://warehouse/m/doubles.parquet", table, {}, {})
    (written,) = make_mirrors(FileIOStorage(told), told, [task])
    data = read(store, "m/doubles.parquet")
    assert written == {task.mirror: len(data)}
    assert pq.read_table(io.BytesIO(data)).equals(rows.cast(pa.schema({"n": pa.float64(), "t": pa.date32()})))
    # The last row group has a day that no reader can show.
    last = pa.table({"n": rows["n"], "t": pa.array([*[0] * 2_999_999, -800_000], pa.int32()).cast(pa.date32())})
    last = last.replace_schema_metadata({"org.apache.spark.version": "2.4.0"})
    pq.write_table(last, file := io.BytesIO(), row_group_size=1_000_000)
    task = RewriteTask(put(store, "t/old.parquet", file.getvalue()), "s3://warehouse/m/old", table, {}, {})
    with pytest.raises(Unsupported, match="before the year 1"):
        list(make_mirrors(FileIOStorage(told), told, [task]))
    assert "m/old" not in store.keys("warehouse") and not uploads(store)


def test_what_a_kill_leaves_behind(store: ObjectStore, proxy: Counted) -> None:
    """Parts of a mirror, which no listing of files has. Those of its neighbours stay."""
    client, told = store.client("s3"), properties(store, proxy)
    for key in ("m/é&<killed", "m/é&<killed too"):
        client.create_multipart_upload(Bucket="warehouse", Key=key)
    copying.remove_uploads("s3://warehouse/m/é&<killed", told)
    copying.remove_uploads("s3://warehouse/m/never", told)
    copying.remove_uploads("file:///m/local", told)
    (kept,) = client.list_multipart_uploads(Bucket="warehouse")["Uploads"]
    assert kept["Key"] == "m/é&<killed too"
    copying.remove_uploads("s3://warehouse/m/é&<killed too", told)
    assert not uploads(store)
    proxy.answers[b"?prefix"] = [SLOW_DOWN] * s3_parts.ATTEMPTS
    with pytest.raises(ObjectStoreAway):
        copying.remove_uploads("s3://warehouse/m/never", told)


FORBIDDEN = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"
SLOW_DOWN = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n"
LATE_ERROR = b"<Error><Code>InternalError</Code></Error>"
FAILED_LATE = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(LATE_ERROR), LATE_ERROR)


@pytest.mark.parametrize("sign", [b"?uploads", b"partNumber=1", b"partNumber=2", b"?uploadId"])
@pytest.mark.parametrize("answer", [SLOW_DOWN, FAILED_LATE])
def test_a_store_that_fails_once_is_asked_again(store: ObjectStore, proxy: Counted, sign: bytes, answer: bytes) -> None:
    """An answer of 200 may say below that the work failed."""
    data, told = secrets.token_bytes(6 << 20), properties(store, proxy)
    path = put(store, "t/again.parquet", data)
    proxy.answers[sign] = [answer]
    copy_bytes(MirrorCopy(path, len(data), b"end", "s3://warehouse/m/again"), FileIOStorage(told), told)
    assert not proxy.answers[sign]
    assert read(store, "m/again") == data + b"end"


@pytest.mark.parametrize("sign", [b"?uploads", b"partNumber=1", b"partNumber=2", b"?uploadId"])
def test_a_store_that_keeps_failing_is_away(store: ObjectStore, proxy: Counted, sign: bytes) -> None:
    """No parts are left that cost money, and no secret is told."""
    data, told = secrets.token_bytes(6 << 20), properties(store, proxy)
    path = put(store, "t/away.parquet", data)
    proxy.answers[sign] = [SLOW_DOWN] * s3_parts.ATTEMPTS
    with pytest.raises(ObjectStoreAway, match="failed 3 times") as raised:
        copy_bytes(MirrorCopy(path, len(data), b"end", "s3://warehouse/m/away"), FileIOStorage(told), told)
    assert store.secret not in repr(raised.value) and store.secret not in repr(raised.value.__cause__)
    assert "m/away" not in store.keys("warehouse") and not uploads(store)


def test_a_file_that_is_gone_or_shorter(store: ObjectStore, proxy: Counted) -> None:
    """S3 refuses to copy from it; the stream says why."""
    told = properties(store, proxy)
    path = put(store, "t/short.parquet", secrets.token_bytes(6 << 20))
    with pytest.raises(CorruptInput, match="the file has fewer than"):
        copy_bytes(MirrorCopy(path, 7 << 20, b"end", "s3://warehouse/m/short"), FileIOStorage(told), told)
    with pytest.raises(ObjectMissing):
        copy_bytes(MirrorCopy("s3://lake/none", 7 << 20, b"", "s3://warehouse/m/short"), FileIOStorage(told), told)
    assert "m/short" not in store.keys("warehouse") and not uploads(store)


def test_where_our_client_cannot_be_used(store: ObjectStore, proxy: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without credentials that it may use, or where Arrow's client is needed, the bytes are streamed."""
    told = properties(store, proxy)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    assert object_store.find_access("b", {**told, "s3.proxy-uri": "http://p"}) is None
    assert object_store.find_access("b", {**told, "s3.role-arn": "r"}) is None
    monkeypatch.setattr(object_store, "_ask_botocore", lambda: (None, None, None))
    data = secrets.token_bytes(6 << 20)
    path = put(store, "t/stream.parquet", data)
    monkeypatch.setattr(copying, "find_access", lambda *_: None)
    copy_bytes(MirrorCopy(path, len(data), b"end", "s3://warehouse/m/stream"), FileIOStorage(told), told)
    assert read(store, "m/stream") == data + b"end"


def test_credentials_of_the_environment(store: ObjectStore, proxy: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a token, as roles have them; AWS itself has an address for each region."""
    for name, value in {"ACCESS_KEY_ID": "k", "SECRET_ACCESS_KEY": "s", "SESSION_TOKEN": "t"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    found = object_store.find_access("b", {"s3.region": "eu-west-1"})
    assert found is not None and found.base == "https://s3.eu-west-1.amazonaws.com/b/"
    assert (found.access_key_id, found.secret_access_key, found.session_token) == ("k", "s", "t")
    assert "'s'" not in repr(found) and "'t'" not in repr(found)
