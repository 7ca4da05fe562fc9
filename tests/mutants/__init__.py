"""Seeded one-line mutants: `make mutants` changes the source one place at a time and asks the tests to notice."""
