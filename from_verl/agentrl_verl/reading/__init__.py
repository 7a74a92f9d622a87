"""Settings as they stand in a script or a YAML file for verl, each with its line, and their verdicts."""
