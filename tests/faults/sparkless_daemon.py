"""`dvsync` on handmade tables, without a JVM: `python -m tests.faults.sparkless_daemon run --config PATH`."""

from daemon import fleet
from daemon.cli import main
from tests.faults import sparkless

if __name__ == "__main__":
    sparkless.install()
    # A test has no thirty seconds for a new folder to be seen.
    fleet.DISCOVERY_INTERVAL_S = 0.5
    main()
