"""Tests of asyncrl and envserver."""
