"""The inspection decides on mirrors, and accepts the ones that were decided on."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from daemon.delta.actions import AddFile
from daemon.errors import MirrorKind, Unsupported
from daemon.mirror.copying import MirrorCopy
from daemon.mirror.decision import MirrorPlan, plan_mirror
from daemon.mirror.making import MirrorTask, make_mirrors
from daemon.mirror.parquet import encode_footer, load_footer
from daemon.mirror.rewriting import RewriteTask, check_rewrite
from daemon.pipeline.inspection import Inspector
from daemon.pipeline.mirrors import KINDS, MirrorPlanner
from daemon.store.storage import FileIOStorage
from daemon.translate.partition_values import partition_of
from daemon.translate.schema import TableSchema
from tests.kit.mirror_files import column, list_of, table_of

STORAGE = FileIOStorage()


def planned(add: AddFile, table: TableSchema) -> MirrorPlan | None:
    inspector = Inspector(STORAGE, table)
    footer = load_footer(STORAGE, add.path).metadata
    return plan_mirror(add.path, footer, table, lambda footer: inspector.check_file(add, footer))


def made(add: AddFile, table: TableSchema, plan: MirrorPlan) -> AddFile:
    """The mirror, as a file that is added; it passes the inspection."""
    footer = load_footer(STORAGE, add.path)
    mirror = f"{add.path.rpartition('/')[0]}/mirror.parquet"
    values = partition_of(add, table, table.spec_id)
    partition = {field.source_id: value for field, value in zip(table.spec.fields, values, strict=True)}
    task: MirrorTask = MirrorCopy(add.path, add.size, b"", mirror)
    if plan.footer:
        task = MirrorCopy(add.path, footer.start, encode_footer(plan.footer), mirror)
    elif plan.kind == "rewrite":
        task = RewriteTask(add.path, mirror, table, partition, {})
        check_rewrite(footer.metadata, task)
    (written,) = make_mirrors(STORAGE, {}, [task])
    as_added = msgspec.structs.replace(add, path=mirror, size=written[mirror])
    metrics, _ = Inspector(STORAGE, table).inspect_file(as_added)
    assert metrics.record_count == pq.read_metadata(local(add)).num_rows
    return as_added


def local(add: AddFile) -> str:
    return add.path.removeprefix("file://")


def added(path: Path, columns: dict[str, Any], values: dict[str, str | None] | None = None, **written: Any) -> AddFile:
    keys = written.pop("keys", {})
    pq.write_table(pa.table(columns).replace_schema_metadata(keys), path, **written)
    return AddFile(f"file://{path}", True, partition_values=values or {}, size=path.stat().st_size)


FAR = datetime(2500, 1, 1)
OLD = {"org.apache.spark.version": "2.4.0"}
ODD = pa.array([None], pa.duration("us"))
INT96: dict[str, Any] = {"use_deprecated_int96_timestamps": True}


@pytest.mark.parametrize(
    ("columns", "delta", "written", "kind"),
    [
        ({"c": [1]}, "long", {}, None),
        ({"C": [[1]]}, list_of("long"), {}, None),
        ({"c": pa.array([FAR], pa.timestamp("us"))}, "timestamp", {}, "footer"),
        ({"c": pa.array([datetime(2020, 1, 1)])}, "timestamp", INT96, None),
        ({"c": pa.array([FAR], pa.timestamp("us"))}, "timestamp", INT96, "rewrite"),
        ({"c": pa.array([date(1500, 1, 1)])}, "date", {"keys": OLD}, "rewrite"),
        # A fault that a footer mends, before one that it does not.
        ({"c": pa.array([date(1500, 1, 1)]), "d": ODD}, "date", {"keys": OLD}, "rewrite"),
        ({"c": pa.array([FAR], pa.timestamp("us")), "d": ODD}, "timestamp", INT96, "rewrite"),
    ],
)
def test_the_cheapest_mirror_is_planned(
    columns: dict[str, Any], delta: Any, written: dict[str, Any], kind: MirrorKind | None, tmp_path: Path
) -> None:
    """Of all faults of a file, the worst one counts; values are looked at, too, by the names in the new footer."""
    add = added(tmp_path / "f.parquet", columns, **written)
    table = table_of(column("c", delta))
    plan = planned(add, table)
    assert (plan and plan.kind) == kind
    if plan:
        assert pq.read_table(local(made(add, table, plan)))["c"].to_pylist() in (
            [FAR.replace(tzinfo=UTC)],
            [date(1499, 12, 23)],
        )


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["x", "x"], None),
        (["x", "y"], "rewrite"),
        (pa.array([None, None], pa.string()), "rewrite"),
        (pa.nulls(2), "rewrite"),
        ([1, 2], "rewrite"),
        ([[{"y": 1}], []], "rewrite"),
    ],
)
@pytest.mark.parametrize("is_odd", [False, True])
def test_partition_values(values: Any, kind: MirrorKind | None, is_odd: bool, tmp_path: Path) -> None:
    """They are compared in the file's pages, whatever a new footer calls the columns."""
    more = {"h": pa.array([1, 2], pa.duration("us"))} if is_odd else {}
    add = added(tmp_path / "f.parquet", {"P": values, "a": [1, 2], **more}, {"p": "x"}, write_statistics=False)
    table = table_of(column("a", "long"), column("p", "string"), partitions=["p"])
    plan = planned(add, table)
    assert (plan and plan.kind) == (kind or ("footer" if is_odd else None))
    if plan:
        rows = pq.read_table(local(made(add, table, plan)))
        assert rows["p"].to_pylist() == ["x", "x"] and rows["a"].to_pylist() == [1, 2]


def test_defaults_of_columns_that_a_file_has(tmp_path: Path) -> None:
    """They make no other mirror of it: not every sync knows them."""
    filled = {**column("p", "long"), "metadata": {"EXISTS_DEFAULT": "7"}}
    table = table_of(column("c", "double"), filled)
    with_it = added(tmp_path / "f.parquet", {"c": pa.array([1], pa.int32()), "p": [2]})
    without = added(tmp_path / "g.parquet", {"c": pa.array([1], pa.int32())})
    names = {
        default: [
            MirrorPlanner(STORAGE, table, KINDS["rewrite"], "id", {"p": default}).plan([each]).mirrors[0].made
            for each in (with_it, without)
        ]
        for default in ("7", "8")
    }
    unknown = MirrorPlanner(STORAGE, table, KINDS["rewrite"], "id").plan([with_it]).mirrors[0].made
    assert unknown == names["7"][0] == names["8"][0]
    assert names["7"][1] != names["8"][1]


def test_doubles_that_manifests_cannot_hold(tmp_path: Path) -> None:
    """The file gets the column."""
    add = added(tmp_path / "f.parquet", {"a": [1, 2]}, {"p": "0.1"})
    table = table_of(column("a", "long"), column("p", "double"), partitions=["p"])
    plan = planned(add, table)
    assert plan is not None and plan.kind == "rewrite" and "is 0.1 and no float" in plan.reason
    assert pq.read_table(local(made(add, table, plan)))["p"].to_pylist() == [0.1, 0.1]


def test_paths_that_readers_cut(tmp_path: Path) -> None:
    """Another name is enough, unless the file has faults; what no mirror lifts is refused by its own name."""
    table = table_of(column("a", "timestamp"))
    add = added(tmp_path / "f#.parquet", {"a": pa.array([0], pa.timestamp("us", "UTC"))})
    plan = planned(add, table)
    assert plan is not None and plan.kind == "copy" and "'#' or '?'" in plan.reason
    assert Path(local(made(add, table, plan))).read_bytes() == Path(local(add)).read_bytes()
    add = added(tmp_path / "g?.parquet", {"a": pa.array([0], pa.timestamp("us"))})
    plan = planned(add, table)
    assert plan is not None and plan.kind == "footer"
    made(add, table, plan)
    add = added(tmp_path / "h?.parquet", {"a": [1]})
    with pytest.raises(Unsupported, match="column a of the file is stored as int64"):
        planned(add, table)
