"""The worker process: ``python -m everbeat.worker module:app``."""
