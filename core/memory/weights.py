"""Where the bytes of a model file lie once it is loaded.

1. The token embedding stays on the host, even when everything is offloaded.
2. A tied output is a second copy of the embedding as soon as the output is on the device.
3. Layers go to the device from the last one backwards; all experts count, used or not.
4. Without sizes per layer, layers count as equally large.
"""

from core.memory.setting import Setting
from core.memory.shape import ModelShape


def layer_sizes(shape: ModelShape) -> tuple[int, ...] | None:
    """Bytes of each layer; from the file's total when it is all that is known."""
    if shape.layer_bytes is not None:
        return shape.layer_bytes
    if shape.weights_bytes is None or shape.embedding_bytes is None or not shape.layers:
        return None
    output = 0 if shape.tied or shape.encoder else shape.output_bytes
    if output is None:
        return None
    rest = max(0, shape.weights_bytes - shape.embedding_bytes - output)
    return (-(-rest // shape.layers),) * shape.layers


def split_weights(shape: ModelShape, setting: Setting) -> tuple[int | None, int | None]:
    """Bytes of weights on all devices together and on the host, once loaded."""
    if setting.gpus == 0 or setting.n_gpu_layers == 0:
        return 0, repacked(shape, setting, shape.weights_bytes)
    sizes = layer_sizes(shape)
    if sizes is None or shape.weights_bytes is None:
        return None, None
    first = len(sizes) - setting.offloaded(len(sizes))
    device = sum(sizes[first:])
    if setting.experts_on_host and shape.experts:
        if shape.expert_bytes is None:
            return None, None
        device -= sum(shape.expert_bytes[first:])
    host = shape.weights_bytes - device
    if setting.output_offloaded(len(sizes)) and not shape.encoder:
        if shape.output_bytes is None:
            return None, None
        device += shape.output_bytes
        host -= 0 if shape.tied else shape.output_bytes
    # Layers of a size by division may add up to a few bytes more than there are.
    return device, repacked(shape, setting, max(0, host))


def repacked(shape: ModelShape, setting: Setting, host: int | None) -> int | None:
    """Host weights with the second copy, which is seen to be 2 % larger than what it copies."""
    if host is None or not setting.repack:
        return host
    if shape.embedding_bytes is None:
        return None
    return host + max(0, host - shape.embedding_bytes) * 102 // 100
