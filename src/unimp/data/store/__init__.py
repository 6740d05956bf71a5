"""Graphs on disk: building one from parts of tables within a memory limit, and mapping it."""
