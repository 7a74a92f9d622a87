"""The ground that every other room stands on: it imports nothing of agentrl but itself."""
