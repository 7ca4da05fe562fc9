"""Settings by name, as files: `--preset NAME` is `ALGORITHM_NAME.yaml` of this folder."""
