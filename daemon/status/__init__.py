"""What operators see of each table: its state, its error, its day."""
