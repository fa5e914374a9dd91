"""`dvsync doctor`: whether dvsync can follow a Delta table, and which readers will have problems with it."""
