"""Speed and memory: devices, threads, offloading, MFU, profiles."""
