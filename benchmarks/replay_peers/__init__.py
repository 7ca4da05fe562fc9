"""Other replays, each in its own interpreter: nothing here imports asyncrl.

`python -m benchmarks.replay_peers.cpprb_per '{"batch": 512, ...}'` prints one JSON object: `batches_per_s`, or `absent`
with the reason.
"""
