"""A server for tests: a plugin of pytest."""
