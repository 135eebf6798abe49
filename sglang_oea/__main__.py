"""`python -m sglang_oea`: the command line, also from a clone that was never installed."""

import sys

from sglang_oea.cli import main

sys.exit(main())
