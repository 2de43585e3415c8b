"""Let tests of this folder share what they need."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
