"""Exit codes of a runner, as the supervisor reads them."""

ENGINE_FAILED = 70
"""The engine failed and the record says so already; start anew."""
DEVICE_LOST = 75
"""The device is gone and the record says so already."""
NO_MEMORY = 76
"""The device refused the memory for the model."""
LOAD_FAILED = 77
"""The model could not be loaded."""
NOT_ON_DEVICE = 78
"""The model was loaded, and took nothing of the device that it was loaded for."""
GARBAGE = 79
"""A canary was answered wrongly, or not at all."""
OVER_BUDGET = 80
"""There was no memory left of what the CPU lane may hold."""
SLOW = 81
"""A canary was answered rightly, and far slower than it was before: begin anew, with memory that is taken anew."""
