"""Other trainers, each in its own interpreter, end to end: nothing here imports asyncrl.

`python -m benchmarks.train_peers.cleanrl_ppo '{"env": "CartPole-v1", "threads": 1, ...}'` prints one JSON object:
`sps`, environment steps per second between two moments well inside the run, or `absent` with the reason.
"""
