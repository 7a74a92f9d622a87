"""The training loop over HTTP, in the protocol of the Tinker SDK."""
