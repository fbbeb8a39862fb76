"""Inference by hand in PyTorch: as its documentation has it, compiled, and on prepacked weights."""

from functools import partial

import torch
import torch._inductor.config
from torch.nn import functional

from native.data import HIDDEN, HMC_STEPS, LEAPFROG_STEPS
from native.torch_modules import IN_CPP, PICTURES, RECURRENT, cells, module_of, tensors, unrolled

PIECE = 50
"""Transitions of a chain that are compiled together."""


def eager(workload, data, channels_last=False):
    module = module_of(workload, data).eval().requires_grad_(False)
    if channels_last:
        module = module.to(memory_format=torch.channels_last)
    return [partial(module.forward, *batch) for batch in tensors(data, channels_last)]


def compiled(workload, data, channels_last=False):
    torch._inductor.config.freezing = True
    module = module_of(workload, data).eval().requires_grad_(False)
    if channels_last:
        module = module.to(memory_format=torch.channels_last)
    call = torch.compile(module, dynamic=False)
    return [partial(call, *batch) for batch in tensors(data, channels_last)]


def scripted(workload, data, channels_last=False):
    """TorchScript, frozen and with oneDNN's fusions and layouts."""
    module = module_of(workload, data).eval().requires_grad_(False)
    if channels_last:
        module = module.to(memory_format=torch.channels_last)
    ring = tensors(data, channels_last)
    with torch.inference_mode(False), torch.no_grad():
        traced = torch.jit.freeze(torch.jit.trace(module, ring[0], check_trace=False))
        traced = torch.jit.optimize_for_inference(traced)
    return [partial(traced, *batch) for batch in ring]


def mkldnn_layout(workload, data):
    """Inputs and weights in oneDNN's own blocked layout; the output is an ordinary tensor, as everybody's is."""
    from torch.utils import mkldnn

    module = mkldnn.to_mkldnn(module_of(workload, data).eval().requires_grad_(False))

    def step(x):
        return module(x).to_dense()

    return [partial(step, batch[0].to_mkldnn()) for batch in tensors(data)]


def prepacked_dense(workload, data):
    module, ring = module_of(workload, data), tensors(data)
    packed = torch.ops.mkldnn._reorder_linear_weight(module.weight.detach(), 32)
    bias, call = module.bias.detach(), torch.ops.mkldnn._linear_pointwise
    return [partial(call, x, packed, bias, "none", [], "") for (x,) in ring]


def multiplied_dense(workload, data):
    module, ring = module_of(workload, data), tensors(data)
    weight, bias = module.weight.detach().t().contiguous(), module.bias.detach()
    return [partial(torch.addmm, bias, x, weight) for (x,) in ring]


def prepacked_conv(workload, data, channels_last=True):
    module, ring = module_of(workload, data), tensors(data, channels_last)
    call, pack = torch.ops.mkldnn._convolution_pointwise, torch.ops.mkldnn._reorder_convolution_weight
    layers = module.convs if workload == "grouped_conv" else [module]
    packed = []
    for conv in layers:
        weight = conv.weight.detach()
        weight = weight.contiguous(memory_format=torch.channels_last) if channels_last else weight
        geometry = (list(conv.padding), list(conv.stride), list(conv.dilation), conv.groups)
        bias = None if conv.bias is None else conv.bias.detach()
        packed.append((pack(weight, *geometry, list(ring[0][0].shape)), bias, geometry))

    def step(x):
        for weight, bias, geometry in packed:
            x = call(x, weight, bias, *geometry, "none", [], "")
        return x

    return [partial(step, x) for (x,) in ring]


def im2col_conv(workload, data):
    """The convolution as one matrix product over unfolded pictures."""
    module, ring = module_of(workload, data), tensors(data)
    weight, bias = module.weight.detach().flatten(1), module.bias.detach()[:, None]

    def step(x):
        columns = functional.unfold(x, (4, 4), padding=3, stride=2)[0]
        return torch.addmm(bias, weight, columns).view(1, 64, 542, 962)

    return [partial(step, x) for (x,) in ring]


def padded_conv(workload, data):
    """Four channels are few for oneDNN's blocked kernels: the picture folded to 16 channels at half the size.

    A kernel of 4 x 4 with stride 2 on 4 channels is one of 2 x 2 with stride 1 on 16.
    """
    module, ring = module_of(workload, data), tensors(data)
    folded = functional.pixel_unshuffle(module.weight.detach(), 2).contiguous(memory_format=torch.channels_last)
    bias = module.bias.detach()

    def step(x):
        wide = functional.pixel_unshuffle(functional.pad(x, (3, 3, 3, 3)), 2)
        return functional.conv2d(wide.contiguous(memory_format=torch.channels_last), folded, bias)

    return [partial(step, x) for (x,) in ring]


def packed_lstm(workload, data):
    """oneDNN's layer behind nn.LSTM, on weights packed once."""
    module, ring = module_of(workload, data), tensors(data)
    length, layers = ring[0][0].shape[0], []
    for weight, recurrent, bias, second in cells(workload, module):
        hidden, shape = recurrent.shape[1], [length, 1, weight.shape[1]]
        pack = torch.ops.mkldnn._reorder_mkldnn_rnn_layer_weight
        packed = pack(weight, recurrent, hidden, False, True, False, shape)
        zeros = torch.zeros(1, hidden)
        layers.append((*packed, bias, second, zeros, zeros, False, [], 2, hidden, 1, True, False, False, False))
    call = torch.mkldnn_rnn_layer

    def step(x):
        for each in layers:
            x = call(x, *each)[0]
        return module.dense(x[-1]) if workload == "lstm_multi" else x

    return [partial(step, x) for (x,) in ring]


def fused_kernel(workload, data):
    """The function that the module calls, with its zero state kept."""
    module, ring = module_of(workload, data), tensors(data)
    call = {"rnn": torch.rnn_tanh, "gru": torch.gru, "lstm": torch.lstm, "lstm_multi": torch.lstm}[workload]
    weights = [each for layer in cells(workload, module) for each in layer]
    count = len(weights) // 4
    zeros = torch.zeros(count, 1, weights[1].shape[1])
    start = (zeros, zeros) if "lstm" in workload else zeros
    last = module.dense if workload == "lstm_multi" else None

    def step(x):
        y = call(x, start, weights, True, count, 0.0, False, False, False)[0]
        return y if last is None else last(y[-1])

    return [partial(step, x) for (x,) in ring]


def looped(workload, data, in_cpp=False):
    """A cell per time step, or all of them in one compiled function."""
    module, ring = module_of(workload, data), tensors(data)
    ((weight, recurrent, bias, second),) = cells(workload, module)
    turned, zeros, call = recurrent.t().contiguous(), torch.zeros(1, HIDDEN), unrolled
    if in_cpp:
        call = torch.compile(unrolled, fullgraph=True, dynamic=False, isolate_recompiles=True, options=IN_CPP)
    return [partial(call, workload, zeros, x, weight, turned, bias, second) for (x,) in ring]


def chain(x, momenta, uniforms):
    """Some transitions; the gradient of the log density is -1 - 2 x."""
    states = []
    for p, u in zip(momenta.unbind(), uniforms.unbind(), strict=True):
        y, q = x, p - 0.5 - x
        for _ in range(LEAPFROG_STEPS - 1):
            y = y + q
            q = q - 1 - 2 * y
        y = y + q
        q = q - 0.5 - y
        lost = x + x * x - y - y * y + (p * p - q * q) / 2
        x = torch.where(u.log() < lost, y, x)
        states.append(x)
    return states


def chain_eager(workload, data):
    return [lambda: torch.stack(chain(torch.tensor(1.0), torch.randn(HMC_STEPS), torch.rand(HMC_STEPS)))]


def chain_compiled(workload, data):
    """Pieces through Inductor, which makes one C++ kernel of each."""

    def some(x, momenta, uniforms):
        states = chain(x, momenta, uniforms)
        return torch.stack(states), states[-1]

    options = {"realize_opcount_threshold": 4, "max_fusion_size": 4096}
    piece = torch.compile(some, fullgraph=True, dynamic=False, options=options)

    def step():
        states, x = [], torch.tensor(1.0)
        momenta, uniforms = torch.randn(HMC_STEPS).split(PIECE), torch.rand(HMC_STEPS).split(PIECE)
        for each in zip(momenta, uniforms, strict=True):
            made, x = piece(x, *each)
            states.append(made)
        return torch.cat(states)

    return [step]


def inference(workload):
    """The formulations by name."""
    pictures = workload in PICTURES
    formulations = {"eager": eager, "jit": scripted}
    if pictures:
        formulations |= {"eager, channels last": partial(eager, channels_last=True)}
        formulations |= {"compile, channels last": partial(compiled, channels_last=True)}
        formulations |= {"jit, channels last": partial(scripted, channels_last=True)}
        formulations |= {"oneDNN layout": mkldnn_layout, "prepacked": prepacked_conv}
        formulations |= {"prepacked, NCHW": partial(prepacked_conv, channels_last=False)}
    if workload == "conv":
        formulations |= {"im2col": im2col_conv, "folded to 16 channels": padded_conv}
    if workload == "dense":
        formulations |= {"compile": compiled, "oneDNN layout": mkldnn_layout, "prepacked": prepacked_dense}
        formulations |= {"addmm": multiplied_dense}
    if workload in RECURRENT:
        formulations |= {"kernel": fused_kernel, "loop": looped, "loop, C++": partial(looped, in_cpp=True)}
    if workload == "lstm_multi":
        formulations |= {"kernel": fused_kernel}
    if "lstm" in workload:
        formulations |= {"packed": packed_lstm}
    return {"eager": chain_eager, "compile": chain_compiled} if workload == "hmc" else formulations
