"""One module a schema revision, never changed once released."""
