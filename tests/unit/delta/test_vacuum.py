"""Where Delta's VACUUM removes what Delta does not know, however the place is spelled."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemon.errors import Unsupported
from daemon.store.locations import vacuum_cleans
from tests.kit.handmade import Bench, HandmadeTable


@pytest.mark.parametrize(
    ("location", "source", "cleans"),
    [
        ("s3://lake/t/ice", "s3a://lake/t", True),
        ("s3a://lake/t/ice", "s3n://lake/t/", True),
        ("file:/lake/t/ice", "file:///lake/t", True),
        ("/lake/t/", "file:///lake/t", True),
        ("s3://lake/t/_ice/data", "s3a://lake/t", False),
        ("s3://lake/table", "s3a://lake/t", False),
        ("gs://lake/t/ice", "s3://lake/t", False),
    ],
)
def test_one_place_has_many_spellings(location: str, source: str, cleans: bool) -> None:
    """`s3`, `s3a` and `s3n` are one store, and `file:/a` is `/a`."""
    assert vacuum_cleans(location, source) is cleans


def test_links_lead_into_a_delta_table(tmp_path: Path) -> None:
    """By the link's name and by the real one, whichever of the two is a link; VACUUM follows links as well."""
    source, link, linked = tmp_path / "t", tmp_path / "link", tmp_path / "elsewhere"
    (source / "ice").mkdir(parents=True)
    linked.mkdir()
    link.symlink_to(source)
    (source / "out").symlink_to(linked)
    for location, of in (
        (link / "ice", source),
        (source / "ice", link),
        (source / "out", source),
        (source / "new", link),
    ):
        assert vacuum_cleans(f"file://{location}", f"file://{of}")
    assert not vacuum_cleans(f"file://{linked}", f"file://{link}")


@pytest.mark.parametrize("name", ["write.data.path", "write.metadata.path"])
def test_a_property_that_leads_into_the_delta_table_parks_it(tmp_path: Path, name: str) -> None:
    """Whoever sets it: nothing is written where VACUUM would remove it, and the property is named."""
    table = HandmadeTable(tmp_path / "delta")
    table.create()
    bench = Bench(tmp_path / "dvsync", table.location)
    bench.first_sync_empty(table)
    with bench.iceberg().transaction() as transaction:
        transaction.set_properties({name: f"{table.location}/ice"})
    table.commit([table.add(table.write_file([(1, "x", "v")]))])
    with pytest.raises(Unsupported, match=f"the Iceberg table's {name}, .*/delta/ice, lies inside"):
        bench.follower.sync()
    # The change of the property itself is PyIceberg's commit.
    assert not [file for file in (tmp_path / "delta" / "ice").rglob("*") if not file.name.endswith(".metadata.json")]
    bench.close()
