"""Routes that return whole tables as files."""

from __future__ import annotations

import asyncio
import io
from typing import Any, Literal

from fastapi import APIRouter
from starlette.responses import Response

from unimp.serving.export import for_spreadsheets, json_lines, labels_table, log_table
from unimp.serving.front.answers import ERRORS, Caller, TheService

router = APIRouter(prefix="/v1", tags=["export"])
TYPES = {
    "parquet": "application/vnd.apache.parquet",
    "csv": "text/csv; charset=utf-8",
    "jsonl": "application/x-ndjson",
}


@router.get("/export/{name}.{form}", responses=ERRORS)
async def export(
    service: TheService,
    caller: Caller,
    name: Literal["labels", "predictions", "log"],
    form: Literal["parquet", "csv", "jsonl"],
) -> Response:
    """Return all labels, predictions or events as one file.

    In CSV, a text that a spreadsheet would compute, such as =1+1, starts with an apostrophe.
    """
    stamp = service.stamp(None if service.published else 0)
    if name == "predictions":
        table = service.ready().table()
    else:
        make = labels_table if name == "labels" else log_table
        table = await asyncio.to_thread(make, service.store.reader)
        stamp["version"] = stamp["acknowledged"]
    body = await asyncio.to_thread(_written, table, form)
    headers = {f"Unimp-{key.title()}": str(value) for key, value in stamp.items()}
    headers["ETag"] = f'"{stamp["version"]}"'  # for If-Match of POST /v1/labels
    headers["Content-Disposition"] = f'attachment; filename="{name}.{form}"'
    return Response(body, 200, headers, TYPES[form])


def _written(table: Any, form: str) -> bytes:
    if form == "jsonl":
        return json_lines(table)
    buffer = io.BytesIO()
    if form == "csv":
        from pyarrow import csv

        csv.write_csv(for_spreadsheets(table), buffer)
    else:
        from pyarrow import parquet

        parquet.write_table(table, buffer)
    return buffer.getvalue()
