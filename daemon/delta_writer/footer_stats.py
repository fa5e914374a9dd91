"""Statistics of a data file that has none in the log, from its Parquet footer, as Delta's own DELETE computes them.

Delta's StatsCollectionUtils.computeStats is the model: bounds of whole numbers, floats, dates and texts, and counts of
nulls; no bounds of timestamps and decimals. Where Delta takes a bound that may be too narrow, which would hide rows for
ever, it is left out here: see `_bounds`. So are null counts of lists and maps, in which Delta counts empty ones.
"""

from __future__ import annotations

import math
import re
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

from pyiceberg.types import DateType, DoubleType, FloatType, IntegerType, LongType, StringType

from daemon.delta.actions import Metadata
from daemon.delta.features import fields_of
from daemon.errors import CorruptInput, Unsupported
from daemon.mirror import parquet as form
from daemon.mirror.compact import BINARY, I64, LIST, STRUCT, Struct
from daemon.mirror.parquet import Node, items_of, load_footer, parse_schema
from daemon.predicate.columns import comparable_type
from daemon.predicate.tree import Path
from daemon.store.storage import FileIOStorage
from daemon.translate.delta_types import MAPPING_ID, metadata_of, parse_struct, physical_name

Json = dict[str, Any]

# Delta's defaults (DataSkippingReaderConf, DeltaSQLConf.DATA_SKIPPING_STRING_PREFIX_LENGTH).
COLUMNS_DEFAULT: Final = 32
TEXT_CHARACTERS_DEFAULT: Final = 32
NAME: Final = re.compile(r"\s*(?:`(?P<quoted>(?:[^`]|``)+)`|(?P<plain>[^\s`.,]+))\s*(?P<sign>[.,]|$)")
NUMBER: Final = re.compile(r"-?[0-9]{1,9}")
# Delta ends a greatest text that it cuts with the first of these that is greater than what was cut off.
LAST_ASCII, LAST_CHARACTER = "\x7f", "\U0010ffff"
# Days before may be of the Julian calendar, and date.toString of Java has no years of five digits.
FIRST_DAY, LAST_DAY = date(1582, 10, 15).toordinal(), date.max.toordinal()
EPOCH: Final = date(1970, 1, 1).toordinal()
# Of NaN: it is its greatest number, so that a column with one has no finite maximum. Others leave it out, and some have
# names that begin likewise: "parquet-mr compatible Photon version …", "parquet-mr-trino version …".
JAVA_WRITER: Final = b"parquet-mr version "

# parquet.thrift: types, converted types and logical types that a column of a type has in a file of Spark's.
STORED_AS: Final[dict[type, tuple[int, tuple[int | None, ...], int | None, str]]] = {
    IntegerType: (1, (None, 15, 16, 17), 10, "<i"),
    LongType: (2, (None, 18), 10, "<q"),
    FloatType: (4, (None,), None, "<f"),
    DoubleType: (5, (None,), None, "<d"),
    DateType: (1, (6,), 6, "<i"),
    StringType: (6, (0,), 1, ""),
}


@dataclass(frozen=True)
class Indexed:
    """A column, or a field inside structs, of which Delta keeps statistics. `kind` is Iceberg's; None has no bounds."""

    path: Path  # physical names
    kind: Any
    key: Path | int  # by which a file has it: the path, or the id


@dataclass(frozen=True)
class Indexing:
    """What a table wants statistics of."""

    columns: Sequence[Indexed]
    text_characters: int


def indexing_of(metadata: Metadata) -> Indexing:
    """Return the columns with statistics: those that the table's properties name, else so many of the first ones.

    None for properties that Delta would not accept.
    """
    leaves = list(_leaves(metadata))
    told = metadata.configuration.get("delta.dataSkippingStatsColumns")
    if told is not None:
        wanted = _parse_names(told)
        columns = [column for names, column in leaves if any(names[: len(each)] == each for each in wanted)]
    else:
        count = _number(metadata, "delta.dataSkippingNumIndexedCols", COLUMNS_DEFAULT)
        columns = [column for _, column in leaves[: len(leaves) if count < 0 else count]]
    return Indexing(columns, _number(metadata, "delta.dataSkippingStringPrefixLength", TEXT_CHARACTERS_DEFAULT))


def _number(metadata: Metadata, key: str, default: int) -> int:
    text = metadata.configuration.get(key, str(default))
    return int(text) if NUMBER.fullmatch(text) else 0


def _parse_names(text: str) -> list[Path]:
    """Parse a list such as "id, place.city, `a.b`", in small letters: case does not count. Empty if it is no list."""
    names, at, sign = list[Path](), 0, ","
    while sign:
        found = NAME.match(text, at)
        if found is None:
            return []
        name = found["plain"] or found["quoted"].replace("``", "`")
        inside = names.pop() if sign == "." else ()
        names.append((*inside, name.lower()))
        sign, at = found["sign"], found.end()
    return names


def _leaves(metadata: Metadata) -> Iterator[tuple[Path, Indexed]]:
    """Yield the names, in small letters, and the places of all columns that do not partition the table."""
    by_id = metadata.column_mapping_mode == "id"

    def walk(kind: Any, above: tuple[Json, ...]) -> Iterator[tuple[Path, Indexed]]:
        for field in fields_of(kind):
            steps = (*above, field)
            if isinstance(field["type"], dict) and field["type"].get("type") == "struct":
                yield from walk(field["type"], steps)
            else:
                path = tuple(map(physical_name, steps))
                key = int(metadata_of(field)[MAPPING_ID]) if by_id else path
                names = tuple(str(step["name"]).lower() for step in steps)
                yield names, Indexed(path, comparable_type(steps, ".".join(path)), key)

    partitions = set(metadata.partition_columns)
    for field in fields_of({**parse_struct(metadata.schema_string), "type": "struct"}):
        if field["name"] not in partitions:
            yield from walk({"type": "struct", "fields": [field]}, ())


def load_stats(storage: FileIOStorage, path: str, record_count: int, indexing: Indexing) -> Json:
    """Return a file's statistics, of all its rows: with one request, if the footer is not large.

    Empty if the footer is not one that we read to the end: statistics only save readers time. Raises `ObjectMissing`
    and `ObjectStoreAway`.
    """
    try:
        return stats_of(load_footer(storage, path).metadata, record_count, indexing)
    except (CorruptInput, Unsupported):
        return {}


def stats_of(footer: Struct, record_count: int, indexing: Indexing) -> Json:
    """Return what a footer says of the columns. Raises `CorruptInput` for one that is damaged."""
    groups = [items_of(group, form.CHUNKS, LIST, STRUCT) for group in items_of(footer, form.ROW_GROUPS, LIST, STRUCT)]
    orders = items_of(footer, form.COLUMN_ORDERS, LIST, STRUCT)
    is_java = _value(footer, form.CREATED_BY, BINARY, b"").startswith(JAVA_WRITER)
    places = _places(parse_schema(footer))
    stats: Json = {"numRecords": record_count, "minValues": {}, "maxValues": {}, "nullCount": {}, "tightBounds": False}
    for column in indexing.columns:
        if (place := places.get(column.key)) is None:
            continue
        number, node = place
        chunks = [_value(group[number], form.CHUNK_METADATA, STRUCT, {}) for group in groups if number < len(group)]
        if len(chunks) != len(groups) or not chunks:
            continue
        # Only the Java writer is known to count a field as null where its struct is.
        nulls = _null_count(chunks) if len(column.path) == 1 or is_java else None
        if nulls is not None and nulls <= record_count:
            _put(stats["nullCount"], column.path, nulls)
        is_ordered = number < len(orders) and form.TYPE_ORDER in orders[number]
        is_finite = is_java or not isinstance(column.kind, FloatType | DoubleType)
        if is_ordered and is_finite and _is_stored_as(node, column.kind):
            bounds = _bounds(chunks, column.kind, indexing.text_characters)
            if bounds is not None:
                _put(stats["minValues"], column.path, bounds[0])
                _put(stats["maxValues"], column.path, bounds[1])
    return {name: value for name, value in stats.items() if value != {}}


def _value(struct: Struct, field_id: int, kind: int, default: Any) -> Any:
    """Return the value of a field; the default if it has none of this type."""
    found, value = struct.get(field_id, (kind, default))
    return value if found == kind else default


def _put(values: Json, path: Path, value: Any) -> None:
    for name in path[:-1]:
        values = values.setdefault(name, {})
    values[path[-1]] = value


def _places(root: Node) -> dict[Path | int, tuple[int, Node]]:
    """Return the number of each primitive column by path and by id, without those in lists and maps, or found twice."""
    found = list[tuple[Path, Node, bool]]()

    def walk(node: Node, path: Path, is_repeated: bool) -> None:
        for each in node.children:
            inside, repeated = (*path, each.name), is_repeated or each.value(form.REPETITION) == form.REPEATED
            if each.children:
                walk(each, inside, repeated)
            else:
                found.append((inside, each, repeated))

    walk(root, (), False)
    keyed = [
        (key, (number, node), repeated)
        for number, (path, node, repeated) in enumerate(found)
        for key in (path, node.value(form.FIELD_ID))
        if key is not None
    ]
    times = Counter(key for key, _, _ in keyed)
    return {key: place for key, place, repeated in keyed if times[key] == 1 and not repeated}


def _null_count(chunks: Sequence[Struct]) -> int | None:
    counts = [_value(_value(chunk, form.STATISTICS, STRUCT, {}), form.NULL_COUNT, I64, None) for chunk in chunks]
    return None if None in counts or min(counts) < 0 else sum(counts)


def _is_stored_as(node: Node, kind: Any) -> bool:
    """Return whether a file has a column in the type that the table has now: one that was widened gets no bounds."""
    stored = STORED_AS.get(type(kind))
    if stored is None:
        return False
    physical, converted, logical, _ = stored
    named = node.value(form.LOGICAL)
    return (
        node.value(form.TYPE) == physical
        and node.value(form.CONVERTED) in converted
        and (named is None or (node.value(form.CONVERTED) is not None and named.keys() == {logical}))
    )


def _bounds(chunks: Sequence[Struct], kind: Any, text_characters: int) -> tuple[Any, Any] | None:
    """Return the least and the greatest value as in JSON; None if some row group does not say it, or not for sure."""
    lows, highs = [], []
    try:
        for chunk in chunks:
            statistics = _value(chunk, form.STATISTICS, STRUCT, {})
            if _value(statistics, form.NULL_COUNT, I64, None) == _value(chunk, form.VALUES, I64, -1):
                continue
            low, high = (_value(statistics, each, BINARY, None) for each in (form.MIN_VALUE, form.MAX_VALUE))
            if low is None or high is None or statistics.get(form.MAX_IS_EXACT, (0, True))[1] is False:
                return None
            if _value(statistics, form.NAN_COUNT, I64, 0):
                return None  # Whoever counts them leaves them out of the bounds.
            lows.append(_decoded(low, kind))
            highs.append(_decoded(high, kind))
    except (ValueError, struct.error):
        return None
    if not lows:
        return None
    least, most = min(lows), max(highs)
    return _in_json(least, most, kind, text_characters) if least <= most else None


def _decoded(stored: bytes, kind: Any) -> Any:
    """Return a value. Raises ValueError and struct.error if it is none, or NaN or infinite."""
    if isinstance(kind, StringType):
        return stored.decode()
    (value,) = struct.unpack(STORED_AS[type(kind)][3], stored)
    if not math.isfinite(value):
        raise ValueError("NaN has no place in the order of numbers")
    return value


def _in_json(least: Any, most: Any, kind: Any, text_characters: int) -> tuple[Any, Any] | None:
    bounds: tuple[Any, Any] | None = least, most
    match kind:
        case FloatType() | DoubleType():
            # parquet.thrift, "ColumnOrder": a zero may stand for the other one.
            bounds = least or -0.0, most or 0.0
        case DateType():
            first, last = EPOCH + least, EPOCH + most
            is_plain = first >= FIRST_DAY and last <= LAST_DAY
            bounds = (str(date.fromordinal(first)), str(date.fromordinal(last))) if is_plain else None
        case StringType():
            end = _cut_up(most, text_characters)
            bounds = None if end is None else (least[:text_characters], end)
    return bounds


def _cut_up(text: str, characters: int) -> str | None:
    """Return a text that is not less than `text`, and not much longer than `characters`. None if there is none.

    Delta's StatisticsCollection.truncateMaxStringAgg. For example, "abc" cut to 2 is "ab" and the greatest of ASCII.
    """
    if len(text) <= characters:
        return text
    if characters <= 0:
        return None
    kept = next((at for at in range(characters, len(text)) if text[at] != LAST_CHARACTER), len(text))
    if kept > 2 * characters:
        return None
    if kept == len(text):
        return text
    return text[:kept] + (LAST_ASCII if text[kept] < LAST_ASCII else LAST_CHARACTER)
