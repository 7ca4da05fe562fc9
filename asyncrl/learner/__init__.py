"""The only importer of torch: returns, losses, networks, policies, updates, and the thread that runs them."""

import os

from asyncrl.learner.openmp import wait_asleep

wait_asleep(os.environ)
