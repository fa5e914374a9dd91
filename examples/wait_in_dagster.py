"""Dagster: an asset of the Iceberg table, made once it shows the Delta version that the asset above it has written.

DVSYNC_CONFIG=config.yaml dagster asset materialize --select '*' -f examples/wait_in_dagster.py
"""

import subprocess

import dagster

TABLE = "sales.orders"


@dagster.asset
def delta_orders() -> int:
    """Write the Delta table here, and return the version of the commit."""
    return 0


@dagster.asset(retry_policy=dagster.RetryPolicy(max_retries=3))
def iceberg_orders(delta_orders: int) -> dagster.MaterializeResult:
    """Wait until dvsync shows that version. Exit code 3 is tried again: the time was over. Others need a person."""
    command = ["dvsync", "sync", TABLE, "--wait", "--min-version", str(delta_orders), "--timeout", "10m"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise dagster.Failure(done.stdout + done.stderr, allow_retries=done.returncode == 3)
    return dagster.MaterializeResult(metadata={"delta_version": delta_orders, "dvsync": done.stdout})
