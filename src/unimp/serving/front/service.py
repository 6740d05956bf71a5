"""What all requests share: the stored events, the published predictions and the engine."""

from __future__ import annotations

import asyncio
import datetime
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from unimp.config.run_files import MANIFEST
from unimp.errors import UnimpError
from unimp.serving.events import ModelChange, Write
from unimp.serving.front.engine_link import EngineError, EngineLink, UnknownNodeError, ask_once
from unimp.serving.front.generations import (
    ROLLBACK,
    Job,
    Jobs,
    Model,
    folder_of,
    refusal,
    scores_of,
    trained,
)
from unimp.serving.front.listeners import Listeners
from unimp.serving.front.names import read_names, write_names
from unimp.serving.front.problems import ProblemError
from unimp.serving.front.published import Published, to_json
from unimp.serving.front.rankings import Rankings, retrieve
from unimp.serving.queue import Queue
from unimp.serving.requests import Receipt, Request, Vocabulary
from unimp.serving.store import Store
from unimp.serving.wire import Message

LOG = logging.getLogger("unimp.serving")
PULL = 10.0
"""Seconds that an exact answer may take."""
LOADING = 600
"""Seconds in which a model must be loaded."""
FEW = 500
"""Writes that may be prepared without a pause for other requests."""
NAMED = 100
"""Nodes that one server-sent event names."""


class Service:
    """The state of the front process."""

    def __init__(
        self, folder: Path, *, print_line: Callable[[str], None] = lambda line: None
    ) -> None:
        """print_line: shows a line to whoever started the service."""
        self.folder, self._print = folder, print_line
        self._loop: asyncio.AbstractEventLoop | None = None
        self.store = Store(folder, on_commit=self._after_commit)
        self.queue = Queue(self.store)
        self.acknowledged = self.store.reader.head()
        self.generation = _active_generation(self.store)
        self.started = time.time()
        self.counts: Counter[str] = Counter()
        self._names = read_names(folder)
        if self._names is not None:
            self.store.use(self._names.vocabulary())
        self._published = asyncio.Event()
        self.listeners = Listeners()
        self.rankings = Rankings(self)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._unloading: dict[int, asyncio.Task[Any]] = {}
        self.jobs = Jobs(folder, lambda job: self.announce("job", **job.plain()))
        self._models = {self.generation: self._model(self.generation)}

    def _model(self, generation: int) -> Model:
        """A model whose engine is not started yet."""
        link = EngineLink(
            self._arguments(generation),
            generation=generation,
            on_hello=partial(self._on_hello, generation),
            on_published=partial(self._on_published, generation),
            on_down=self._on_down,
            on_estimate=self._on_estimate,
        )
        return Model(link)

    def _arguments(self, generation: int) -> list[str]:
        """The folders of the run and of the model, for the processes that load it."""
        trained_in = folder_of(self.folder, generation)
        return [str(self.folder)] + ([str(trained_in)] if trained_in else [])

    async def audit(self, *, timeout: float) -> Message:
        """Doubtful labels at the newest version, from another process."""
        return await ask_once("auditor", self._arguments(self.generation), timeout=timeout)

    @property
    def engine(self) -> EngineLink:
        """The engine of the active model."""
        return self._models[self.generation].link

    @property
    def published(self) -> Published | None:
        """The predictions of the active model."""
        return self._models[self.generation].published

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.engine.start()
        self._mark_active()
        if (job := self.jobs.running) is not None:  # the service was stopped meanwhile
            self._in_background(self._retrain(job))

    async def close(self) -> None:
        """End the engine, store what is waiting, and release the run folder."""
        self.listeners.send(None)
        await self.jobs.close()
        for task in list(self._tasks):
            task.cancel()
        await self.rankings.close()
        for model in list(self._models.values()):
            await model.link.close()
        await asyncio.to_thread(self.store.close)

    # The stamp of every answer

    def stamp(self, version: int | None = None, generation: int | None = None) -> dict[str, int]:
        """The stamp of an answer; generation: of the model that answered, if that took time."""
        if version is None:
            version = self.ready().version
        known = max(self.acknowledged, version)
        generation = self.generation if generation is None else generation
        return {"version": version, "acknowledged": known, "generation": generation}

    def ready(self) -> Published:
        """The published predictions; raises EngineError before the first ones."""
        if self.published is None:
            why = f" ({self.engine.detail})" if self.engine.detail else ""
            raise EngineError(f"the model is loading{why}. Try again in a few seconds.")
        return self.published

    @property
    def engine_state(self) -> str:
        if self.engine.state == "ready" and self.published is not None:
            return "behind" if self.published.version < self.acknowledged else "ready"
        return self.engine.state

    def generations(self) -> list[dict[str, Any]]:
        """The models that can answer."""
        found = []
        for generation in (0, *trained(self.folder)):
            where = folder_of(self.folder, generation) or self.folder
            model = self._models.get(generation)
            loaded = model is not None and model.published is not None
            made = datetime.datetime.fromtimestamp((where / MANIFEST).stat().st_mtime, datetime.UTC)
            found.append(
                {
                    "generation": generation,
                    "run": where.relative_to(self.folder.parent).as_posix(),
                    "active": generation == self.generation,
                    "loaded": loaded,
                    "created": made.isoformat(timespec="seconds"),
                    "scores": scores_of(where),
                }
            )
        return found

    def retrain(self, actor: str, epochs: int | None, *, activate: bool) -> Job:
        """Train a model on all labels, in the background."""
        job = self.jobs.start(self.acknowledged, self.generation, actor)
        job.epochs, job.activate = epochs, activate
        self.jobs.change(job, "training")
        self._in_background(self._retrain(job))
        return job

    def resume(self, id: str) -> Job:
        """Continue a training that was stopped."""
        job = self.jobs.resume(id)
        self.jobs.change(job, "training")
        self._in_background(self._retrain(job))
        return job

    async def _retrain(self, job: Job) -> None:
        try:
            if not await self.jobs.train(job):
                return
            self.jobs.change(job, "loading")
            await self._load(job.generation)
            self.jobs.change(job, "ready")
            if job.activate:
                await self.activate(job.actor, job.generation)
            else:
                self._unload_later(job.generation)
        except (UnimpError, ProblemError) as error:
            state = "ready" if job.state == "ready" else "failed"
            self.jobs.change(job, state, str(error))

    async def _load(self, generation: int) -> None:
        """Start the engine of a model, and wait until it has applied what the active one has."""
        if generation not in self._models:
            self._models[generation] = model = self._model(generation)
            model.link.start()
        model = self._models[generation]
        for _ in range(LOADING * 20):
            found, active = model.published, self.published
            if found is not None and (active is None or found.version >= active.version):
                return
            if model.link.state == "down" and model.link.detail and generation != self.generation:
                await self._models.pop(generation).link.close()
                raise EngineError(f"generation {generation} cannot be loaded: {model.link.detail}")
            await asyncio.sleep(0.05)
        raise EngineError(f"generation {generation} was not loaded within {LOADING} s.")

    async def activate(self, actor: str, generation: int, *, override: bool = False) -> Receipt:
        """Answer with another model from now on; the one before stays loaded for a while.

        override: also if the gate refused the model; the event states it.
        """
        override = self._check_gate(generation, override)
        if (timer := self._unloading.pop(generation, None)) is not None:
            timer.cancel()
        try:
            await self._load(generation)
            write = ModelChange(generation=generation, run=str(generation), override=override)
            receipt = await self.write(actor, [write])
        except BaseException:
            self._unload_later(generation)
            raise
        before, was = self.generation, self.published
        self.generation = generation
        if before != generation:
            # Nobody may combine answers of two models: changes since an earlier version are all.
            self.ready().first = max(receipt.version, was.version + 1 if was else 0)
            self._unload_later(before)
        self.rankings.forget()
        self._mark_active()
        self.announce("reset", changed=0, nodes=[])
        return receipt

    def _mark_active(self) -> None:
        """Store which of the trained models is the active one."""
        for job in self.jobs.all.values():
            state = "active" if job.generation == self.generation else "ready"
            # A refused model that was activated nevertheless stays refused.
            if job.state in ("ready", "active") and job.state != state:
                self.jobs.change(job, state)

    def _check_gate(self, generation: int, override: bool) -> bool:
        """Refuse a model that the gate refused; return whether it is overridden."""
        if not generation:
            return False
        result = trained(self.folder).get(generation)
        if result is None:
            raise ProblemError(404, "not-found", f"there is no generation {generation}.")
        if not result["accepted"] and not override:
            raise ProblemError(
                422,
                "refused",
                f"the gate refused generation {generation}: {refusal(result)}. An admin can "
                'activate it nevertheless with {"override": true}.',
            )
        return not result["accepted"]

    def _unload_later(self, generation: int) -> None:
        """End the engine of a model after some time, unless it is activated before."""
        if (timer := self._unloading.pop(generation, None)) is not None:
            timer.cancel()
        self._unloading[generation] = self._in_background(self._unload(generation))

    async def _unload(self, generation: int) -> None:
        await asyncio.sleep(ROLLBACK)
        if generation != self.generation and generation in self._models:
            await self._models.pop(generation).link.close()

    def _in_background(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(retrieve)
        return task

    # Messages of the engine and of the store

    def _on_estimate(self, words: str) -> None:
        if len(self._models) == 1 and self.engine.starts == 1:
            self._print(words)

    def _on_hello(self, generation: int, hello: Message) -> None:
        model = self._models[generation]
        before, model.published = model.published, Published(hello, generation)
        model.link.tell(kind="stored", version=self.acknowledged)
        if generation != self.generation:
            return
        if before is None:
            self._print(f"ready: {len(hello['ids']):,} nodes at version {hello['version']}")
        names = model.published
        run_nodes = len(hello.arrays["base"])
        write_names(self.folder, names.ids[:run_nodes], names.classes, names.several)
        self.store.use(Vocabulary(names.numbers, frozenset(names.classes), names.several))
        self.rankings.forget()
        self._published.set()
        self.announce("reset" if before is not None else "published", changed=0, nodes=[])

    def _on_published(self, generation: int, message: Message) -> None:
        published = self._models[generation].published
        assert published is not None
        moved = published.update(message)
        if generation != self.generation:
            return
        self.counts["commits"] += 1
        self._published.set()
        names = [published.ids[n] for n in moved[:NAMED]]
        self.announce("published", changed=len(moved), nodes=names)

    def _on_down(self) -> None:
        self.counts["engine_ends"] += 1

    def _after_commit(self) -> None:
        """Called by the thread of the store."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._on_stored)

    def _on_stored(self) -> None:
        head = self.store.reader.head()
        if head > self.acknowledged:
            self.acknowledged = head
            for model in self._models.values():
                model.link.tell(kind="stored", version=head)
            if self.published is not None:
                self.announce("stored", changed=0, nodes=[])

    # Those who listen

    def announce(self, event: str, **data: Any) -> None:
        """Send a server-sent event to all listeners."""
        if self.listeners.count:
            self.listeners.send(self.event_text(event, **data))

    def event_text(self, event: str, **data: Any) -> bytes:
        """A server-sent event; its id is the published version, from which a client resumes."""
        stamp = self.stamp()
        body = to_json({**stamp, **data})
        return b"id: %d\nevent: %s\ndata: %s\n\n" % (stamp["version"], event.encode(), body)

    # Writing

    async def write(
        self,
        actor: str,
        writes: Sequence[Write],
        *,
        key: str | None = None,
        if_match: dict[str, int] | None = None,
        made_from: int | None = None,
    ) -> Receipt:
        """Store writes; the receipt means that they are on the disk."""
        predicted = {}
        if self.published is None and self._names is None:
            self.ready()
        if (published := self.published) is not None:
            for place, write in enumerate(writes, 1):
                if write.kind == "label":
                    said = published.before_label(write.node)
                    if said is not None:
                        predicted[write.node] = said
                if place % FEW == 0:
                    await asyncio.sleep(0)  # other requests are answered meanwhile
        request = Request(actor, tuple(writes), key, if_match or {}, predicted, made_from)
        if len(writes) > FEW:
            stored = await asyncio.to_thread(self.store.submit, request)
        else:
            stored = self.store.submit(request)
        receipt = await asyncio.wrap_future(stored)
        if receipt.version > self.acknowledged:
            self._on_stored()
        self.counts["writes"] += len(writes)
        return receipt

    # Reading

    def number(self, name: str) -> int:
        """The number of a published node; raises UnknownNodeError."""
        number = self.ready().numbers.get(name)
        if number is None:
            raise UnknownNodeError(f"there is no node {name!r}")
        return number

    def is_current(self, min_version: int | None) -> bool:
        """Whether the published answer is recent enough; raises if no answer can be."""
        if min_version is None or self.ready().version >= min_version:
            return True
        if min_version > self.acknowledged:
            raise ProblemError(
                503,
                "behind",
                f"version {min_version} is not stored yet; the last one is {self.acknowledged}.",
                retry_after=1,
            )
        return False

    async def reach(self, min_version: int | None) -> None:
        """Wait until the published answer is recent enough; raises 503 if that takes too long."""
        if self.is_current(min_version):
            return
        deadline = time.monotonic() + PULL
        while not self.is_current(min_version):
            self._published.clear()
            try:
                await asyncio.wait_for(self._published.wait(), deadline - time.monotonic())
            except TimeoutError:
                raise ProblemError(
                    503, "behind", f"version {min_version} is not published yet.", retry_after=1
                ) from None

    async def must_pull(self, min_version: int | None) -> bool:
        """Whether the answer for some nodes has to be computed; otherwise the published answer is
        recent enough, perhaps after waiting for it."""
        if not self.is_current(min_version) and self.ready().pulls:
            return True
        await self.reach(min_version)
        return False

    async def pull(self, ids: Sequence[str]) -> tuple[dict[str, int], list[dict[str, Any]]]:
        """Exact answers at the newest version: the stamp, and the nodes."""
        answer = await self.engine.ask("pull", timeout=PULL, ids=list(ids))
        stamp = self.stamp(answer["version"], answer["generation"])
        return stamp, self.described(ids, answer)

    def described(
        self, ids: Iterable[str], answer: Message, prefix: str = ""
    ) -> list[dict[str, Any]]:
        """Nodes from the rows of an answer of the engine."""
        published = self.ready()
        rows = (
            answer.arrays[prefix + name] for name in ("probabilities", "confidence", "observed")
        )
        labels = answer.values.get("labels")
        found = []
        for place, (name, *row) in enumerate(zip(ids, *rows, strict=True)):
            label: tuple[Any, int] = (None, 0)
            if labels is not None and labels[place][1]:
                label = tuple(labels[place])
            elif name in published.numbers:
                number = published.numbers[name]
                label = (
                    published.label(number) if labels is None else (published.run_label(number), 0)
                )
            found.append(published.describe(name, label, *row))
        return found


def _active_generation(store: Store) -> int:
    """The generation that the last event about models names."""
    query = "select body from event where kind = 'model' order by version desc limit 1"
    found = store.reader.rows(query)
    return int(json.loads(found[0][0])["generation"]) if found else 0
