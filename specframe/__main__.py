"""`python -m specframe`."""

import sys

from specframe.cli.main import main

sys.exit(main())
