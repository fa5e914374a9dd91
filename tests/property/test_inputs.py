"""One table's input cannot stop the others: whatever its log, statistics, schema or deletion vectors hold, it is
followed or refused by name, in a moment and with little memory.

`INPUTS=2000 pytest tests/property/test_inputs.py` gives so many random inputs of each kind, others each time, and tells
how many there were and which took longest.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kit.examples import examples
from tests.kit.handmade import PORTABLE_MAGIC, dv_payload, z85
from tests.kit.victim import Lake, Outcome, Watch, commit_of

INPUTS = int(os.environ.get("INPUTS", examples(80)))
# What a refusal may be called: the table waits for its writer, or for a person.
REFUSALS = {"CorruptInput", "Unsupported", "CommitIncomplete", "ObjectMissing"}
RANDOM = settings(
    max_examples=INPUTS,
    derandomize="INPUTS" not in os.environ,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
DV_UUID = "d2c639aa-8816-431a-aaf6-d3fe2512ff61"
DV_FILE = f"deletion_vector_{DV_UUID}.bin"


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Watch]:
    watch = Watch(tmp_path_factory.mktemp("inputs"))
    yield watch
    watch.stop()
    if "INPUTS" in os.environ:
        slowest = ", ".join(f"{seconds:.2f} s {name}" for seconds, name in sorted(watch.times, reverse=True)[:5])
        terminal = request.config.pluginmanager.get_plugin("terminalreporter")
        assert terminal is not None
        terminal.write_line(f"{len(watch.times)} inputs, the slowest: {slowest}")


def swallow(watch: Watch, files: Mapping[str, bytes], name: str) -> Outcome:
    outcome = watch.give(files, name)
    assert outcome.kind in REFUSALS | {"advanced"}, f"{name}: {outcome.kind}: {outcome.message}"
    return outcome


# --- JSON, with what no encoder would write ---

Place = tuple[str, ...]


class Raw(str):
    """JSON as it is to be written."""


def spelled(value: Any) -> str:
    """JSON of `value`, with `Raw` texts in it as they are."""
    match value:
        case Raw():
            return value
        case dict():
            return "{" + ", ".join(f"{spelled(name)}: {spelled(inner)}" for name, inner in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(spelled, value)) + "]"
    return json.dumps(value)


def with_value(tree: Any, place: Place, value: Any) -> Any:
    """`tree` with another value at `place`, which need not be there."""
    if not place:
        return value
    inner = tree if isinstance(tree, dict) else {}
    return {**inner, place[0]: with_value(inner.get(place[0]), place[1:], value)}


NUMBERS = [
    "1e999999",
    "-1e999999999",
    "1e99999999999999999999",
    "1e-99999999999999999999",
    "9" * 5_000,
    "-" + "9" * 4_000,
    "0." + "1" * 100_000,
    "NaN",
    "-Infinity",
    "1.7976931348623157e309",
    "9223372036854775808",
    "-9223372036854775809",
    "2147483648",
    "-2147483649",
    "-1",
    "-0.0",
    "0",
    "1",
    "3",
    "1.5",
    "0x10",
    "1_000",
]
TEXTS = [
    '""',
    '"\\u0000"',
    '"\\ud800"',
    '"\\udfff\\ud800"',
    '"\u202e\u2028\x7f\x9b"',
    '"%00"',
    '"%ED%A0%80"',
    '"../../x"',
    '"file:///dev/zero"',
    '"file:///proc/self/mem"',
    '"s4://nobody/x"',
    '"://"',
    '"é\u0301 表 \\ud83d\\ude00"',
    '"1e999999"',
    '"1e99999999999999999999"',
    '"+294247-01-10T04:00:54.775Z"',
    '"2020-01-01T00:00:00.' + "0" * 100_000 + '"',
    '"' + "9" * 100_000 + '"',
    '"' + " " * 200_000 + '"',
    '"' + "\\n " * 100_000 + '"',
    '"{"',
    '"[]"',
]
OTHERS = [
    "null",
    "true",
    "{}",
    "[]",
    "[1]",
    '{"a": 1, "a": 2}',
    "[" * 900 + "]" * 900,
    "[" * 100_000,
    '{"a":' * 100_000 + "1" + "}" * 100_000,
    '[{"": null}, "x", -1]',
    "",
    "nul",
    "'x'",
    "\x00",
]
RAW = st.sampled_from([*map(Raw, NUMBERS), *map(Raw, TEXTS), *map(Raw, OTHERS)])
ANY_JSON = st.recursive(
    RAW | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
DV_PLACES = [("storageType",), ("pathOrInlineDv",), ("sizeInBytes",), ("cardinality",), ("offset",), ()]
ADD_PLACES: list[Place] = [
    (),
    ("path",),
    ("size",),
    ("partitionValues",),
    ("partitionValues", "part"),
    ("dataChange",),
    ("stats",),
    ("tags",),
    *(("deletionVector", *place) for place in DV_PLACES),
]
METADATA_PLACES: list[Place] = [
    (),
    ("id",),
    ("schemaString",),
    ("partitionColumns",),
    ("configuration",),
    ("configuration", "delta.columnMapping.mode"),
    ("configuration", "delta.columnMapping.maxColumnId"),
    ("configuration", "delta.logRetentionDuration"),
    ("format",),
]
ACTION_PLACES: list[Place] = [
    *(("add", *place) for place in ADD_PLACES),
    *(("remove", *place) for place in ADD_PLACES),
    *(("metaData", *place) for place in METADATA_PLACES),
    ("protocol",),
    ("protocol", "minReaderVersion"),
    ("protocol", "readerFeatures"),
    ("commitInfo",),
    ("commitInfo", "operation"),
    ("commitInfo", "inCommitTimestamp"),
    ("cdc",),
    ("somethingNew",),
]


def actions_of(lake: Lake) -> dict[str, Any]:
    """One action of each kind, all of them true."""
    return {
        "commitInfo": {"operation": "WRITE", "timestamp": 0},
        "protocol": lake.protocol,
        "metaData": lake.metadata,
        "remove": {name: lake.live[name] for name in ("path", "dataChange", "deletionVector")},
        "add": lake.add,
    }


@RANDOM
@given(
    changes=st.dictionaries(st.sampled_from(ACTION_PLACES), ANY_JSON, min_size=1, max_size=3),
    left_out=st.sets(st.sampled_from(["commitInfo", "protocol", "metaData", "remove"])),
    one_line=st.booleans(),
)
def test_actions(watch: Watch, changes: dict[Place, Any], left_out: set[str], one_line: bool) -> None:
    """Any field of any action may be anything that JSON can spell, and some things that it cannot."""
    actions = {kind: action for kind, action in actions_of(watch.lake).items() if kind not in left_out}
    for place, value in changes.items():
        actions = with_value(actions, place, value)
    lines = [spelled(actions)] if one_line else [spelled({kind: action}) for kind, action in actions.items()]
    swallow(watch, commit_of(*(line.encode(errors="surrogatepass") for line in lines)), f"action {list(changes)}")


@RANDOM
@given(flips=st.lists(st.tuples(st.integers(0, 1_500), st.integers(0, 255)), max_size=4), cut=st.integers(0, 3_000))
def test_bytes_of_a_commit(watch: Watch, flips: list[tuple[int, int]], cut: int) -> None:
    """Flipped and cut bytes."""
    ((name, data),) = commit_of(
        *(json.dumps({kind: action}) for kind, action in actions_of(watch.lake).items())
    ).items()
    broken = bytearray(data)
    for at, value in flips:
        broken[at % len(broken)] = value
    swallow(watch, {name: bytes(broken[: len(broken) - cut % len(broken)])}, "bytes of a commit")


@RANDOM
@given(
    changes=st.dictionaries(
        st.sampled_from([(), ("numFiles",), ("tableSizeBytes",), ("numDeletedRecordsOpt",), ("allFiles",)]), ANY_JSON
    )
)
def test_checksums(watch: Watch, changes: dict[Place, Any]) -> None:
    """Whatever a checksum file says, the version is shown: at most, states are compared."""
    checksum: Any = {"numFiles": 2, "tableSizeBytes": watch.lake.live["size"] + watch.lake.add["size"]}
    for place, value in changes.items():
        checksum = with_value(checksum, place, value)
    commit = commit_of(json.dumps({"add": watch.lake.add}))
    ((name, _),) = commit.items()
    data = spelled(checksum).encode(errors="surrogatepass")
    outcome = swallow(watch, {**commit, name.replace(".json", ".crc"): data}, "checksum")
    assert outcome.kind == "advanced", outcome.message


STATISTICS_PLACES: list[Place] = [
    (),
    *(
        (name, *place)
        for name in ("minValues", "maxValues", "nullCount")
        for place in ((), ("id",), ("value",), ("x",))
    ),
    ("numRecords",),
    ("tightBounds",),
]
# Of each type, and one that is in a struct.
COLUMNS = (
    "integer",
    "long",
    "float",
    "double",
    "decimal(38,18)",
    "decimal(9,2)",
    "string",
    "date",
    "timestamp",
    "binary",
)


def wide_metadata(lake: Lake, kind: str) -> dict[str, Any]:
    """`id` has the type `kind`."""
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name in ("x", "value")]
    old = json.loads(lake.metadata["schemaString"])["fields"]
    return {**lake.metadata, "schemaString": json.dumps({"type": "struct", "fields": [old[0], fields[0]]})}


@RANDOM
@given(
    kind=st.sampled_from(COLUMNS),
    minimum=ANY_JSON,
    maximum=ANY_JSON | st.none(),
    changes=st.dictionaries(st.sampled_from(STATISTICS_PLACES), ANY_JSON, max_size=2),
    deleted=st.booleans(),
)
def test_statistics(
    watch: Watch, *, kind: str, minimum: Any, maximum: Any, changes: dict[Place, Any], deleted: bool
) -> None:
    """Statistics of a column of any type, each end of which may be anything."""
    stats: Any = {
        "numRecords": 3,
        "minValues": {"x": minimum},
        "maxValues": {"x": minimum if maximum is None else maximum},
    }
    for place, value in changes.items():
        stats = with_value(stats, place, value)
    add = {**watch.lake.add, "stats": spelled(stats)}
    if deleted:
        add["deletionVector"] = inline([1])
    lines = [{"remove": actions_of(watch.lake)["remove"]}, {"metaData": wide_metadata(watch.lake, kind)}, {"add": add}]
    swallow(watch, commit_of(*map(json.dumps, lines)), f"statistics of a {kind}")


@RANDOM
@given(kind=st.sampled_from([*COLUMNS, "boolean", "timestamp_ntz", "byte"]), value=ANY_JSON)
def test_partition_values(watch: Watch, kind: str, value: Any) -> None:
    """A partition value of any type."""
    metadata = {**wide_metadata(watch.lake, kind), "partitionColumns": ["x"]}
    lines = [
        {"remove": actions_of(watch.lake)["remove"]},
        {"metaData": metadata},
        {"add": {**watch.lake.add, "partitionValues": {"x": value}}},
    ]
    data = [spelled(line).encode(errors="surrogatepass") for line in lines]
    swallow(watch, commit_of(*data), f"partition value of a {kind}")


FIELD = {"name": "x", "type": "long", "nullable": True, "metadata": {}}
FIELD_PLACES: list[Place] = [
    (),
    ("name",),
    ("type",),
    ("type", "type"),
    ("type", "fields"),
    ("type", "elementType"),
    ("type", "containsNull"),
    ("type", "keyType"),
    ("type", "valueType"),
    ("nullable",),
    ("metadata",),
    ("metadata", "comment"),
    ("metadata", "delta.columnMapping.id"),
    ("metadata", "delta.columnMapping.physicalName"),
    ("metadata", "delta.columnMapping.nested.ids"),
]
TYPES = st.sampled_from(
    [
        "long",
        "decimal(38,18)",
        "decimal(99999999999,0)",
        "decimal(٣,٢)",
        "void",
        {"type": "array", "elementType": "long", "containsNull": True},
        {
            "type": "map",
            "keyType": "string",
            "valueType": {"type": "struct", "fields": [FIELD]},
            "valueContainsNull": True,
        },
        {"type": "struct", "fields": [FIELD, FIELD]},
        {"type": "struct", "fields": []},
    ]
)


@RANDOM
@given(
    fields=st.lists(
        st.tuples(TYPES, st.dictionaries(st.sampled_from(FIELD_PLACES), ANY_JSON | TYPES, max_size=2)), max_size=3
    ),
    mode=st.sampled_from(["none", "name", "id"]),
    highest=st.sampled_from(["0", "3", "x", "9" * 5_000, "-1", "1e9", str(1 << 31)]),
    retention=st.sampled_from(
        ["interval 1 week", "interval " + "9" * 500 + " weeks", "1e999 days", "week " * 5_000, ""]
    ),
    partition=st.lists(st.sampled_from(["id", "x", "x", "nowhere"]), max_size=3),
)
def test_schemas(
    watch: Watch,
    *,
    fields: Sequence[tuple[Any, dict[Place, Any]]],
    mode: str,
    highest: str,
    retention: str,
    partition: list[str],
) -> None:
    """A schema whose fields and types may be anything, with ids of column mapping or without."""
    struct_fields = json.loads(watch.lake.metadata["schemaString"])["fields"]
    for number, (kind, changes) in enumerate(fields):
        ids = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"c{number}"}
        field: Any = {**FIELD, "type": kind, "metadata": ids}
        for place, value in changes.items():
            field = with_value(field, place, value)
        struct_fields.append(field)
    metadata = {
        **watch.lake.metadata,
        "schemaString": spelled({"type": "struct", "fields": struct_fields}),
        "partitionColumns": partition,
        "configuration": {
            "delta.columnMapping.mode": mode,
            "delta.columnMapping.maxColumnId": highest,
            "delta.logRetentionDuration": retention,
            "delta.deletedFileRetentionDuration": retention,
        },
    }
    lines = [{"remove": actions_of(watch.lake)["remove"]}, {"metaData": metadata}]
    swallow(watch, commit_of(*map(json.dumps, lines)), "schema")


# --- deletion vectors ---


def framed(payload: bytes, size: int | None = None) -> bytes:
    size_field = struct.pack(">I", (len(payload) if size is None else size) & 0xFFFFFFFF)
    return size_field + payload + struct.pack(">I", zlib.crc32(payload))


def inline(positions: Sequence[int]) -> dict[str, Any]:
    payload = dv_payload(positions)
    return {
        "storageType": "i",
        "pathOrInlineDv": z85(payload),
        "sizeInBytes": len(payload),
        "cardinality": len(positions),
    }


def churned(lake: Lake, descriptor: Mapping[str, Any]) -> dict[str, bytes]:
    """The commit that gives the live file another deletion vector."""
    remove = actions_of(lake)["remove"]
    return commit_of(
        *(json.dumps(line) for line in ({"remove": remove}, {"add": {**lake.live, "deletionVector": descriptor}}))
    )


def dv_at(size: int, *, cardinality: int = 2, offset: int = 1) -> dict[str, Any]:
    return {
        "storageType": "u",
        "pathOrInlineDv": "^-aqEH.-t@S}K{vb[*k^",
        "offset": offset,
        "sizeInBytes": size,
        "cardinality": cardinality,
    }


SIZES = st.sampled_from([0, 1, 8, 40, 1 << 16, 1 << 29, (1 << 31) - 1])


@RANDOM
@given(
    positions=st.sets(st.integers(0, 3) | st.integers(0, 1 << 40), max_size=6),
    flips=st.lists(st.tuples(st.integers(0, 120), st.sampled_from([0, 1, 0x7F, 0x80, 0xFF])), max_size=4),
    kept=st.integers(0, 200) | st.just(200),
    more=st.binary(max_size=3),
    sealed=st.booleans(),
    size=st.none() | SIZES,
    cardinality=st.none() | st.sampled_from([0, 1, 3, 4, -1, 1 << 62]),
    offset=st.sampled_from([1, 1, 1, 0, 5, (1 << 31) - 1]),
)
def test_bytes_of_a_deletion_vector(
    watch: Watch,
    *,
    positions: set[int],
    flips: list[tuple[int, int]],
    kept: int,
    more: bytes,
    sealed: bool,
    size: int | None,
    cardinality: int | None,
    offset: int,
) -> None:
    """Flipped, cut and further bytes, under a checksum that fits or not, and a descriptor that says otherwise."""
    payload = bytearray(dv_payload(positions))
    for at, value in flips:
        payload[at % len(payload)] = value
    broken = bytes(payload[:kept]) + more
    data = b"\x01" + (framed(broken) if sealed else framed(dv_payload(positions))[:4] + broken)
    descriptor = dv_at(
        len(broken) if size is None else size,
        cardinality=len(positions) if cardinality is None else cardinality,
        offset=offset,
    )
    swallow(watch, {**churned(watch.lake, descriptor), DV_FILE: data}, "bytes of a deletion vector")


def roaring(*words: int, tail: bytes = b"") -> bytes:
    """A portable deletion vector: the number of bitmaps as 64 bits, then 32-bit words."""
    return struct.pack("<iQ", PORTABLE_MAGIC, words[0]) + struct.pack(f"<{len(words) - 1}I", *words[1:]) + tail


ABSURD = {
    "2^64 bitmaps": roaring((1 << 64) - 1),
    "1000 bitmaps, of which one is there": roaring(1000, 0, 12346, 0),
    "2^32 containers": roaring(1, 0, 12346, (1 << 32) - 1),
    "65536 containers without any": roaring(1, 0, 12346, 65536),
    "65536 run containers without any": roaring(1, 0, 12347 | 65535 << 16),
    "a container of 65536 values without any": roaring(1, 0, 12346, 1, 0xFFFF0000, 16),
    "a run container of 65535 runs": roaring(1, 0, 12347, tail=b"\x01" + struct.pack("<HHH", 0, 0xFFFF, 0xFFFF)),
    "upper bits of 2^32": roaring(1, (1 << 32) - 1, 12346, 0),
    "1024 empty bitmaps": roaring(1024, *(word for upper in range(1024) for word in (upper, 12346, 0))),
    "another magic": b"\x00" * 40,
}


@pytest.mark.parametrize("storage", ["u", "i"])
@pytest.mark.parametrize("name", ABSURD)
def test_absurd_counts_in_a_deletion_vector(watch: Watch, name: str, storage: str) -> None:
    """A header that promises more than there is, under a checksum that fits: no memory is asked for."""
    payload = ABSURD[name]
    descriptor = {
        **dv_at(len(payload)),
        **({"storageType": "i", "pathOrInlineDv": z85(payload)} if storage == "i" else {}),
    }
    files = {**churned(watch.lake, descriptor), DV_FILE: b"\x01" + framed(payload)}
    assert swallow(watch, files, name).kind == "CorruptInput"


@pytest.mark.parametrize("size", [(1 << 31) - 1, 1 << 29, 1 << 28])
@pytest.mark.parametrize("size_in_file", [None, 5])
def test_a_deletion_vector_that_claims_to_be_large(watch: Watch, size: int, size_in_file: int | None) -> None:
    """Of gigabytes, by the log and by its file: neither is believed before the bytes are there."""
    data = b"\x01" + framed(dv_payload([1, 2]), size if size_in_file is None else size_in_file)
    outcome = swallow(watch, {**churned(watch.lake, dv_at(size)), DV_FILE: data}, f"DV of {size} bytes")
    assert outcome.kind in ("CorruptInput", "Unsupported")


# --- the ones that stopped the process, or were called a bug ---


def statistics(lake: Lake, stats: str) -> dict[str, bytes]:
    return commit_of(json.dumps({"add": {**lake.add, "stats": stats}}))


def bounds(lake: Lake, number: str) -> dict[str, bytes]:
    return statistics(lake, f'{{"numRecords": 3, "minValues": {{"id": {number}}}, "maxValues": {{"id": {number}}}}}')


def schema(lake: Lake, schema_string: str) -> dict[str, bytes]:
    return commit_of(json.dumps({"metaData": {**lake.metadata, "schemaString": schema_string}}))


def columns(lake: Lake, *fields: Mapping[str, Any]) -> dict[str, bytes]:
    old = json.loads(lake.metadata["schemaString"])["fields"]
    return schema(lake, spelled({"type": "struct", "fields": [*old, *fields]}))


def nested(levels: int, before: str, after: str) -> Raw:
    return Raw(before * levels + '"long"' + after * levels)


def bombs(lake: Lake) -> Iterator[tuple[str, dict[str, bytes], str]]:
    """Each with the kind of the refusal, or `advanced`."""
    yield "a bound of 1e999999", bounds(lake, "1e999999"), "advanced"
    yield "a bound of 1e99999999", bounds(lake, "1e99999999"), "advanced"
    yield "a bound of 1e99999999999999999999", bounds(lake, "1e99999999999999999999"), "advanced"
    yield "a bound of 5,000 digits", bounds(lake, "9" * 5_000), "advanced"
    yield "a bound of a million digits after the point", bounds(lake, "0." + "1" * 1_000_000), "advanced"
    yield "a bound of 100,000 blanks", bounds(lake, '"' + " " * 100_000 + '"'), "advanced"
    yield "statistics nested 100,000 deep", statistics(lake, "[" * 100_000), "advanced"
    keys = ", ".join(f'"k{number}": {number}' for number in range(1_000_000 // 2))
    yield (
        "statistics of a million keys",
        statistics(lake, f'{{"minValues": {{{keys}}}, "x": {{{keys}}}}}'),
        "Unsupported",
    )
    few = ", ".join(f'"k{number}": 1' for number in range(500_000))
    yield "statistics of half a million keys", statistics(lake, f'{{"minValues": {{{few}}}}}'), "advanced"
    twice = '{"numRecords": 3, "numRecords": 1e999999, "minValues": {"id": 1, "id": 1e9999}, "maxValues": {"id": 2}}'
    yield "keys that are there twice", statistics(lake, twice), "advanced"
    deep = '{"a":' * 100_000 + "1" + "}" * 100_000
    for kind in ("commitInfo", "add", "somethingNew"):
        yield (
            f"{kind} nested 100,000 deep",
            commit_of(f'{{"{kind}": {deep}}}', json.dumps({"add": lake.add})),
            "CorruptInput",
        )
    yield "an action twice in a line", commit_of('{"add": 1, "add": ' + json.dumps(lake.add) + "}"), "CorruptInput"
    yield "a line of 20 MB", commit_of('{"commitInfo": {"x": "' + "y" * (20 << 20) + '"}}'), "Unsupported"
    yield "a million lines", commit_of(*['{"txn": {}}'] * 1_000_000), "advanced"
    yield "an operation of 5 MB", commit_of('{"commitInfo": {"operation": "' + "y" * (5 << 20) + '"}}'), "advanced"
    path = json.dumps({"add": {**lake.add, "path": "x" + " " * 200_000 + "y"}})
    yield "a path of 200,000 blanks", commit_of(path), "CorruptInput"
    yield "a path with a NUL", commit_of(json.dumps({"add": {**lake.add, "path": "a%00b"}})), "CorruptInput"
    yield (
        "a partition value of 10 MB",
        commit_of(
            json.dumps({"metaData": {**lake.metadata, "partitionColumns": ["id"]}}),
            json.dumps({"add": {**lake.add, "partitionValues": {"id": "9" * (10 << 20)}}}),
        ),
        "Unsupported",
    )
    yield "a schema nested 100,000 deep", schema(lake, "[" * 100_000), "CorruptInput"
    yield (
        "a schema of 100,000 columns",
        columns(lake, *({**FIELD, "name": f"column_{n}"} for n in range(100_000))),
        "Unsupported",
    )
    yield (
        "a schema of 20,000 columns",
        columns(lake, *({**FIELD, "name": f"column_{n}"} for n in range(20_000))),
        "advanced",
    )
    for what, before, after in (
        ("structs", '{"type":"struct","fields":[{"name":"x","nullable":true,"metadata":{},"type":', "}]}"),
        ("lists", '{"type":"array","containsNull":true,"elementType":', "}"),
        ("maps", '{"type":"map","valueContainsNull":true,"keyType":"string","valueType":', "}"),
    ):
        for levels, kind in ((25, "advanced"), (26, "Unsupported"), (1_000, "CorruptInput")):
            field = {**FIELD, "type": nested(levels, before, after)}
            yield f"{levels} {what} in one another", columns(lake, field), kind


def test_what_stopped_the_process(watch: Watch, subtests: pytest.Subtests) -> None:
    """Small inputs that take hours without bounds, or are refused by Python itself: told by name, in a moment."""
    for name, files, kind in bombs(watch.lake):
        with subtests.test(name):
            assert swallow(watch, files, name).kind == kind
