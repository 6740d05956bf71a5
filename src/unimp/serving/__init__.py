"""The live label service: labels and changes of the graph that arrive after training.

events.py     what can be written, as checked and frozen values
state.py      which events are in force, and the label of each node that follows from them
database.py   the file labels.db: its tables, how it is opened, and where it must not be
writer.py     the only thread that writes: many requests per transaction
store.py      requests, and how they become events
reader.py     events, labels and changes since a version, also from another process
checking.py   whether a database is what was written, and backups
people.py     actors, roles and tokens
queue.py      leases on the next node to label
accuracy.py   how often the model was right just before each label arrived
export.py     labels and events as tables
schemas/      the requests and responses of the HTTP API
wire.py       messages between the two processes
front/        the front process: HTTP, and the only writer
engine/       the engine process: the model
trainer.py    training again on the labels of the service
demo.py       a run to try the service with
"""
