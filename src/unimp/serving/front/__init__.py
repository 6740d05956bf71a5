"""The front process: HTTP, the only writer of the events, and the published predictions.

service.py      what requests share: events, predictions, the engine and those who listen
published.py    the predictions of all nodes at one version, as prepared JSON
engine_link.py  the engine process: started, asked, and started again if it ends
generations.py  the models that can answer, and trainings
names.py        the ids and classes of the run, for a start before the engine is ready
rankings.py     suggestions and doubtful labels, as last computed
listeners.py    clients that receive server-sent events
access.py       who sends a request: tokens, sessions and limits
guard.py        what every request passes: hosts, origins, sizes, times and headers
problems.py     errors as problem JSON
answers.py      responses, and the parameters that several routes share
bulk.py         many labels in one file
reads.py, writes.py, learning.py, training.py, people_routes.py, exports.py, listening.py,
health.py, inference.py, pages.py
                the routes
application.py  all of them together
server.py       the server process

It does not import torch.
"""
