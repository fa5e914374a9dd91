"""Which files of a log are live is for Delta on Spark to say, whatever spellings and deletion vectors it has."""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from itertools import combinations, product
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pyspark.sql import DataFrame, SparkSession

from daemon.clock import SystemClock
from daemon.delta.actions import AddFile, Commit, LogicalFile, RemoveFile
from daemon.delta.log import DeltaLog
from daemon.delta.log_segment import LogSegment, load_log_segment
from daemon.delta.replay import fold_commits
from daemon.delta.snapshot import _NewestFirst, replay
from daemon.delta.uri import name_file
from daemon.errors import FileLiveTwice, StateMismatch
from daemon.pipeline import data_manifests
from daemon.spark.answers import collect
from daemon.spark.table_state import Name, check_certain, read_names, read_table_state
from daemon.store.storage import FileIOStorage
from state import DeletionVectorDescriptor
from tests.integration.test_delta_log import DELTA, delta_log
from tests.kit.handmade import Bench, HandmadeTable
from tests.kit.spark_process import conf_values

T = TypeVar("T")
Action = dict[str, Any]
# (version, kind, spelling, deletion vector).
Step = tuple[int, str, str, str | None]
# Spellings of one file each. Where `{n}` is, each history has its own number: no file is named by two histories.
SPELLINGS = (
    (
        *("k/é-{n}", "k/%C3%A9-{n}", "k/%c3%a9-{n}", "k/é%2D{n}"),
        *("./k/é-{n}", "k//é-{n}", "k/x/../é-{n}", "x/%2E%2E/k/é-{n}", "k%2Fé-{n}"),
        *("{t}/k/%C3%A9-{n}", "file:{t}/k/é-{n}", "file://{t}/k/é-{n}", "FILE:{t}//k/é-{n}"),
    ),
    ("p=a%2520b/é-{n}", "p=a%2520b/%C3%A9-{n}", "p=a%2520b//é-{n}"),
    ("q%20r/{n}", "q%20r/./{n}"),
    ("q%5br/{n}", "q%5Br/{n}"),
)
HISTORIES: tuple[Callable[[str, str], list[Step]], ...] = (
    lambda one, other: [(1, "add", one, None), (2, "remove", other, None)],
    lambda one, other: [(1, "add", one, None), (2, "add", other, None)],
    lambda one, other: [(1, "add", one, None), (2, "remove", other, None), (2, "add", one, "v")],
    lambda one, other: [(1, "add", one, "v"), (2, "remove", other, "v"), (3, "remove", other, "v")],
    lambda one, other: [(1, "add", one, "v"), (2, "remove", other, None), (3, "add", other, "v")],
    lambda one, other: [
        (1, "add", one, "v"),
        (2, "add", other, "w"),
        (3, "remove", one, "v"),
        (3, "remove", one, None),
    ],
    lambda one, other: [(1, "remove", other, None), (2, "add", one, None)],
)


def vector(name: str) -> Action:
    return {"storageType": "u", "pathOrInlineDv": name * 20, "offset": 1, "sizeInBytes": 40, "cardinality": 2}


def as_json(step: Step) -> Action:
    _, kind, path, name = step
    more = {"deletionVector": vector(name)} if name else {}
    if kind == "remove":
        return {"remove": {"path": path, "deletionTimestamp": 1, "dataChange": True, **more}}
    return {"add": {"path": path, "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True, **more}}


def commits_of(location: str, steps: list[Step]) -> list[Commit]:
    commits = []
    for version in (1, 2, 3):
        adds, removes = list[AddFile](), list[RemoveFile]()
        for _, kind, written, name in (step for step in steps if step[0] == version):
            path, uri = name_file(location, written)
            dv = DeletionVectorDescriptor("u", name * 20, 40, 2, 1) if name else None
            if kind == "add":
                adds.append(AddFile(path, True, dv, uri, partition_values={}, size=1))
            else:
                removes.append(RemoveFile(path, True, dv, uri))
        commits.append(Commit(version, version, tuple(adds), tuple(removes)))
    return commits


def test_every_spelling_is_judged_by_delta(spark: SparkSession, tmp_path: Path) -> None:
    """Two spellings of one file in any order of adds and removes, with deletion vectors, repeated and missing removes.

    Where Delta's answer depends on how it divides its replay, and where a file is live twice, the log is refused. What
    Spark reads is refused for the same reasons, although VACUUM may forget the tombstones.
    """
    table = HandmadeTable(tmp_path / "é t")
    table.create()
    folder = str(table.folder).replace("é", "%C3%A9").replace(" ", "%20")
    pairs = [pair for spellings in SPELLINGS for pair in product(spellings, repeat=2)]
    histories = [
        history(*(each.replace("{n}", str(number)).replace("{t}", folder) for each in pair))
        for number, (pair, history) in enumerate(product(pairs, HISTORIES))
    ]
    commit_all(table, histories)

    log = DeltaLog(FileIOStorage(), table.location, SystemClock())
    start = log.read_commit(0)
    told = [live_in_delta(spark, table, partitions) for partitions in (1, 23)]
    names = defaultdict[str, list[Name]](list)
    for name in read_names(spark, table.location, delta_log(spark, table.folder).unsafeVolatileSnapshot()):
        names[name[2][0]].append(name)
    outcomes: Counter[str] = Counter()
    all_shown, shown_histories = set[LogicalFile](), list[list[Step]]()
    for steps in histories:
        commits = commits_of(table.location, steps)
        paths = {action.path for commit in commits for action in commit.file_actions}
        one_partition, many = ({file for path in paths for file in each.get(path, ())} for each in told)
        shown, refused = or_refusal(partial(replayed, table.location, [*reversed(commits), start]))
        _, on_spark = or_refusal(partial(check_certain, [name for path in paths for name in names[path]]))
        assert on_spark == refused, steps
        if refused is None:
            assert shown == one_partition == many, steps
            outcomes["shown" if shown else "gone"] += 1
            all_shown |= shown or set()
            shown_histories.append(steps)
        elif "live adds for the one path" in refused:
            spelled = {path for _, _, path, _ in steps}
            assert max(len(one_partition), len(many)) > 1 or are_equal_in_java(spark, spelled), (steps, refused)
            outcomes["twice"] += 1
        else:
            assert "depends on the reader" in refused
            assert are_equal_in_java(spark, {path for _, _, path, _ in steps}), (steps, one_partition, many)
            outcomes["by chance"] += 1
        try:
            change = fold_commits(commits, {})
        except StateMismatch:
            continue
        assert {add.logical_file for add in change.added.values()} == shown, steps
        outcomes["followed"] += 1
    assert all(outcomes[kind] >= 20 for kind in ("twice", "by chance", "shown", "gone", "followed")), outcomes

    # The same files again, in a log of the same table, with a checkpoint below its last commits.
    shutil.rmtree(table.folder)
    table.version = -1
    table.create()
    commit_all(table, shown_histories, checkpoint=lambda: delta_log(spark, table.folder).checkpoint())
    segment = load_log_segment(log)
    assert segment.checkpoint
    assert segment.commits
    for read in (replay(log, segment), read_table_state(spark, log)):
        assert read
        assert {add.logical_file for add in read.read_adds()} == all_shown


def commit_all(table: HandmadeTable, histories: list[list[Step]], checkpoint: Callable[[], None] | None = None) -> None:
    for version in (1, 2, 3):
        table.commit([as_json(step) for steps in histories for step in steps if step[0] == version])
        if checkpoint and version == 1:
            checkpoint()


def replayed(location: str, newest_first: list[Commit]) -> set[LogicalFile]:
    newest = _NewestFirst(location)
    for commit in newest_first:
        newest.take_commit(commit)
    return {add.logical_file for add in newest.state(LogSegment(3, None, (), {}), location).read_adds()}


def or_refusal(read: Callable[[], T]) -> tuple[T | None, str | None]:
    try:
        return read(), None
    except FileLiveTwice as refused:
        return None, refused.message


def are_equal_in_java(spark: SparkSession, paths: set[str]) -> bool:
    """Whether they are one URI in more than one text, after Hadoop's `Path` has normalised them."""
    jvm: Any = spark._jvm
    uris = [jvm.org.apache.hadoop.fs.Path(jvm.java.net.URI(path)).toUri() for path in paths]
    return any(one.equals(other) and one.toString() != other.toString() for one, other in combinations(uris, 2))


def live_in_delta(spark: SparkSession, table: HandmadeTable, partitions: int) -> dict[str, list[LogicalFile]]:
    """The live logical files by path, as Delta replays the log in so many partitions."""
    with conf_values(spark, {f"{DELTA}.snapshotPartitions": str(partitions)}):
        snapshot = delta_log(spark, table.folder).unsafeVolatileSnapshot()
        columns = ("path", "deletionVector.pathOrInlineDv AS dv")
        rows = collect(DataFrame(snapshot.allFiles().toDF(), spark).selectExpr(*columns)).to_pylist()
    live: dict[str, list[LogicalFile]] = {}
    for row in rows:
        path, uri = name_file(table.location, row["path"])
        live.setdefault(path, []).append((path, (uri, f"u{row['dv']}@1" if row["dv"] else None)))
    return live


def test_what_spark_reads_is_refused_as_well(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is live twice in two parts of a first sync, and a remove that Delta happens not to apply."""
    monkeypatch.setattr(data_manifests, "MANIFEST_ENTRIES_MAX", 1)
    table = HandmadeTable(tmp_path / "t")
    table.create()
    path = table.write_file([(1, "a", "x")], name="x-y")
    add = table.add(path)["add"]
    table.commit([{"add": add}, {"add": {**add, "path": f"{table.location}/{path}"}}])
    bench = Bench(tmp_path / "dvsync", table.location, engine="spark")
    with pytest.raises(
        FileLiveTwice, match=f"2 live adds for the one path .*{path}: in its usual spelling, .*; spelled file:"
    ):
        bench.sync()
    assert not bench.exists()
    remove = {"deletionTimestamp": 1, "dataChange": True}
    table.commit([{"remove": {"path": f"{table.location}/{path}", **remove}}, {"add": {**add, "path": "%C3%A9"}}])
    table.commit([{"remove": {"path": "%c3%a9", **remove}}])
    with (
        conf_values(spark, {f"{DELTA}.snapshotPartitions": "23"}),
        pytest.raises(FileLiveTwice, match=r"/é spelled %c3%a9, .* and its add is spelled %C3%A9, "),
    ):
        bench.sync()
    bench.close()
