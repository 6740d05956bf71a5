"""Routes for those who operate the service: health, metrics, and the page of the API."""

from __future__ import annotations

import time
from collections import Counter

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from unimp.serving.front.answers import TheService, answer
from unimp.serving.front.service import Service

router = APIRouter(tags=["operate"])
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Meter:
    """Counts requests by route and status, and their durations."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._buckets: Counter[float] = Counter()
        self._seconds, self._count = 0.0, 0

    def count(self, route: str, status: int, seconds: float) -> None:
        self._requests[route, status] += 1
        self._seconds += seconds
        self._count += 1
        self._buckets[next((b for b in BUCKETS if seconds <= b), float("inf"))] += 1

    def lines(self) -> list[str]:
        lines = ["# TYPE unimp_requests_total counter"]
        for (route, status), count in sorted(self._requests.items()):
            lines.append(f'unimp_requests_total{{route="{route}",status="{status}"}} {count}')
        lines.append("# TYPE unimp_request_seconds histogram")
        total = 0
        for bucket in BUCKETS:
            total += self._buckets[bucket]
            lines.append(f'unimp_request_seconds_bucket{{le="{bucket:g}"}} {total}')
        lines.append(f'unimp_request_seconds_bucket{{le="+Inf"}} {self._count}')
        lines.append(f"unimp_request_seconds_sum {self._seconds:.6f}")
        lines.append(f"unimp_request_seconds_count {self._count}")
        return lines


@router.get("/healthz")
async def healthz() -> Response:
    """Answer as long as the process runs."""
    return PlainTextResponse("ok\n")


@router.get("/readyz")
async def readyz(service: TheService) -> Response:
    """Answer 200 if labels are stored and predictions are published; otherwise 503."""
    states = {
        "writes": not service.store.writer.is_broken,
        "reads": service.published is not None,
        "engine": service.engine_state,
    }
    ready = states["writes"] and states["reads"]
    return answer(states, status_code=200 if ready else 503)


@router.get("/metrics")
async def metrics(request: Request, service: TheService) -> Response:
    """Return measurements in the text format of Prometheus."""
    meter: Meter = request.app.state.meter
    lines = [*meter.lines(), *_gauges(service)]
    return PlainTextResponse("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")


def _gauges(service: Service) -> list[str]:
    published = service.published
    version = published.version if published else 0
    values = {
        "unimp_version_acknowledged": service.acknowledged,
        "unimp_version_published": version,
        "unimp_version_lag": service.acknowledged - version,
        "unimp_generation": service.generation,
        "unimp_nodes": len(published.ids) if published else 0,
        "unimp_engine_ready": int(service.engine.state == "ready"),
        "unimp_engine_waiting": service.engine.waiting,
        "unimp_store_broken": int(service.store.writer.is_broken),
        "unimp_listeners": service.listeners.count,
        "unimp_uptime_seconds": round(time.time() - service.started, 1),
    }
    lines = []
    for name, value in values.items():
        lines += [f"# TYPE {name} gauge", f"{name} {value}"]
    for name in ("commits", "writes", "engine_ends"):
        full = f"unimp_{name}_total"
        lines += [f"# TYPE {full} counter", f"{full} {service.counts[name]}"]
    return lines
