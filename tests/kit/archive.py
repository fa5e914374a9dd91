"""What Spark wrote in a test, recorded into an archive below `tests/histories/` and replayed from it without a JVM.

An archive has the test's calls in their order: what was asked, which files below the tables' folders came, changed and
went, and the answer. A call that is not the recorded one fails with the command that records anew.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import re
import tarfile
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from textwrap import dedent
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from daemon.delta.log import COMMIT_FILE
from tests.kit.spark_process import SparkProcess, SparkRefused
from tests.kit.spark_session import CONF
from tests.kit.writer import POSITION_COLUMN, Writer

FOLDER = Path(__file__).parents[1] / "histories"
# Another number makes all archives out of date.
RECORDER = 1
ROOT = "{root}"
COMPRESSION_LEVEL = 19
# What else than rows Spark's own settings decide: they are part of what was recorded.
MATTERING = ("spark.sql.", "spark.databricks.")


class Outdated(AssertionError):
    """The archive is not of this test as it is now, or not of this Delta."""


class Call(msgspec.Struct, omit_defaults=True):
    """`asked` is what the test wanted, and `by_hand` which files it had changed itself since the call before.

    `changes` are Spark's, in the order in which a reader may see them: a path and its contents, or None where it went.
    """

    asked: dict[str, Any]
    by_hand: dict[str, str | None]
    changes: list[tuple[str, str | None]]
    answer: Any = None
    table: str | None = None
    error: str | None = None


def made_with() -> dict[str, Any]:
    return {
        "recorder": RECORDER,
        "delta": version("delta-spark"),
        "spark": version("pyspark"),
        "settings": {key: value for key, value in CONF.items() if key.startswith(MATTERING)},
    }


class Archive(msgspec.Struct, omit_defaults=True):
    """The calls of one test, and contents by their digests."""

    made_with: dict[str, Any]
    calls: list[Call]
    contents: dict[str, bytes] = {}

    def keep(self, data: bytes) -> str:
        found = digest(data)
        self.contents[found] = data
        return found

    def write(self, path: Path) -> None:
        history = msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(self, contents={})), indent=1)
        members = {"history.json": history, "history.digest": digest(history).encode(), **self.contents}
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for name, data in members.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        codec = pa.Codec("zstd", compression_level=COMPRESSION_LEVEL)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(codec.compress(packed.getvalue(), asbytes=True))

    @classmethod
    def read(cls, path: Path) -> Archive:
        """Raises ValueError when it is damaged."""
        try:
            with pa.input_stream(path, compression="zstd") as stream:
                packed = io.BytesIO(stream.read())
            with tarfile.open(fileobj=packed) as tar:
                members = {each.name: tar.extractfile(each).read() for each in tar.getmembers()}  # type: ignore[union-attr]
            history = members.pop("history.json")
            if digest(history) != members.pop("history.digest").decode():
                raise ValueError("the history is not what was written")
            if wrong := [name for name, data in members.items() if digest(data) != name]:
                raise ValueError(f"{wrong[0]} is not what was written")
            return msgspec.structs.replace(msgspec.json.decode(history, type=cls), contents=members)
        except (OSError, tarfile.TarError, KeyError) as error:
            raise ValueError(str(error)) from error


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


class _Kept(Writer):
    """Calls of a test whose tables are below `root`, and what it changes in their folders by hand."""

    def __init__(self, spark: SparkProcess, path: Path, test: str, root: Path) -> None:
        super().__init__(spark)
        self.path, self.test, self.root = path, test, root
        self._folders: dict[Path, None] = {}
        # What is there, as this writer has left it: path -> (when changed, size, digest).
        self._left: dict[str, tuple[int, int, str]] = {}

    def _asked(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> dict[str, Any]:
        """A call in words that are the same in any folder. What the function does is part of it."""
        assert function.__closure__ is None, f"{function} is not of a module: its text does not say what it does"
        for folder in arguments:
            if isinstance(folder, Path):
                assert folder.is_relative_to(self.root), f"{folder} is not below {self.root}"
                self._folders[folder] = None
        code = digest(code_of(function).encode())
        asked: dict[str, Any] = {"do": function.__name__, "with": list(arguments), "code": code}
        if self.settings:
            asked["settings"] = self.settings
        return json.loads(self._moved(json.dumps(asked, default=str)))  # type: ignore[no-any-return]

    def _moved(self, text: str) -> str:
        return text.replace(str(self.root), ROOT)

    def _changed(self) -> dict[str, tuple[str | None, int]]:
        """The files that changed since the last call of this: their digests (None: gone), and when."""
        there: dict[str, tuple[int, int, str]] = {}
        for folder in self._folders:
            for path in folder.rglob("*"):
                if path.is_file():
                    name, stat = path.relative_to(self.root).as_posix(), path.stat()
                    known = self._left.get(name)
                    same = known is not None and known[:2] == (stat.st_mtime_ns, stat.st_size)
                    there[name] = (
                        known if same and known else (stat.st_mtime_ns, stat.st_size, digest(path.read_bytes()))
                    )
        found: dict[str, tuple[str | None, int]] = {
            name: (each[2], each[0]) for name, each in there.items() if self._left.get(name, (0, 0, ""))[2] != each[2]
        }
        found |= {name: (None, 0) for name in self._left.keys() - there.keys()}
        self._left = there
        return found

    def _by_hand(self) -> dict[str, str | None]:
        return {name: each for name, (each, _) in sorted(self._changed().items())}

    def _outdated(self, why: str) -> Outdated:
        return Outdated(f"{why}. Record it: make histories TESTS='{self.test}'")


class Recorder(_Kept):
    """Spark, whose calls are written into the archive when the test has passed."""

    def __init__(self, spark: SparkProcess, path: Path, test: str, root: Path) -> None:
        super().__init__(spark, path, test, root)
        self.archive = Archive(made_with(), [])

    def do(self, function: Callable[..., Any], *arguments: Any) -> Any:
        asked = self._asked(function, arguments)
        call = Call(asked, self._by_hand(), [])
        self.archive.calls.append(call)
        try:
            answer = Writer.do(self, function, *arguments)
        except SparkRefused as error:
            call.error = self._moved(str(error))
            raise
        finally:
            call.changes = self._changes()
        if isinstance(answer, pa.Table):
            call.table = self.archive.keep(as_bytes(replaced(answer, str(self.root), ROOT)))
        else:
            call.answer = json.loads(self._moved(json.dumps(answer)))
        return answer

    def _changes(self) -> list[tuple[str, str | None]]:
        found = self._changed()
        came = sorted(
            (when, "/_delta_log/" in name, name) for name, (there, when) in found.items() if there is not None
        )
        names = [name for _, _, name in came]
        went = {name for name, (there, _) in found.items() if there is None}
        files = sorted(name for name in went if "/_delta_log/" not in name)
        # VACUUM's last commit says what it has deleted. Old commits go after newer ones have come.
        commits = [at for at, name in enumerate(names) if COMMIT_FILE.fullmatch(Path(name).name)]
        place = commits[-1] if commits else len(names)
        order = [*names[:place], *files, *names[place:], *sorted(went - set(files))]
        for name in names:
            data = (self.root / name).read_bytes()
            assert str(self.root).encode() not in data, f"{name} has the table's own place in it: keep this test live"
            self.archive.keep(data)
        return [(name, found[name][0]) for name in order]

    def finish(self) -> None:
        super().finish()
        if self.archive.calls:
            self.archive.write(self.path)


class Replayed(_Kept):
    """An archive instead of Spark."""

    def __init__(self, spark: SparkProcess, path: Path, test: str, root: Path) -> None:
        super().__init__(spark, path, test, root)
        self._number = 0
        self._archive: Archive | None = None

    @property
    def archive(self) -> Archive:
        if self._archive is None:
            self._archive = self._opened()
        return self._archive

    def _opened(self) -> Archive:
        if not self.path.exists():
            raise self._outdated(f"what Spark writes in this test is not recorded: there is no {self._name}")
        try:
            archive = Archive.read(self.path)
        except ValueError as error:
            raise self._outdated(f"{self._name} is damaged: {error}") from error
        now = made_with()
        for key, value in now.items():
            if archive.made_with.get(key) != value:
                raise self._outdated(f"{self._name} was recorded with {key} {archive.made_with.get(key)}, not {value}")
        return archive

    @property
    def _name(self) -> str:
        return self.path.relative_to(FOLDER.parents[1]).as_posix()

    def _next(self, asked: dict[str, Any]) -> Call:
        """The recorded call, which must be this one."""
        calls = self.archive.calls
        self._number += 1
        if self._number > len(calls):
            raise self._outdated(f"call {self._number}, {shown(asked)}, is not in {self._name}")
        call = calls[self._number - 1]
        if call.asked != asked:
            differing = next(key for key in (*asked, *call.asked) if asked.get(key) != call.asked.get(key))
            raise self._outdated(
                f"call {self._number} is {shown(asked)}, and in {self._name} {shown(call.asked)}: {differing} differs"
            )
        return call

    def do(self, function: Callable[..., Any], *arguments: Any) -> Any:
        call = self._next(self._asked(function, arguments))
        by_hand = self._by_hand()
        if by_hand != call.by_hand:
            name = next(
                each for each in (*by_hand, *call.by_hand) if by_hand.get(each, "") != call.by_hand.get(each, "")
            )
            raise self._outdated(
                f"before call {self._number}, {shown(call.asked)}, the test has changed {name} otherwise than when"
                f" {self._name} was recorded"
            )
        for name, contents in call.changes:
            self._reveal(self.root / name, contents)
        self._changed()
        if call.error is not None:
            raise SparkRefused(call.error.replace(ROOT, str(self.root)))
        if call.table is not None:
            return replaced(pa.ipc.open_stream(self.archive.contents[call.table]).read_all(), ROOT, str(self.root))
        return json.loads(json.dumps(call.answer).replace(ROOT, str(self.root)))

    def _reveal(self, path: Path, contents: str | None) -> None:
        if contents is None:
            path.unlink()
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        staged = path.with_name(f".{path.name}.staged")
        staged.write_bytes(self.archive.contents[contents])
        staged.rename(path)

    def finish(self) -> None:
        super().finish()
        if not self._number and not self.path.exists():
            return  # Spark has no part in this test.
        if more := self.archive.calls[self._number :]:
            raise self._outdated(f"the test ends before {shown(more[0].asked)}, which is in {self._name}")


class Checker(Replayed):
    """Spark, held against the archive: but for names, ids and times it must do what it did."""

    def do(self, function: Callable[..., Any], *arguments: Any) -> Any:
        call = self._next(self._asked(function, arguments))
        self._changed()
        try:
            answer = Writer.do(self, function, *arguments)
        except SparkRefused:
            self._same(call, "errors", 1, int(call.error is not None))
            raise
        self._same(call, "errors", 0, int(call.error is not None))
        found = self._changed()
        self._same(call, "files", set(map(bare, found)), {bare(name) for name, _ in call.changes})
        for name, (there, _) in found.items():
            if there is not None and COMMIT_FILE.fullmatch(Path(name).name):
                recorded = self.archive.contents[dict(call.changes)[name] or ""]
                data = (self.root / name).read_bytes()
                self._same(call, f"actions in {name}", actions(data), actions(recorded))
        if isinstance(answer, pa.Table):
            recorded_rows = pa.ipc.open_stream(self.archive.contents[call.table or ""]).read_all()
            self._same(call, "columns", answer.schema.remove_metadata(), recorded_rows.schema.remove_metadata())
            rows = replaced(answer, str(self.root), ROOT)
            self._same(call, "rows", bare_rows(rows), bare_rows(recorded_rows))
        else:
            self._same(call, "answer", bare(json.dumps(answer)), bare(json.dumps(call.answer)))
        return answer

    def _same(self, call: Call, what: str, found: Any, recorded: Any) -> None:
        if found == recorded:
            return
        if isinstance(found, Counter):
            found, recorded = found - recorded, recorded - found
        raise AssertionError(
            f"Spark no longer does what is recorded in {self._name}, at call {self._number}, {shown(call.asked)}:"
            f" {what} are now {found}, and were {recorded}. Read why, then: make histories TESTS='{self.test}'"
        )


def code_of(function: Callable[..., Any]) -> str:
    """Its text without docstring, comments and white space: the same in every version of Python."""
    words, before = [], tokenize.ENCODING
    for token in tokenize.generate_tokens(io.StringIO(dedent(inspect.getsource(function))).readline):
        if token.type in (tokenize.COMMENT, tokenize.NL):
            continue
        if not (token.type == tokenize.STRING and before == tokenize.INDENT):
            words.append(token.string)
        before = token.type
    return "".join("".join(words).split())


def shown(asked: Mapping[str, Any]) -> str:
    text = f"{asked['do']}({', '.join(map(str, asked['with']))})"
    return " ".join(text.split())


def replaced(table: pa.Table, old: str, new: str) -> pa.Table:
    """The same with another text in its texts."""
    for index, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            column = pc.replace_substring(table.column(index), old, new)
            table = table.set_column(index, field, column)
    return table


def as_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


# What is another one each time: ids, names of deletion vectors, folders by chance, times, sizes of compressed files.
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
EXPRESSION_ID = re.compile(r"#\d+L?")
MILLISECONDS = re.compile(r"\b1[5-9]\d{11}\b")
CHANCE_FOLDER = re.compile(r"(^|[/'])[A-Za-z0-9]{2}/(?=\.?(part-|deletion_vector_))")
BY_CHANCE = {
    # Where Spark joins several files, their rows are in the order in which its tasks end.
    POSITION_COLUMN,
    *("timestamp", "inCommitTimestamp", "modificationTime", "deletionTimestamp", "createdTime", "txnId", "lastUpdated"),
    *("pathOrInlineDv", "offset", "size", "operationMetrics", "insertionTime", "tags", "dv_path", "dv_offset"),
}


def bare(text: str) -> str:
    return CHANCE_FOLDER.sub(r"\1", MILLISECONDS.sub("*", EXPRESSION_ID.sub("#", UUID.sub("*", text))))


def bare_value(value: Any) -> Any:
    match value:
        case Mapping():
            named = defaultdict(list)
            for key, each in value.items():
                if key not in BY_CHANCE:
                    named[bare(key)].append(bare_value(each))
            # Mapped columns have names by chance: several of them are one here.
            return {key: each[0] if len(each) == 1 else sorted(each, key=repr) for key, each in named.items()}
        case list():
            return [bare_value(each) for each in value]
        case str() if value.startswith('{"'):
            # A schema or statistics: the order of their keys may be that of names by chance.
            return bare_value(json.loads(value))
        case str():
            return bare(value)
    return value


def actions(commit: bytes) -> Counter[str]:
    found = [bare_value(json.loads(line)) for line in commit.splitlines() if line]
    adds = [action["add"] for action in found if "add" in action]
    for partition, count in Counter(json.dumps(add.get("partitionValues")) for add in adds).items():
        # Which rows come to which of several files depends on the names of the files that they come from.
        for add in adds if count > 1 else ():
            if json.dumps(add.get("partitionValues")) == partition:
                add.update(stats=None, baseRowId=None)
    counted = Counter(json.dumps(action, sort_keys=True) for action in found)
    # DROP FEATURE removes the files of vectors. How many these are depends on the data files' names.
    return Counter({text: 1 if '"path": "deletion_vector_' in text else count for text, count in counted.items()})


def bare_rows(table: pa.Table) -> Counter[tuple[str, ...]]:
    columns = [
        [bare_statistics(each) if name == "stats" else bare(repr(each)) for each in table.column(name).to_pylist()]
        for name in table.column_names
        if name not in BY_CHANCE
    ]
    return Counter(zip(*columns, strict=True))


def bare_statistics(text: str | None) -> str:
    return json.dumps(bare_value(text), sort_keys=True)
