"""Files and objects of a store: local, S3 and whatever PyArrow reads."""
