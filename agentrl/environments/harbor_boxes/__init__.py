"""Containers elsewhere, by Harbor's environment classes: Modal, Daytona, E2B, GKE, Runloop, EC2 and others.

Harbor, with the SDK of a vendor, is in another interpreter; `worker` runs there and serves `provider`.
"""
