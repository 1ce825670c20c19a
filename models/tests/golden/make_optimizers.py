"""Makes optimizers.json: five updates by PyTorch's optimizers (float64 arithmetic).

Run: python make_optimizers.py (torch >= 2). Inputs are exact in fp32. Lion is not in PyTorch; its
rows are the paper's Algorithm 2, written out in float64.
"""

import json
import pathlib

import torch

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


def lion(b1=0.9, b2=0.99, decay=0.1):
    p, m = torch.tensor(START, dtype=torch.float64), torch.zeros(N, dtype=torch.float64)
    for gradient in GRADIENTS:
        g = torch.tensor(gradient, dtype=torch.float64)
        p = p - LR * (torch.sign(b1 * m + (1 - b1) * g) + decay * p)
        m = b2 * m + (1 - b2) * g
    return p.tolist()


after = {name: by_torch(*case) for name, case in CASES.items()} | {"lion": lion()}
out = {"learning_rate": LR, "start": START, "gradients": GRADIENTS, "after": after}
path = pathlib.Path(__file__).with_name("optimizers.json")
path.write_text(json.dumps(out, indent=1) + "\n")
