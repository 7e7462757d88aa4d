"""What a model needs in memory, in bytes, by formula: from the numbers of its file and the way it is loaded.

The laws come from public source and are checked against public logs; see docs/footprints.md for how well they do.
"""

from core.memory.embedded import EmbeddedNeed, Shape, embedded_footprint
from core.memory.estimate import footprint
from core.memory.footprint import Basis, Bill, Footprint, Sides, Term
from core.memory.metadata import shape_of
from core.memory.predict import PredictRow, predict_table
from core.memory.runtime import CONTEXT_BYTES, WORKER_BYTES
from core.memory.setting import Era, Setting
from core.memory.shape import ModelShape

__all__ = [
    "CONTEXT_BYTES",
    "WORKER_BYTES",
    "Basis",
    "Bill",
    "EmbeddedNeed",
    "Era",
    "Footprint",
    "ModelShape",
    "PredictRow",
    "Setting",
    "Shape",
    "Sides",
    "Term",
    "embedded_footprint",
    "footprint",
    "predict_table",
    "shape_of",
]
