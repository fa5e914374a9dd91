"""Files that were named and never written are nobody's orphans."""

from __future__ import annotations

from pathlib import Path

from tests.kit.daemons import command, daemon, until
from tests.kit.handmade import HandmadeTable

CONFIG = """
state: {url: "sqlite:///state.db"}
catalogs: {local: {type: sql, uri: "sqlite:///catalog.db", warehouse: warehouse}}
health: {port: 0}
log: {format: json}
defaults: {poll_interval: 200ms}
tables: [{source: delta, target: lake.t, name: t}]
"""


def test_a_table_that_is_retried_counts_no_orphans(tmp_path: Path) -> None:
    """A deletion vector is missing for a while: however often it is tried, nothing waits to be removed."""
    table = HandmadeTable(tmp_path / "delta")
    table.create()
    paths = [table.write_file([(10 * number + row, "x", "v") for row in range(9)]) for number in range(2)]
    table.commit([table.add(path) for path in paths])
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    with daemon(config) as running:
        running.synced_to("t", table.version)
        actions = table.delete({path: [3] for path in paths})
        (vector, *_) = [table.folder / file for file in table.folder.rglob("deletion_vector_*.bin")]
        away = vector.rename(tmp_path / "away.bin")
        table.commit(actions)

        def error() -> dict[str, object]:
            return running.tables()["t"]["error"] or {}

        def is_tried_anew(since: object) -> bool:
            # A resume in the middle of a try is answered by that try's end: once more, then.
            assert command(config, "resume", "t").returncode == 0
            return error().get("since", since) != since

        until(lambda: error().get("kind") == "ObjectMissing")
        for _ in range(3):
            since = until(lambda: error().get("since"))
            until(lambda since=since: is_tried_anew(since))
        assert running.tables()["t"]["orphans_waiting"] == 0
        away.rename(vector)
        assert command(config, "resume", "t").returncode == 0
        running.synced_to("t", table.version)
        until(lambda: running.tables()["t"]["orphans_waiting"] == 0)
