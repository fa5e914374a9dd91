"""Airflow 3: a task that ends once the Iceberg table shows the Delta version that the task before it has written.

Put it into the folder of the DAGs. `dvsync` and DVSYNC_CONFIG must be known to Airflow's workers.
"""

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import dag, task

TABLE = "sales.orders"


@dag(schedule=None)
def read_iceberg_after_delta() -> None:
    @task
    def write_delta() -> int:
        """Write the Delta table here, and return the version of the commit."""
        return 0

    # Exit code 3, timed out, is tried again like any other failure.
    wait = BashOperator(
        task_id="wait_for_iceberg",
        bash_command=f"dvsync sync {TABLE} --wait --timeout 10m"
        " --min-version {{ ti.xcom_pull(task_ids='write_delta') }}",
        append_env=True,
        retries=3,
    )

    @task
    def read_iceberg() -> None:
        """Read the Iceberg table here."""

    write_delta() >> wait >> read_iceberg()


read_iceberg_after_delta()
