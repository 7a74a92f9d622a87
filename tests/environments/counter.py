"""An environment of a user's own: count to a goal; it can also crash, hang and draw lots."""

import json
import random
import time


class Counter:
    def __init__(self, goal, seed):
        self.goal, self.seed = goal, seed

    def reset(self, seed):
        random.seed(seed)
        self.count = 0
        return f"seed {self.seed}: count to {self.goal}", {}

    def step(self, action):
        if "crash" in action:
            raise RuntimeError("it broke")
        if "hang" in action:
            time.sleep(60)
        if "draw" in action:
            return str(random.random()), 0.0, False, False, {}
        self.count += 1
        return str(self.count), 1.0, self.count == self.goal, False, {"count": self.count}


def halved(reward, *, info):
    return reward / 2 if info else reward


class Adder:
    """Adds with a tool; an answer in words ends it."""

    def __init__(self):
        parameters = {"properties": {"a": {"type": "integer"}}, "required": ["a"]}
        self.tools = [{"name": "add", "description": "Adds.", "parameters": parameters}]

    def reset(self, seed):
        self.total = 0
        return "Add up to 3.", {"system": "Use the tool."}

    def step(self, action):
        call = json.loads(action) if action.startswith("{") else None
        if call is None:
            return "", float(self.total == 3), True, False, {}
        self.total += call["arguments"]["a"]
        return str(self.total), 0.25, False, False, {}
