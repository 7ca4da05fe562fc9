"""What the tests are made with: an environment that can be audited, the audit, faults, clocks, networks, processes."""
