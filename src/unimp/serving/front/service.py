"""The state that all requests share: stored events, published predictions and the engine."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from unimp.errors import UnknownNodeError
from unimp.serving.events import Write
from unimp.serving.front.engine_link import EngineError, EngineLink, ask_once
from unimp.serving.front.generations import folder_of
from unimp.serving.front.listeners import Listeners
from unimp.serving.front.models import Models
from unimp.serving.front.names import read_names, write_names
from unimp.serving.front.problems import ProblemError
from unimp.serving.front.published import Published, to_json
from unimp.serving.front.rankings import Rankings
from unimp.serving.queue import Queue
from unimp.serving.requests import Receipt, Request, Vocabulary
from unimp.serving.store import Store
from unimp.serving.wire import Message

LOG = logging.getLogger("unimp.serving")
PULL = 10.0
"""Seconds that an exact answer may take."""
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
        self.started = time.time()
        self.counts: Counter[str] = Counter()
        self._names = read_names(folder)
        if self._names is not None:
            self.store.use(self._names.vocabulary())
        self._published = asyncio.Event()
        self.listeners = Listeners()
        self.rankings = Rankings(self)
        self.models = Models(self, self._link)

    def _link(self, generation: int) -> EngineLink:
        """The engine of a model, which is not started yet."""
        return EngineLink(
            self._arguments(generation),
            generation=generation,
            on_hello=partial(self._on_hello, generation),
            on_published=partial(self._on_published, generation),
            on_down=self._on_down,
            on_estimate=self._on_estimate,
        )

    def _arguments(self, generation: int) -> list[str]:
        """The folders of the run and of the model, for the processes that load it."""
        trained_in = folder_of(self.folder, generation)
        return [str(self.folder)] + ([str(trained_in)] if trained_in else [])

    async def audit(self, *, timeout: float) -> Message:
        """Doubtful labels at the newest version, from another process."""
        return await ask_once("auditor", self._arguments(self.generation), timeout=timeout)

    @property
    def generation(self) -> int:
        """The number of the active model."""
        return self.models.active

    @property
    def engine(self) -> EngineLink:
        """The engine of the active model."""
        return self.models.loaded[self.generation].link

    @property
    def published(self) -> Published | None:
        """The predictions of the active model."""
        return self.models.loaded[self.generation].published

    @property
    def several(self) -> bool:
        """Whether a label is a set of names; False if the names of the run are not known yet."""
        names = self.published or self._names
        return names is not None and names.several

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.models.start()

    async def close(self) -> None:
        """End the engine, store what is waiting, and release the run folder."""
        self.listeners.end()
        await self.rankings.close()
        await self.models.close()
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

    # Messages of the engine and of the store

    def _on_estimate(self, words: str) -> None:
        if len(self.models.loaded) == 1 and self.engine.starts == 1:
            self._print(words)

    def _on_hello(self, generation: int, hello: Message) -> None:
        model = self.models.loaded[generation]
        before, model.published = model.published, Published(hello, generation)
        model.link.notify(kind="stored", version=self.acknowledged)
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
        published = self.models.loaded[generation].published
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
            for model in self.models.loaded.values():
                model.link.notify(kind="stored", version=head)
            if self.published is not None:
                self.announce("stored", changed=0, nodes=[])

    # Server-sent events

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
                    before = published.before_label(write.node)
                    if before is not None:
                        predicted[write.node] = before
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
            raise UnknownNodeError(name)
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
