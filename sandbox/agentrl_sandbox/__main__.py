"""`python -m agentrl_sandbox`."""

import sys

from agentrl_sandbox.cli import main

sys.exit(main())
