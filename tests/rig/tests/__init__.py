"""Tests of the test rig itself."""
