"""The HTTP server of the sandbox: SandboxFusion's protocol in front of a pool. It needs the extra `sandbox`."""
