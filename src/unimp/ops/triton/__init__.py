"""Attention on GPU, written in Triton."""
