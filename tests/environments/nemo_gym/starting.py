"""In place of `serve.py`: serves the small server of the tests, `python starting.py SETTINGS ADDRESS`."""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.environments.nemo_gym.small import Small, served

url, _ = served(Small())
Path(f"{sys.argv[2]}.new").write_text(url)
os.rename(f"{sys.argv[2]}.new", sys.argv[2])
while True:
    time.sleep(60)
