"""Measurements of asyncrl against ceilings and peers, taken in the same run: see docs/benchmarks.md."""
