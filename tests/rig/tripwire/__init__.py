"""On the path of every process that a test starts; see sitecustomize."""
