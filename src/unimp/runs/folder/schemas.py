"""The schema of every JSON file in a run folder, and a function that reads a file by its schema.

A file that does not match its schema is refused with a RunError that names the file, the field and
its value: a wrong type, a missing field, a number that is not finite or out of range.
`manifest.json` also contains the SHA-256 of the other files of the run and a digest of itself.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError

from unimp.config.choices import Metric, Protocol
from unimp.data.files import digest_of
from unimp.data.tables.encoding import Categorical, Numeric, Text, Vector
from unimp.data.tables.near import Places
from unimp.data.tables.transforms import Layout
from unimp.errors import RunError
from unimp.inference.reliability import MAX_TEMPERATURE

Format = Literal[1]
FORMAT: Format = 1
"""The version of the folder's layout; a later version reads it or refuses it by this number."""
FIX = "Restore it from a copy of the run, or train again."

Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
Seed = Annotated[int, Field(ge=0, le=2**64 - 1)]
Share = Annotated[float, Field(ge=0, le=1 + 1e-6)]  # a sum of shares may be rounded up
Seconds = Annotated[float, Field(ge=0)]
Score = Share | None  # None: not defined, for example ROC-AUC of one class
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Schema(BaseModel):
    """Values of a JSON file; fields that a later version adds are kept."""

    model_config = ConfigDict(
        strict=True, allow_inf_nan=False, extra="allow", frozen=True, defer_build=True
    )


class FileEntry(Schema):
    sha256: Sha256
    bytes: Count


class Code(Schema):
    version: str
    commit: str | None
    dirty: bool | None


class Manifest(Schema):
    """Where a run comes from, and the files that it consists of."""

    format: Format
    created: str
    command: list[str]
    seed: Seed
    protocol: str
    task: str
    data_hash: Sha256
    device: str
    threads: Annotated[int, Field(ge=1)]
    backend: str
    model: str | None
    code: Code
    versions: dict[str, str]
    platform: str
    paths: dict[str, str]
    files: dict[str, FileEntry]
    digest: Sha256


class CalibrationErrors(Schema):
    before: Score
    after: Score


class Calibration(Schema):
    temperature: Annotated[float, Field(ge=0.99 / MAX_TEMPERATURE, le=1.01 * MAX_TEMPERATURE)]
    ece: dict[Literal["val", "test"], CalibrationErrors]
    note: str


class MemberRow(Schema):
    """One member of an ensemble."""

    name: str
    weight: Share
    temperature: Annotated[float, Field(ge=0.99 / MAX_TEMPERATURE, le=1.01 * MAX_TEMPERATURE)]
    takes_labels: bool
    val: Score
    test: Score
    seconds: Seconds
    epochs: Count | None  # that were best on validation; None if the loop did not train it
    seconds_per_epoch: Seconds
    cut_short: bool
    folds: Annotated[int, Field(ge=1, le=100)] = 1  # trainings in the ensemble, one per fold
    settings: dict[str, Any]


class EnsembleRows(Schema):
    """The leaderboard of an ensemble; optimism is the part of `val` that choosing weights added."""

    members: Annotated[list[MemberRow], Field(min_length=1)]
    left_out: dict[str, str]
    val: Score
    val_nested: Score
    optimism: Annotated[float, Field(ge=-1, le=1)] | None
    # The score on the held-out folds, which calibrated the members and chose the weights.
    val_folds: Score = None
    folds: Annotated[int, Field(ge=0, le=100)] = 0  # 0: members were not trained on folds
    refitted: bool  # the stored members were trained on train and validation labels
    not_refitted: dict[str, str]


class StudentScores(Schema):
    """Scores of a student, its teacher and UniMP alone, and the part of the gain that it keeps."""

    student: Score
    teacher: Score
    unimp: Score
    share_of_gain: float | None


class StudentRows(Schema):
    """The comparison of a student with the run that it learned from."""

    teacher: str
    teacher_sha256: Sha256
    scores: dict[Literal["val", "test"], StudentScores]


class Metrics(Schema):
    """Scores per label protocol, calibration, epochs, time."""

    metric: Metric
    scores: dict[Protocol | Literal["refit"], dict[Literal["val", "test"], Score]]
    calibration: Calibration
    best_epoch: Count | None
    epochs: Count
    stopped: str
    cut_short: bool
    failed: bool
    parameters: Count
    seconds: Seconds
    seconds_per_epoch: Seconds
    ensemble: EnsembleRows | None = None
    student: StudentRows | None = None


class HistoryLine(Schema):
    """One epoch."""

    epoch: Annotated[int, Field(ge=1)]
    loss: float | None
    seconds: Seconds
    train: Score = None
    val: Score = None
    test: Score = None


class Origin(BaseModel):
    """Everything that a checkpoint depends on."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)
    recipe: dict[str, Any]
    seed: Seed
    threads: Annotated[int, Field(ge=1)]
    unimp: str
    torch: str
    data: str
    device: str
    model: str | None


class PositionValues(Schema):
    epoch: Annotated[int, Field(ge=1)]
    step: Count


class Checkpoint(BaseModel):
    """The description of a checkpoint; a loss that is not finite is stored as it is."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)
    made_with: Origin
    position: PositionValues


def _kind(plain: Any) -> Any:
    return plain.get("kind") if isinstance(plain, dict) else None


AnyEncoder = Annotated[
    Annotated[Numeric, Tag("numeric")]
    | Annotated[Categorical, Tag("categorical")]
    | Annotated[Text, Tag("text")]
    | Annotated[Vector, Tag("vector")],
    Discriminator(_kind),
]


class TransformsFile(Schema):
    """How columns of the tables became features."""

    format: Format
    tables: Layout
    nodes: list[AnyEncoder]
    edges: list[AnyEncoder]
    sparse: bool
    whole_ids: bool
    near: Places | None = None


Name = str | int
Label = str | list[str] | None
Difference = Annotated[float, Field(ge=-1 - 1e-6, le=1 + 1e-6)]


class ClassChance(Schema):
    name: Annotated[str, Field(alias="class")]
    probability: Share


class Effect(Schema):
    share: Annotated[float, Field(ge=0)]
    without: Share | None
    effect: Difference | None


class LabelEffect(Effect):
    node: Name
    label: Label
    hops: Count


class EdgeEffect(Effect):
    source: Name
    target: Name
    both_ways: bool


class Weight(Schema):
    node: Name
    weight: Annotated[float, Field(ge=0)]


class Link(Schema):
    source: Name
    target: Name
    share: Annotated[float, Field(ge=0)]


class ExplanationValues(Schema):
    """`Explanation.to_dict`."""

    node: Name
    name: Annotated[str, Field(alias="class")]
    probability: Share
    classes: list[ClassChance]
    observed: Label
    without_labels: Share | None
    without_edges: Share
    shares_are: str
    followed: Share
    known_labels: Count
    exact_labels: Count
    exact_edges: Count
    labels: list[LabelEffect]
    edges: list[EdgeEffect]
    attention: list[list[Weight]]
    links: list[Link]
    smooth: str
    computed: str


class ExplanationFile(Schema):
    """One stored answer of `unimp explain`."""

    format: Format
    run: str
    asked: str
    given: dict[str, str]
    explanation: ExplanationValues
    digest: Sha256


AnySchema = TypeVar("AnySchema", bound=BaseModel)


def parse(schema: type[AnySchema], data: bytes | str, path: Path, fix: str = FIX) -> AnySchema:
    """The values of a JSON file; a RunError names the file, the field and the fix."""
    try:
        return schema.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["loc"] == ("format",) and first["type"] == "literal_error":
            raise RunError(
                f"{path} has format {first['input']}; this version of unimp reads format {FORMAT}. "
                "Use the version that wrote it."
            ) from None
        field = ".".join(str(part) for part in first["loc"])
        problem = first["msg"][:1].lower() + first["msg"][1:]
        if field and first["type"] != "missing":
            problem += f", not {str(first['input'])[:60]!r}"
        raise RunError(f"{path} is damaged{field and f' at {field}'}: {problem}. {fix}") from None


def plain(schema: type[BaseModel], data: bytes, path: Path) -> dict[str, Any]:
    """The values of a JSON file as they are stored; a `digest` among them must match the others."""
    parse(schema, data, path)
    values: dict[str, Any] = json.loads(data)
    if "digest" in schema.model_fields and digest_of(values) != values["digest"]:
        raise RunError(
            f"{path} changed after the run was written: its digest does not match. {FIX}"
        )
    return values
