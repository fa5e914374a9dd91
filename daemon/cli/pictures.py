"""The picture of `dvsync inspect --png`, by matplotlib, which is an extra of the package."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from daemon.errors import ConfigInvalid
from daemon.status.deletions import TableDeletions


def draw_table(found: TableDeletions, path: Path) -> None:
    """Write a PNG: deleted positions by file, delete files and lag by snapshot over time, orphans by the hour.

    Raises ConfigInvalid if matplotlib is missing or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra
    except ImportError:
        hint = "Install the extra `pictures` of dvsync's wheel, or leave out --png."
        raise ConfigInvalid("--png needs matplotlib, which is not installed", hint=hint) from None

    figure = Figure(figsize=(10, 6 + 0.35 * max(4, len(found.files))), layout="constrained")
    heat, files, lag, orphans = figure.subplots(4, 1, height_ratios=(max(4, len(found.files)), 4, 4, 4))
    heat.set_title(f"{found.table} at Delta version {found.version}: share of deleted rows along each data file")
    for number, file in enumerate(found.files):
        if file.strip:
            place = (0, 1, number + 0.5, number - 0.5)
            heat.imshow([file.strip], extent=place, cmap="YlOrRd", vmin=0, vmax=1, interpolation="nearest")
    heat.set(xlim=(0, 1), ylim=(max(1, len(found.files)) - 0.5, -0.5), aspect="auto")
    heat.set_xticks((0, 1), ("first row", "last row"))
    names = [f"{file.path.rpartition('/')[2][-40:]} ({file.deleted / file.rows:.0%})" for file in found.files]
    heat.set_yticks(range(len(names)), names, fontsize=7)
    ours = found.own_snapshots
    at = [datetime.fromisoformat(each.committed_at) for each in ours]
    files.step(at, [each.delete_files or 0 for each in ours], where="post", marker=".")
    files.set(title="delete files in each snapshot")
    files.set_ylim(bottom=0)
    shown_at = [datetime.fromisoformat(each.committed_at) for each, _ in found.lags]
    lag.plot(shown_at, [lag_s for _, lag_s in found.lags], marker=".")
    lag.set(title="seconds from Delta's commit to the snapshot", xlabel="committed (UTC)")
    lag.set_ylim(bottom=0)
    hours = [datetime.fromtimestamp(each.hour_ms / 1000, UTC) for each in found.orphaned]
    orphans.bar(hours, [each.files for each in found.orphaned], width=timedelta(hours=1), align="edge")
    orphans.set(title="files that wait for cleanup, by the hour in which they became orphans", xlabel="UTC")
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise ConfigInvalid(f"--png: {path} cannot be written: {error}", hint="Name a writable *.png file.") from error
