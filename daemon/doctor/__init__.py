"""`dvsync doctor`: can a Delta table be followed, what does it cost, which readers will have trouble."""
