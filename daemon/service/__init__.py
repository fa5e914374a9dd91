"""`dvsync run`: the process, its parts, its tables, its lease, its signals."""
