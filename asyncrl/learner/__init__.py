"""The only importer of torch: returns, losses, networks, policies, updates, and the thread that runs them."""
