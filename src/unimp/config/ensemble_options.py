"""The section [ensemble] of a recipe."""

from __future__ import annotations

from unimp.config.choices import Portfolio, Refit
from unimp.config.section import Section, option


class EnsembleOptions(Section):
    """Several members instead of one model, combined by weights that are chosen on validation."""

    portfolio: Portfolio = option(
        "none",
        "members to train and combine, the cheapest first, within train.time_limit; none: train "
        "the model of [model] alone",
    )
    members: list[str] = option([], "names of the members to train; empty: all of the portfolio")
    copies: int = option(
        1,
        "number of trainings of each member with a large weight, including the first, with "
        "different random draws, as far as time allows",
        ge=1,
        le=10,
    )
    refit: Refit = option(
        "own",
        "after scoring, train the chosen members again on train and validation labels: for your "
        "own data (own), always or never",
    )
    folds: int = option(
        5,
        "with fewer than 300 validation labels, the number of folds of train and validation "
        "labels on which the refit trains each chosen member; the held-out folds choose the "
        "weights. 0 or 1: train once on all of these labels",
        ge=0,
        le=100,
    )
    jobs: int = option(
        0,
        "members that are trained at the same time, each in its own process; 0: as many as cores "
        "and memory allow; 1: one after the other in this process",
        ge=0,
        le=256,
    )
