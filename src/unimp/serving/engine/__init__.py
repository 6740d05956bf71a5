"""The engine process: the model, and everything that is computed from it.

additions.py  new nodes and edges as features and numbers, by the transforms of the run
applied.py    the run with all events up to a version, and the change that later events are
questions.py  suggestions, doubtful labels, explanations and effects of labels that are not stored
estimate.py   the memory that a run needs
auditor.py    the audit, in a process of its own
process.py    the loop: answers requests of the front, and publishes rows that changed
"""
