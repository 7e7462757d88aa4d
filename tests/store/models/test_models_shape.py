"""The real small model's footprint, from its file."""

from pathlib import Path

import pytest

from core.memory import Era, Setting, footprint, shape_of
from store.models.gguf import read_header

MIB = 1 << 20


@pytest.mark.model
def test_the_small_model(smollm2: Path) -> None:
    """30 layers of width 576, 9 heads over 3, 49152 tokens; the output is the embedding."""
    header = read_header(smollm2)
    shape = shape_of(header.metadata, [(tensor.name, tensor.nbytes) for tensor in header.tensors])
    assert (shape.architecture, shape.layers, shape.width, shape.vocabulary) == ("llama", 30, 576, 49152)
    assert (shape.heads, shape.kv_heads, shape.tied) == ((9,) * 30, (3,) * 30, True)
    data = header.file_size - header.data_offset
    assert data - len(header.tensors) * header.alignment <= (shape.weights_bytes or 0) <= data
    setting = Setting(context=2048, era=Era.CTRANSFORMERS_2023, n_gpu_layers=999_999)
    found = footprint(shape, setting).steady
    assert found.device.kv.bytes == found.host.kv.bytes == 2048 * 30 * 2 * 192 * 2
    assert found.device.compute.bytes == 4 * 512 * (49152 + 576)
    assert found.device.unknown == found.host.unknown == ()
    assert (found.device.weights.bytes or 0) + (found.host.weights.bytes or 0) == (shape.weights_bytes or 0) + (
        shape.output_bytes or 0
    )
