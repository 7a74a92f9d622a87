"""NeMo Gym's resource servers: rows out of its data files, tools that are requests, rewards of the server."""
