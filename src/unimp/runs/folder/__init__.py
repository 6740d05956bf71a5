"""The run folder: its files, and how a run resumes."""
