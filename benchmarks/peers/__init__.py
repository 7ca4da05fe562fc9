"""Other ways to step many environments, each in its own interpreter: nothing here imports asyncrl.

`python -m benchmarks.peers.gym_async '{"env": "CartPole-v1", "num_envs": 8, "seconds": 3.0}'` prints one JSON object:
`steps_per_s`, or `absent` with the reason. Actions are random, which favours the peer: it runs no network.
"""
