"""Scenarios about the other parts of the page: the table, audit, log, model and people."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import Any

from live_page import RAN, Site, node_hash, scenario, title, wait_for


@scenario("bulk labels with a confirmation")
def bulk(site: Site) -> None:
    names = site.server.unlabeled(3)
    page = site.open("#/table?state=unlabeled&sort=-confidence&q=package-")
    page.wait_for_selector("tbody tr")
    for name in names:
        page.get_by_label(f"Choose {name}", exact=True).check()
    page.get_by_label("Class", exact=True).select_option(label="games")
    page.click("text=Continue")
    page.wait_for_selector("dialog")
    assert all(site.server.node(name)["label"] is None for name in names), "stored without a yes"
    page.click("dialog >> text=Store 3 labels")
    wait_for(lambda: all(site.server.node(name)["label"] == "games" for name in names))
    page.click("text=Undo all")
    wait_for(lambda: all(site.server.node(name)["label"] is None for name in names))


@scenario("bulk labels for all nodes of a filter")
def bulk_by_filter(site: Site) -> None:
    server = site.serve(site.copy())
    names = server.unlabeled(1000)
    page = site.open("#/table?state=unlabeled&q=package-")
    page.get_by_label("Choose all nodes of this page", exact=True).check()
    page.click(f"text=Choose all {len(names)}")
    page.get_by_label("Class", exact=True).select_option(label="games")
    page.click("text=Continue")
    page.click(f"dialog >> text=Store {len(names)} labels")
    wait_for(lambda: not server.unlabeled())
    assert all(server.node(name)["label"] == "games" for name in names)


@scenario("the nodes of a filter join those that are chosen already")
def choose_by_filter(site: Site) -> None:
    server = site.serve(site.copy())
    held: list[Any] = []
    (name,) = server.unlabeled()
    page = site.open(f"#/table?q={name}")
    box = page.get_by_label(f"Choose {name}", exact=True)
    box.check()
    page.get_by_label("Class", exact=True).select_option(label="games")
    page.click("text=Continue")
    page.click("dialog >> text=Store 1 label")
    page.wait_for_selector("text=1 label stored")
    box.check()  # it has a label now, so the next filter does not contain it
    number = len(server.unlabeled(1000))
    page.goto(f"{server.address}/#/table?state=unlabeled&q=package-")
    page.wait_for_selector(f"text=of {number}")
    all_boxes = page.get_by_label("Choose all nodes of this page", exact=True)
    all_boxes.check()
    page.wait_for_selector("text=51 nodes chosen")
    state = page.locator("label:has-text('State') select")
    page.route("**/v1/nodes?*limit=1000*", lambda route: held.append(route))
    page.click(f"text=Choose all {number}")
    page.wait_for_selector("tbody input:disabled")
    while not held:
        page.wait_for_timeout(20)
    assert all_boxes.is_disabled(), "a box could be changed while nodes are chosen"
    assert "min_version=" in held[0].request.url, "the page does not wait for what it wrote"
    # The filter changes before the answer arrives.
    state.select_option("labeled")
    page.wait_for_selector("tbody input:enabled")
    with suppress(Exception):  # the page has cancelled the request
        held[0].continue_()
    page.unroute("**/v1/nodes?*limit=1000*")
    page.wait_for_timeout(500)
    assert "51 nodes chosen" in page.inner_text(".bulk"), "nodes of the old filter were chosen"

    def several_versions(route: Any) -> None:
        """Answer as if there were more nodes, and a prediction changed between two requests."""
        response = route.fetch()
        body = response.json() | {"total": 1001}
        body["version"] += "offset=1000" in route.request.url
        route.fulfill(response=response, json=body)

    state.select_option("unlabeled")
    page.route("**/v1/nodes?*limit=1000*", several_versions)
    page.click(f"text=Choose all {number}")
    page.wait_for_selector("text=some may be missing")
    page.unroute("**/v1/nodes?*limit=1000*")
    page.click(f"text=Choose all {number}")
    page.wait_for_selector("text=some may be missing", state="detached")
    words = page.inner_text(".bulk")
    assert f"{number} matching nodes found" in words, words
    assert f"{number + 1} nodes chosen" in words, words


@scenario("audit: accept and keep")
def audit(site: Site) -> None:
    page = site.open("#/audit")
    page.wait_for_selector(".audit-row", timeout=60_000)
    doubts = site.server.get("/v1/audit?limit=2")["doubts"]
    rows = page.locator(".audit-row")
    rows.nth(0).focus()
    page.keyboard.press("a")
    wait_for(lambda: site.server.node(doubts[0]["node"])["label"] == doubts[0]["suggested"])
    page.keyboard.press("ArrowDown")
    page.keyboard.press("k")
    page.wait_for_selector(f"text=Kept {doubts[1]['given']}")
    assert site.server.node(doubts[1]["node"])["label"] == doubts[1]["given"]
    rows.nth(0).focus()
    page.keyboard.press("u")
    wait_for(lambda: site.server.node(doubts[0]["node"])["label"] == doubts[0]["given"])


@scenario("undo in the log")
def log_undo(site: Site) -> None:
    (name,) = site.server.unlabeled()
    version = site.server.label(name, "text")
    page = site.open(f"#/log?node={name}")
    page.get_by_label(f"Undo version {version}", exact=True).click()
    wait_for(lambda: site.server.node(name)["label"] is None)


@scenario("withdraw a source in the log")
def withdraw(site: Site) -> None:
    names = site.server.unlabeled(2)
    labels = [{"node": name, "label": "vcs"} for name in names]
    site.server.send("POST", "/v1/labels", {"labels": labels, "source": f"rule {RAN}"})
    page = site.open("#/log")
    page.click(f"text=rule {RAN}")  # the source is a text, not a link
    page.click("text=Withdraw source…")
    page.wait_for_selector("dialog >> text=one event")
    page.click("dialog >> text=Withdraw >> nth=-1")
    wait_for(lambda: all(site.server.node(name)["label"] is None for name in names))
    page.wait_for_selector("text=withdrew the source")
    page.click("[aria-label^='Undo version'] >> nth=0")
    wait_for(lambda: all(site.server.node(name)["label"] == "vcs" for name in names))


@scenario("model: what the server does not offer")
def model(site: Site) -> None:
    page = site.open("#/model")
    page.wait_for_selector("text=Generations")
    offered = "/v1/retrain" in site.server.get("/openapi.json")["paths"]
    words = "Train on the labels so far" if offered else "does not offer training yet"
    page.wait_for_selector(f"text={words}")


@scenario("people: add, change and revoke")
def people(site: Site) -> None:
    page = site.open("#/people")
    page.get_by_label("Name", exact=True).fill("<i>bo</i>")
    page.click("form >> text=Add >> nth=-1")
    page.wait_for_selector("text=The token of")
    page.get_by_label("Role of <i>bo</i>", exact=True).select_option("reviewer")

    def found() -> dict[str, Any]:
        return {p["name"]: p for p in site.server.get("/v1/people")["people"]}["<i>bo</i>"]

    wait_for(lambda: found()["role"] == "reviewer")
    page.click("tr:has-text('<i>bo</i>') >> text=Revoke")
    wait_for(lambda: found()["revoked"])


@scenario("themes")
def themes(site: Site) -> None:
    page = site.open("#/model", site.context(color_scheme="dark"))
    page.wait_for_selector(".tile")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.get_by_label("Switch between light and dark").click()
    light = page.evaluate(background)
    assert dark != light
    page.reload()
    page.wait_for_selector(".tile")
    assert page.evaluate(background) == light, "the choice was not kept"


@scenario("phone width")
def phone(site: Site) -> None:
    context = site.context(viewport={"width": 360, "height": 740})
    for part in ("label", "table", "audit", "log", "model", "people"):
        page = site.open(f"#/{part}", context)
        page.wait_for_selector("h1")
        page.wait_for_timeout(300)
        over = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert over <= 0, f"{part} is {over} pixels too wide"


def sign_in(page: Any, token: str) -> None:
    page.wait_for_selector(".sign-in")
    page.get_by_label("Token", exact=True).fill(token)
    page.keyboard.press("Enter")


@scenario("sign in with a token", "401")
def signing_in(site: Site) -> None:
    server = site.serve(site.copy(), tokens=True)
    token = server.token_of("ada", "labeler")
    page = site.open("#/label")
    sign_in(page, "wrong " * 9)
    page.wait_for_selector(".message.bad >> text=not valid")
    sign_in(page, token)
    page.wait_for_selector(".choice")
    name = title(page)
    page.keyboard.press("1")
    wait_for(lambda: server.node(name)["label"] is not None)
    assert server.get("/v1/log?kind=label")["events"][0]["actor"] == "ada"
    assert token not in page.url
    kept = "JSON.stringify([document.cookie, {...localStorage}, {...sessionStorage}])"
    assert token not in page.evaluate(kept), "a script can read the token"
    page.keyboard.press("?")
    page.click("dialog >> text=Sign out")
    page.wait_for_selector(".sign-in")


@scenario("a restart ends the session, and no answer is lost", "ERR_|401|503|Failed to load")
def session_ends(site: Site) -> None:
    server = site.serve(site.copy(), tokens=True)
    token, (name,) = server.token_of("eva", "labeler"), server.unlabeled()
    page = site.open(node_hash(name))
    sign_in(page, token)
    page.wait_for_selector(".choice")
    page.wait_for_selector(".live.is-live")
    server.stop(signal.SIGKILL)
    page.wait_for_selector(".banner >> text=Offline")
    page.keyboard.press("1")
    page.wait_for_selector("text=not stored yet")
    server.start()
    page.wait_for_selector(".sign-in", timeout=30_000)
    sign_in(page, token)
    wait_for(lambda: server.node(name)["label"] is not None, 30)
    page.wait_for_selector(".live.is-live")


@scenario("a reader cannot label", "401")
def reader(site: Site) -> None:
    server = site.serve(site.copy(), tokens=True)
    page = site.open("#/label")
    sign_in(page, server.token_of("eve", "reader"))
    page.wait_for_selector(".choice")
    page.wait_for_selector("text=Giving labels needs the role labeler")
    assert page.locator(".choice").first.is_disabled()
    for key in ("1", "Enter", "s"):
        page.keyboard.press(key)
    page.goto(f"{server.address}/#/model")
    page.wait_for_selector("text=Training needs the role admin")
    assert page.locator("text=Train on the labels so far").is_disabled()
    page.goto(f"{server.address}/#/people")
    page.wait_for_selector("text=needs the role admin")
    assert server.get("/v1/log")["events"] == []


@scenario("many labels need a reviewer", "401|403")
def reviewer(site: Site) -> None:
    server = site.serve(site.copy(), tokens=True)
    for name, role, stored in (("lea", "labeler", False), ("rev", "reviewer", True)):
        page = site.open("#/table?state=unlabeled&q=package-")
        sign_in(page, server.token_of(name, role))
        page.wait_for_selector("tbody tr")
        page.get_by_label("Choose all nodes of this page").check()
        page.get_by_label("Class", exact=True).select_option(label="net")
        page.click("text=Continue")
        page.click("dialog >> text=Store")
        if stored:
            page.wait_for_selector("text=labels stored")
        else:
            page.wait_for_selector("dialog .message.bad")
        assert bool(server.get("/v1/log")["events"]) == stored


@scenario("a revoked person is signed out", "401")
def revoked(site: Site) -> None:
    server = site.serve(site.copy(), tokens=True)
    page = site.open("#/label")
    sign_in(page, server.token_of("max", "labeler"))
    page.wait_for_selector(".choice")
    name = title(page)
    server.send("DELETE", "/v1/people/max", None)
    page.keyboard.press("1")
    page.wait_for_selector(".sign-in")
    assert server.node(name)["label"] is None


@scenario("train, activate and roll back", "422")
def generations(site: Site) -> None:
    server = site.serve(site.copy())
    for name in server.unlabeled(12):
        server.label(name, server.node(name)["prediction"])
    page = site.open("#/model")
    page.click("text=Train on the labels so far")
    page.click("dialog >> text=Start the training")
    page.locator("tr button >> text=Activate").click(timeout=400_000)
    page.click("dialog >> text=Switch to generation 1")
    # With so few labels, chance decides whether the gate refuses the model.
    anyway = page.locator("dialog >> text=Switch anyway")
    wait_for(lambda: server.get("/v1/model")["generation"] == 1 or anyway.count())
    if anyway.count():
        anyway.click()
    wait_for(lambda: server.get("/v1/model")["generation"] == 1, 60)
    page.locator("tr button >> text=Roll back").click()
    page.click("dialog >> text=Switch to generation 0")
    wait_for(lambda: server.get("/v1/model")["generation"] == 0)
    page.wait_for_selector("tr:has-text('run') >> text=Active")


@scenario("bulk labels: cancel, and a warning before labels are replaced")
def bulk_cancel(site: Site) -> None:
    one, two = site.server.unlabeled(2)
    site.server.label(one, "vcs")
    page = site.open("#/table?q=package-")
    head = site.server.get("/v1/log?limit=1")["events"][0]["version"]
    for name in (one, two):
        page.get_by_label("Id contains").fill(name)
        page.get_by_label(f"Choose {name}", exact=True).check()
    page.get_by_label("Class", exact=True).select_option(label="text")
    page.click("text=Continue")
    page.wait_for_selector("dialog >> text=1 node has another label now")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")
    assert site.server.get("/v1/log?limit=1")["events"][0]["version"] == head
    assert site.server.node(one)["label"] == "vcs"
