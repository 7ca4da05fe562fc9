"""Rules of the house that no stock tool checks, and the tests of that checker."""
