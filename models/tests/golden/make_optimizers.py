"""Makes optimizers.json: five updates by PyTorch's optimizers (float64 arithmetic).

Run: python make_optimizers.py (torch >= 2.9). Inputs are exact in fp32. Lion is not in PyTorch; its
rows are the paper's Algorithm 2, written out in float64. LAMB is not either: its rows are DeepSpeed's
two-pass rule. Muon is torch.optim.Muon, whose cast to bfloat16 is turned into one to float64, so that
the rows say what the iteration is and not how bfloat16 rounds; `gram` is DeepSpeed's reordering of it.
"""

import json
import pathlib

import torch
import torch.optim._muon

N, STEPS, LR = 21, 5, 0.01


def value(i, j):
    """A multiple of 1/256 in [-2, 2)."""
    return ((i * 7919 + j * 104729 + 13) % 1024 - 512) / 256


START = [value(99, j) for j in range(N)]
GRADIENTS = [[value(i, j) * 2.0 ** (-(j % 7)) for j in range(N)] for i in range(STEPS)]

CASES = {
    "adamw": (torch.optim.AdamW, dict(betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)),
    "adam_coupled": (torch.optim.Adam, dict(betas=(0.9, 0.999), eps=1e-6, weight_decay=0.05)),
    "sgd": (torch.optim.SGD, dict(weight_decay=0.01)),
    "sgd_momentum": (torch.optim.SGD, dict(momentum=0.9, dampening=0.1, weight_decay=0.01)),
    "sgd_nesterov": (torch.optim.SGD, dict(momentum=0.9, nesterov=True)),
    "adagrad": (torch.optim.Adagrad, dict(eps=1e-10, weight_decay=0.02)),
}


def by_torch(make, options):
    p = torch.tensor(START, dtype=torch.float64, requires_grad=True)
    optimizer = make([p], lr=LR, **options)
    for gradient in GRADIENTS:
        p.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
    return p.detach().tolist()


def cycled():
    """AdamW whose first beta falls and rises, as OneCycle moves it."""
    p = torch.tensor(START, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.AdamW([p], lr=LR, weight_decay=0.1)
    for t, gradient in enumerate(GRADIENTS):
        optimizer.param_groups[0]["betas"] = (0.8 + 0.05 * abs(t - 2), 0.99)
        p.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
    return p.detach().tolist()


def lion(b1=0.9, b2=0.99, decay=0.1):
    p, m = torch.tensor(START, dtype=torch.float64), torch.zeros(N, dtype=torch.float64)
    for gradient in GRADIENTS:
        g = torch.tensor(gradient, dtype=torch.float64)
        p = p - LR * (torch.sign(b1 * m + (1 - b1) * g) + decay * p)
        m = b2 * m + (1 - b2) * g
    return p.tolist()


def lamb(b1=0.9, b2=0.999, eps=1e-6, decay=0.05, most=10.0, least=0.01, inside=False, correct=True):
    p = torch.tensor(START, dtype=torch.float64)
    m, v = torch.zeros_like(p), torch.zeros_like(p)
    for t, gradient in enumerate(GRADIENTS, 1):
        g = torch.tensor(gradient, dtype=torch.float64)
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        mhat, vhat = (m / (1 - b1**t), v / (1 - b2**t)) if correct else (m, v)
        update = mhat / (torch.sqrt(vhat + eps) if inside else torch.sqrt(vhat) + eps) + decay * p
        trust = min(max((p.norm() / update.norm()).item(), least), most)
        p = p - LR * trust * update
    return p.tolist()


class InFloat64:
    """torch, but for its bfloat16."""

    bfloat16 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


def matrix(i, rows, cols):
    """As close to singular as random signs get: a smooth field plus a little of `value`."""
    return [[value(i, r * cols + c) / 8 + ((r - c) % 5) / 4 - 0.5 for c in range(cols)] for r in range(rows)]


def muon(shape, momentum=0.95, decay=0.1):
    start = matrix(99, *shape)
    gradients = [matrix(i, *shape) for i in range(STEPS)]
    p = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    torch.optim._muon.torch = InFloat64()
    optimizer = torch.optim.Muon([p], lr=LR, momentum=momentum, weight_decay=decay)
    for gradient in gradients:
        p.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
    torch.optim._muon.torch = torch
    gram = by_gram(start, gradients, momentum, decay)
    flat = lambda rows: [x for row in rows for x in row]
    return {
        "shape": shape,
        "start": flat(start),
        "gradients": [flat(g) for g in gradients],
        "standard": flat(p.detach().tolist()),
        "gram": flat(gram),
    }


def by_gram(start, gradients, momentum, decay):
    p = torch.tensor(start, dtype=torch.float64)
    buffer = torch.zeros_like(p)
    for gradient in gradients:
        g = torch.tensor(gradient, dtype=torch.float64)
        buffer = momentum * buffer + (1 - momentum) * g
        x = momentum * buffer + (1 - momentum) * g
        tall = p.size(0) > p.size(1)
        x = orthogonal((x.T if tall else x) / (x.norm() + 1e-7))
        x = (x.T if tall else x) * max(1, p.size(0) / p.size(1)) ** 0.5
        p = p * (1 - LR * decay) - LR * x
    return p.tolist()


def orthogonal(x, a=3.4445, b=-4.7750, c=2.0315):
    """Five steps of the quintic through the Gram matrix, with a restart after two."""
    one = torch.eye(x.size(0), dtype=torch.float64)
    for count in (2, 3):
        r, q = x @ x.T, one
        for _ in range(count):
            z = b * r + c * r @ r
            q = (z + a * one) @ q
            r = (z + a * one) @ r @ (z + a * one)
        x = q @ x
    return x


after = {name: by_torch(*case) for name, case in CASES.items()} | {"lion": lion()}
after |= {
    "adamw_cycled": cycled(),
    "lamb": lamb(),
    "lamb_least": lamb(least=1.5, correct=False),
    "lamb_most": lamb(most=0.5, inside=True),
}
matrices = [muon(shape) for shape in ((6, 9), (9, 4), (7, 7))]
out = {"learning_rate": LR, "start": START, "gradients": GRADIENTS, "after": after}
out["matrices"] = matrices
path = pathlib.Path(__file__).with_name("optimizers.json")
path.write_text(json.dumps(out, indent=1) + "\n")
