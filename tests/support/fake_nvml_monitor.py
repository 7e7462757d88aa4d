"""The real monitor over a fake NVML whose cards lie in a JSON file: fake_nvml_monitor.py FILE MONITOR-ARGUMENTS."""

import sys
from pathlib import Path

from fake_nvml import FakeNvml

from runners import monitor

FakeNvml(file=Path(sys.argv.pop(1))).install()
monitor.main()
