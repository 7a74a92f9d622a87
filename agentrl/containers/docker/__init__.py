"""Containers by Docker, or by podman through its Docker-compatible socket."""
