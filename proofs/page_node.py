"""Scenarios about one node on the page: its label, its edges, and what the page shows about it."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from urllib.parse import quote

from live_page import (
    CLASSES,
    HOSTILE,
    Server,
    Site,
    free_port,
    node_hash,
    scenario,
    server_neighbors,
    title,
    train_several,
    wait_for,
)


@scenario("the queue hands out a node")
def queue_starts(site: Site) -> None:
    page = site.open("")
    page.wait_for_selector(".choice")
    name = title(page)
    assert quote(name, safe="") in page.url, page.url
    assert site.server.node(name)["label"] is None
    assert any(item["node"]["id"] == name for item in site.server.get("/v1/queue/mine")["items"])


@scenario("label by key")
def label_by_key(site: Site) -> None:
    page = site.open("#/label")
    page.wait_for_selector(".choice")
    name, second = title(page), page.locator(".choice .name").nth(1).inner_text()
    page.keyboard.press("2")
    wait_for(lambda: site.server.node(name)["label"] == second)
    wait_for(lambda: title(page) != name)
    assert second in page.inner_text(".message")


@scenario("agree with Enter")
def agree(site: Site) -> None:
    page = site.open("#/label")
    page.wait_for_selector(".choice")
    name, first = title(page), page.locator(".choice .name").first.inner_text()
    page.keyboard.press("Enter")
    wait_for(lambda: site.server.node(name)["label"] == first)


@scenario("undo with U")
def undo(site: Site) -> None:
    (name,) = site.server.unlabeled()
    page = site.at_node(name)
    page.keyboard.press("1")
    wait_for(lambda: site.server.node(name)["label"] is not None)
    page.wait_for_selector(".message >> text=Undo")
    page.keyboard.press("u")
    wait_for(lambda: site.server.node(name)["label"] is None)
    wait_for(lambda: title(page) == name)


@scenario("search a class")
def search_class(site: Site) -> None:
    (name,) = site.server.unlabeled()
    page = site.at_node(name)
    page.keyboard.press("/")
    page.wait_for_selector("#class-search")
    page.keyboard.type("scien")
    page.keyboard.press("Enter")
    wait_for(lambda: site.server.node(name)["label"] == "science")


@scenario("skip")
def skip(site: Site) -> None:
    page = site.open("#/label")
    page.wait_for_selector(".choice")
    name = title(page)
    page.keyboard.press("s")
    wait_for(lambda: title(page) != name)
    events = site.server.get("/v1/log?kind=skip")["events"]
    assert events[0]["node"] == name
    assert site.server.node(name)["label"] is None


@scenario("write a note")
def note(site: Site) -> None:
    (name,) = site.server.unlabeled()
    page = site.at_node(name)
    page.keyboard.press("n")
    page.wait_for_selector("textarea")
    page.keyboard.type("1 of <b>two</b>")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("text=“1 of <b>two</b>”")
    assert site.server.node(name)["label"] is None, "a key in the note was taken as an answer"


@scenario("two pages in conflict", "412")
def conflict(site: Site) -> None:
    (name,) = site.server.unlabeled()
    page, other = site.at_node(name), site.at_node(name)
    mine = page.locator(".choice .name").first.inner_text()
    theirs = other.locator(".choice .name").nth(1).inner_text()
    other.keyboard.press("2")
    wait_for(lambda: site.server.node(name)["label"] == theirs)
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("/")
    page.wait_for_selector("#class-search")
    page.keyboard.type(mine)
    page.keyboard.press("Enter")
    page.wait_for_selector("#conflict")
    words = page.inner_text("#conflict")
    assert mine in words, words
    assert theirs in words, words
    assert site.server.node(name)["label"] == theirs
    page.click(f"text=Change it to {mine}")
    wait_for(lambda: site.server.node(name)["label"] == mine)


@scenario("hostile ids and classes")
def hostile_ids(site: Site) -> None:
    context = site.context()
    for name in HOSTILE:
        page = site.at_node(name, context=context)
        assert title(page) == name
        page.wait_for_selector(".why .reasons a")
        page.locator(".choice").nth(1).focus()
        page.wait_for_selector(".what-if >> text=If you choose")
        page.close()
    page = site.open("#/table?q=%3C", context)
    page.wait_for_selector("tbody tr")
    assert page.locator("tbody tr").count() == 2
    page.locator("tbody tr a").first.click()
    page.wait_for_selector(".choice")
    name = title(page)
    assert name in HOSTILE
    page.keyboard.press("/")
    page.wait_for_selector("#class-search")
    page.keyboard.type("bold")
    page.keyboard.press("Enter")
    wait_for(lambda: site.server.node(name)["label"] == CLASSES[-1])
    page.goto(f"{site.server.address}/#/log")
    page.wait_for_selector(f"tbody >> text={CLASSES[-1]}")


@scenario("offline and back", "ERR_INTERNET_DISCONNECTED")
def offline(site: Site) -> None:
    (name,) = site.server.unlabeled()
    context = site.context()
    page = site.at_node(name, context=context)
    page.wait_for_selector(".live.is-live")
    context.set_offline(True)
    page.wait_for_selector(".banner >> text=Offline")
    page.keyboard.press("1")
    page.wait_for_selector("text=not stored yet")
    assert site.server.node(name)["label"] is None
    context.set_offline(False)
    wait_for(lambda: site.server.node(name)["label"] is not None)
    page.wait_for_selector(".live.is-live")
    page.wait_for_selector(".banner", state="detached")
    events = site.server.get(f"/v1/log?kind=label&node={quote(name)}")["events"]
    assert len(events) == 1, "the answer was stored twice"


@scenario("the server is killed and starts again", "ERR_|503|Failed to load")
def restart(site: Site) -> None:
    (name,) = site.server.unlabeled()
    page = site.at_node(name)
    page.wait_for_selector(".live.is-live")
    site.server.stop(signal.SIGKILL)
    page.wait_for_selector(".banner >> text=Offline")
    page.keyboard.press("1")
    page.wait_for_selector("text=not stored yet")
    site.server.start()
    wait_for(lambda: site.server.node(name)["label"] is not None, 30)
    page.wait_for_selector(".live.is-live")


@scenario("the page waits while the model is loading", "503")
def loading(site: Site) -> None:
    server = Server(site.copy(), free_port())
    site.serve_later(server)
    server.launch()
    assert server.process is not None
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")

    def engines() -> list[int]:
        """The engine, once its program runs. Before that, the server waits and does not answer."""
        found = [int(pid) for pid in children.read_text().split()]
        name = b"unimp.serving.engine"
        return [pid for pid in found if name in Path(f"/proc/{pid}/cmdline").read_bytes()]

    (engine,) = wait_for(engines)
    os.kill(engine, signal.SIGSTOP)
    page = site.open()
    page.wait_for_selector("text=The model is loading")
    os.kill(engine, signal.SIGCONT)
    page.wait_for_selector(".choice", timeout=60_000)


@scenario("deep links")
def deep_links(site: Site) -> None:
    (name,) = site.server.unlabeled()
    page = site.at_node(name, "?queue=doubtful")
    assert title(page) == name
    assert page.locator(".lists [aria-current]").inner_text() == "Doubtful"
    page = site.open("#/table?state=labeled&label=vcs&sort=-confidence")
    page.wait_for_selector("tbody tr")
    assert page.locator("label:has-text('State') select").input_value() == "labeled"
    labels = page.locator("tbody .chip").all_inner_texts()
    assert set(labels) == {"vcs"}, labels
    page.go_back()


@scenario("an unknown node", "404")
def unknown(site: Site) -> None:
    page = site.open(node_hash("no such node"))
    page.wait_for_selector(".message.bad >> text=no such node")


@scenario("the effect of a choice")
def what_if(site: Site) -> None:
    (name,) = site.server.unlabeled()
    page = site.at_node(name)
    page.locator(".choice").nth(1).focus()
    page.wait_for_selector(".what-if >> text=If you choose")
    page.locator(".choice").nth(2).hover()
    third = page.locator(".choice .name").nth(2).inner_text()
    page.wait_for_selector(f".what-if b >> text={third}")
    assert site.server.node(name)["label"] is None


@scenario("a doubted answer gets a hint")
def doubted(site: Site) -> None:
    (name,) = site.server.unlabeled()
    node = site.server.node(name)
    assert node["confidence"] >= 0.5, "the model is not sure about any node"
    page = site.at_node(name)
    page.keyboard.press("2")
    page.wait_for_selector(".message.doubt >> text=The rest of the graph doubts it")
    assert node["prediction"] in page.inner_text(".message.doubt")


@scenario("why: picture, labels and neighbors")
def why(site: Site) -> None:
    (name,) = site.server.unlabeled()
    page = site.at_node(name)
    page.wait_for_selector(".picture img")
    wait_for(lambda: page.evaluate("document.querySelector('.picture img').naturalWidth > 0"))
    link = page.locator(".why .reason a").last
    neighbor = link.inner_text()
    link.click()
    wait_for(lambda: title(page) == neighbor)


@scenario("live changes of another person")
def live(site: Site) -> None:
    (name,) = site.server.unlabeled()
    page = site.at_node(name)
    page.wait_for_selector(".live.is-live")
    site.server.label(name, "sound")
    page.wait_for_selector("text=changed while you had it open")
    assert "sound" in page.inner_text(".node-head")


@scenario("search nodes")
def search_nodes(site: Site) -> None:
    page = site.open("#/label")
    page.wait_for_selector(".choice")
    page.keyboard.press("f")
    page.keyboard.type("package-11")
    wait_for(lambda: page.locator(".items li").count() == 11)
    page.locator(".items a").nth(2).click()
    page.wait_for_selector(".choice")
    assert title(page).startswith("package-11")
    assert "q=package-11" in page.url


@scenario("only the keyboard")
def keyboard(site: Site) -> None:
    page = site.open("#/label")
    page.wait_for_selector(".choice")
    name = title(page)
    page.keyboard.press("?")
    page.wait_for_selector("dialog")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    reached = set()
    for _ in range(80):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate("document.activeElement.className || document.activeElement.tagName")
        )
        if "choice" in reached:
            break
    assert "choice" in reached, reached
    width = page.evaluate("getComputedStyle(document.activeElement).outlineWidth")
    assert width == "2px", width
    page.keyboard.press("Enter")
    wait_for(lambda: site.server.node(name)["label"] is not None)


@scenario("several labels per node, without tables")
def several_labels(site: Site) -> None:
    server = site.serve(train_several(site.folder()))
    page = site.at_node("9")
    assert "Which of these apply?" in page.inner_text(".node")
    page.wait_for_selector(".columns >> text=Neighbors")
    page.click("text=other than zero")
    assert page.locator(".node .columns dt").count() > 1
    before = set(server.node("9")["prediction"])
    first = page.locator(".choice .name").first.inner_text()
    page.keyboard.press("1")
    wanted = before ^ {first}
    page.wait_for_selector(
        f".choice[aria-pressed='{str(first in wanted).lower()}'] >> text={first}"
    )
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Enter")
    wait_for(lambda: server.node("9")["label"] == sorted(wanted))
    wait_for(lambda: title(page) != "9")
    page.goto(f"{server.address}/{node_hash('9')}")
    page.click("text=Remove label")
    wait_for(lambda: server.node("9")["label"] is None)


@scenario("add a node", "422")
def add_node(site: Site) -> None:
    (name,) = site.server.unlabeled()
    new = f"new <i>{time.time_ns()}</i>"
    page = site.at_node(name)
    page.click("text=Add a node…")
    page.click("dialog >> text=Add the node")
    page.wait_for_selector("dialog .field-problem >> text=Enter an id")
    page.get_by_label("Id", exact=True).fill("package-0")
    page.get_by_label("size", exact=True).fill("many")
    page.click("dialog >> text=Add the node")
    page.wait_for_selector("#column-size-problem >> text=not a number")
    page.get_by_label("size", exact=True).fill("1.5")
    page.get_by_label("kind", exact=True).fill("net")
    page.click("dialog >> text=Add the node")
    page.wait_for_selector("#node-Id-problem >> text=already")
    page.get_by_label("Id", exact=True).fill(new)
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog", state="detached")
    wait_for(lambda: title(page) == new)
    page.wait_for_selector(".choice")
    page.wait_for_selector(f".why .reasons >> text={name}")
    assert "1.5" in page.inner_text(".node .columns")
    assert server_neighbors(site.server, new) == [name]


@scenario("connect two nodes and undo", "422")
def connect(site: Site) -> None:
    name, other = site.server.unlabeled(2)
    if other in server_neighbors(site.server, name):
        site.server.send("DELETE", "/v1/edges", {"edges": [{"source": name, "target": other}]})
        wait_for(lambda: other not in server_neighbors(site.server, name))
    page = site.at_node(name)
    page.click("text=Connect…")
    page.get_by_label("With the node").fill("nobody knows it")
    page.keyboard.press("Enter")
    page.wait_for_selector("#other-node-problem >> text=no node")
    page.get_by_label("With the node").fill(other)
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog", state="detached")
    wait_for(lambda: other in server_neighbors(site.server, name))
    page.wait_for_selector(".message >> text=added")
    page.keyboard.press("u")
    wait_for(lambda: other not in server_neighbors(site.server, name))


@scenario("360 pixels without a mouse")
def phone_keyboard(site: Site) -> None:
    context = site.context(viewport={"width": 360, "height": 740}, has_touch=True)
    page = site.open("#/label", context)
    page.wait_for_selector(".choice")
    name = title(page)
    for _ in range(120):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.classList.contains('choice')"):
            break
    page.wait_for_timeout(300)
    chosen = page.evaluate("document.activeElement.querySelector('.name').textContent")
    box = page.evaluate("JSON.stringify(document.activeElement.getBoundingClientRect())")
    box = json.loads(box)
    assert box["height"] >= 44, f"a finger needs 44 pixels, the choice has {box['height']}"
    covered = page.evaluate(
        "([x, y]) => !document.activeElement.contains(document.elementFromPoint(x, y))",
        [box["x"] + box["width"] / 2, box["y"] + box["height"] / 2],
    )
    assert not covered, f"the focus cannot be seen: {box}"
    page.keyboard.press("Enter")
    wait_for(lambda: site.server.node(name)["label"] == chosen)
    wait_for(lambda: title(page) != name)
    small = page.evaluate(
        "[...document.querySelectorAll('main .button:not(.compact), main .choice')]"
        ".filter((e) => e.offsetHeight && e.offsetHeight < 36).map((e) => e.textContent)"
    )
    assert not small, small
    page.keyboard.press("u")
    wait_for(lambda: site.server.node(name)["label"] is None)
