"""The workloads by hand in PyTorch: as its documentation has them, compiled, and on prepacked weights."""

import os
import sys
from functools import partial

import torch
import torch._inductor.config
from torch import nn
from torch.nn import functional

from native.data import HIDDEN, HMC_STEPS, LEAPFROG_STEPS, RATE, REPEATS, draw
from native.serve import serve

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
torch.set_num_interop_threads(1)
torch.set_flush_denormal(True)
IN_CPP = {"cpp_wrapper": True, "guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
"""Options of the compiler: kernels are called from C++, and no call asks whether something has changed."""
PIECE = 50
"""Transitions of a chain that are compiled together."""


class Grouped(nn.Module):
    """Ten depthwise convolutions."""

    def __init__(self):
        super().__init__()
        convs = [nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=False) for _ in range(REPEATS)]
        self.convs = nn.Sequential(*convs)

    def forward(self, x):
        return self.convs(x)


class Sequences(nn.Module):
    """All hidden states of a recurrent layer."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


class Stacked(nn.Module):
    """Two LSTMs and a dense output."""

    def __init__(self):
        super().__init__()
        self.layers, self.dense = nn.LSTM(16, 256, 2), nn.Linear(256, 1)

    def forward(self, x):
        return self.dense(self.layers(x)[0][-1])


MODULES = {
    "dense": lambda: nn.Linear(1024, 1024),
    "conv": lambda: nn.Conv2d(4, 64, 4, stride=2, padding=3),
    "grouped_conv": Grouped,
    "rnn": lambda: Sequences(nn.RNN(128, 128)),
    "gru": lambda: Sequences(nn.GRU(128, 128)),
    "lstm": lambda: Sequences(nn.LSTM(128, 128)),
    "lstm_multi": Stacked,
}


def parameter_name(workload, name):
    """What torch calls a weight."""
    if workload == "grouped_conv":
        return f"convs.{name.removeprefix('weight')}.weight"
    if workload in ("dense", "conv"):
        return name
    kind, number = name.rstrip("12"), name[len(name.rstrip("12")) :]
    if workload == "lstm_multi" and not number:
        return f"dense.{name}"
    word = {"weight": "weight_ih", "recurrent": "weight_hh", "bias": "bias_ih", "recurrent_bias": ""}[kind]
    return f"{'layers' if number else 'layer'}.{word}_l{int(number or 1) - 1}"


def module_of(workload, data):
    """The documented module with the drawn weights in it; torch's own second biases stay as they are."""
    module = MODULES[workload]()
    named = {parameter_name(workload, name): torch.from_numpy(each) for name, each in data.weights.items()}
    extra = module.load_state_dict({name: each for name, each in named.items() if "._l" not in name}, strict=False)
    assert not extra.unexpected_keys, extra
    return module


def tensors(data, channels_last=False):
    ring = [tuple(torch.from_numpy(each) for each in batch) for batch in data.ring]
    if not channels_last:
        return ring
    return [tuple(each.contiguous(memory_format=torch.channels_last) for each in batch) for batch in ring]


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


def cells(workload, module):
    """Weights of the layers of a recurrent module, ready for a loop."""
    layer = module.layers if workload == "lstm_multi" else module.layer
    for index in range(layer.num_layers):
        names = (f"weight_ih_l{index}", f"weight_hh_l{index}", f"bias_ih_l{index}", f"bias_hh_l{index}")
        yield tuple(getattr(layer, name).detach() for name in names)


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


def unrolled(workload, zeros, x, weight, turned, bias, second):
    """One product for all inputs, then a cell per time step; `turned` are the recurrent weights, inputs first."""
    h, c, hidden, rows = zeros, zeros, turned.shape[0], []
    for row in functional.linear(x, weight, bias).unbind(0):
        if workload == "rnn":
            h = torch.addmm(row, h, turned).tanh_()
        elif workload == "lstm":
            i, f, g, o = torch.addmm(row, h, turned).chunk(4, 1)
            c = torch.addcmul(f.sigmoid() * c, i.sigmoid(), g.tanh())
            h = o.sigmoid() * c.tanh()
        else:
            product = torch.addmm(second, h, turned)
            r, z = torch.sigmoid(row[:, : 2 * hidden] + product[:, : 2 * hidden]).chunk(2, 1)
            n = torch.addcmul(row[:, 2 * hidden :], r, product[:, 2 * hidden :]).tanh()
            h = torch.lerp(n, h, z)
        rows.append(h)
    return torch.stack(rows)


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


def loss_of(workload, y, target):
    if workload in RECURRENT:
        return functional.cross_entropy(y.view(-1, 128), target.view(-1, 128))
    return functional.mse_loss(y, target)


def trained(workload, data, channels_last=False, compiles=False, optimiser=True):
    """The documented training step, or its parts by hand: gradients, and one fused update of all weights."""
    module = module_of(workload, data).train()
    if channels_last:
        module = module.to(memory_format=torch.channels_last)
    forward = torch.compile(module, dynamic=False) if compiles else module
    weights, ring = list(module.parameters()), tensors(data, channels_last)
    if not optimiser:
        return moved_by_hand(workload, forward, weights, ring)
    sgd = torch.optim.SGD(weights, RATE, foreach=True)

    def documented(x, target):
        sgd.zero_grad()
        loss = loss_of(workload, forward(x), target)
        loss.backward()
        sgd.step()
        return loss

    return [partial(documented, *batch) for batch in ring]


def moved_by_hand(workload, forward, weights, ring):
    """Steps without an optimiser."""

    def step(x, target):
        loss = loss_of(workload, forward(x), target)
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            torch._foreach_add_(weights, gradients, alpha=-RATE)
        return loss

    return [partial(step, *batch) for batch in ring]


def trained_kernel(workload, data):
    """The function that the module calls, its zero state kept; torch's second biases stay zero."""
    module, ring = module_of(workload, data).train(), tensors(data)
    layers = [[each.clone() for each in layer] for layer in cells(workload, module)]
    arguments, weights = [each for layer in layers for each in layer], list(module.dense.parameters())
    for *moved, second in layers:
        weights += [each.requires_grad_() for each in moved]
        second.zero_()
    zeros = torch.zeros(len(layers), 1, arguments[1].shape[1])

    def forward(x):
        y = torch.lstm(x, (zeros, zeros), arguments, True, len(layers), 0.0, True, False, False)[0]
        return module.dense(y[-1])

    return moved_by_hand(workload, forward, weights, ring)


def trained_at_once(workload, data, channels_last=False, in_cpp=False):
    """Loss, gradients and update as one compiled graph; recurrent layers as loops, which a compiler can see into.

    In C++: the calls of the kernels, too, and no questions in every call whether something has changed.
    """
    options = IN_CPP if in_cpp else None
    torch._dynamo.config.trace_autograd_ops = True
    module, ring = module_of(workload, data).train(), tensors(data, channels_last)
    if channels_last:
        module = module.to(memory_format=torch.channels_last)
    weights, zeros = list(module.parameters()), torch.zeros(1, HIDDEN)
    if workload in RECURRENT:
        weights = [each.clone().requires_grad_() for layer in cells(workload, module) for each in layer]
        weights = weights if workload == "gru" else weights[:3]

    def forward(x):
        if workload not in RECURRENT:
            return module(x)
        weight, recurrent, bias, *second = weights
        return unrolled(workload, zeros, x, weight, recurrent.t(), bias, *(second or [None]))

    @partial(torch.compile, fullgraph=True, dynamic=False, isolate_recompiles=True, options=options)
    def step(x, target):
        loss = loss_of(workload, forward(x), target)
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for weight, slope in zip(weights, gradients, strict=True):
                weight.sub_(RATE * slope)
        return loss.detach()

    return [partial(step, *batch) for batch in ring]


PICTURES = ("conv", "grouped_conv")
RECURRENT = ("rnn", "gru", "lstm")


def inference(workload):
    """The formulations by name."""
    pictures = workload in PICTURES
    ways = {"eager": eager, "jit": scripted}
    if pictures:
        ways |= {"eager, channels last": partial(eager, channels_last=True)}
        ways |= {"compile, channels last": partial(compiled, channels_last=True)}
        ways |= {"jit, channels last": partial(scripted, channels_last=True)}
        ways |= {"oneDNN layout": mkldnn_layout, "prepacked": prepacked_conv}
        ways |= {"prepacked, NCHW": partial(prepacked_conv, channels_last=False)}
    if workload == "conv":
        ways |= {"im2col": im2col_conv, "folded to 16 channels": padded_conv}
    if workload == "dense":
        ways |= {"compile": compiled, "oneDNN layout": mkldnn_layout, "prepacked": prepacked_dense}
        ways |= {"addmm": multiplied_dense}
    if workload in RECURRENT:
        ways |= {"kernel": fused_kernel, "loop": looped, "loop, C++": partial(looped, in_cpp=True)}
    if workload == "lstm_multi":
        ways |= {"kernel": fused_kernel}
    if "lstm" in workload:
        ways |= {"packed": packed_lstm}
    return {"eager": chain_eager, "compile": chain_compiled} if workload == "hmc" else ways


def training(workload):
    """The formulations by name."""
    ways = {"SGD": trained, "gradients by hand": partial(trained, optimiser=False)}
    if workload in PICTURES:
        ways = {"SGD, channels last": partial(trained, channels_last=True), "SGD, NCHW": trained}
        ways |= {
            "by hand, compile, channels last": partial(trained, channels_last=True, compiles=True, optimiser=False)
        }
        ways |= {"one graph, channels last": partial(trained_at_once, channels_last=True)}
        ways |= {"one graph, C++, channels last": partial(trained_at_once, channels_last=True, in_cpp=True)}
    if workload == "dense":
        ways |= {"by hand, compile": partial(trained, compiles=True, optimiser=False)}
    if workload == "lstm_multi":
        ways |= {"kernel": trained_kernel}
    if workload in RECURRENT or workload == "dense":
        ways |= {"one graph": trained_at_once, "one graph, C++": partial(trained_at_once, in_cpp=True)}
    return ways


def make(workload, mode):
    """The formulations, bound to their data."""
    data = draw(workload, mode)
    ways = inference(workload) if mode == "infer" else training(workload)
    return {name: partial(way, workload, data) for name, way in ways.items()}


if __name__ == "__main__":
    with torch.inference_mode(sys.argv[2] == "infer"):
        serve(make)
