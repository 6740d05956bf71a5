"""Ensembles: the portfolio of members, their calibration and weights, and the combined model."""
