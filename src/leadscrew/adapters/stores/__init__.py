"""Stores: where a run keeps its truth."""
