"""Makes schedules.json: DeepSpeed's learning-rate schedules, step by step.

Run: python make_schedules.py. Each class below is DeepSpeed's lr_schedules.py reduced to its
arithmetic, in its own structure (a counter that `step` advances), not ours. Beside each list of
rates stands the specification in our words.
"""

import json
import math
import pathlib

STEPS = 64


class WarmupLR:
    def __init__(self, lo, hi, warmup, kind):
        self.lo, self.hi, self.w, self.kind = lo, hi, max(2, warmup), kind
        self.inverse_log = 1.0 / math.log(self.w)
        self.it = -1

    def gamma(self):
        if self.it < self.w:
            if self.kind == "log":
                return self.inverse_log * math.log(self.it + 1)
            return self.it / self.w
        return 1.0

    def rate(self):
        return self.lo + (self.hi - self.lo) * self.gamma()

    def step(self):
        self.it += 1
        return self.rate()


class WarmupDecayLR(WarmupLR):
    def __init__(self, total, *rest):
        super().__init__(*rest)
        self.total = total

    def gamma(self):
        if self.it < self.w:
            return super().gamma()
        return max(0.0, float(self.total - self.it) / float(max(1.0, self.total - self.w)))


class WarmupCosineLR(WarmupLR):
    def __init__(self, base, total, lo, warmup, cos_min, kind):
        super().__init__(lo, 1.0, warmup, kind)
        self.base, self.total, self.cos_min = base, total, cos_min

    def rate(self):
        if self.it < self.w:
            return self.base * super().rate()
        done = self.it - self.w + 1
        progress = min(1.0, done / max(1, self.total - self.w))
        ratio = (1 + math.cos(math.pi * progress)) / 2
        return self.base * max(0.0, self.cos_min + (1.0 - self.cos_min) * ratio)


class OneCycle:
    def __init__(self, lo, hi, first, second, decay_rate, decay_step, stairs=(0, 0), mom=None):
        self.lo, self.hi, self.total = lo, hi, first + second
        self.first, self.second, self.stairs, self.mom = first, second, stairs, mom
        self.step_ratio = first / self.total
        self.decay_rate, self.decay_step = decay_rate, decay_step
        self.it = -1

    def step(self):
        self.it += 1
        if self.it < self.total:
            batch = self.it + 1
            cycle = math.floor(1 + batch / self.total)
            x = 1.0 + batch / self.total - cycle
            up = x <= self.step_ratio
            scale = x / self.step_ratio if up else (x - 1) / (self.step_ratio - 1)
            count = self.stairs[0] if up else self.stairs[1]
            if count > 0:
                here = batch % self.total
                if here <= self.first:
                    position = here * count / self.first
                else:
                    position = (self.total - here) * count / self.second
                scale = math.floor(position) / count
            if self.mom:
                lo, hi, _ = self.mom
                self.beta = hi - (hi - lo) * scale
            return self.lo + (self.hi - self.lo) * scale
        interval = (self.it - self.total + 1) / self.decay_step if self.decay_step else 0.0
        if self.mom:
            self.beta = self.mom[1] * (1 + self.mom[2] * interval)
        return self.lo / (1 + self.decay_rate * interval)


class LRRangeTest:
    def __init__(self, lo, size, rate, staircase):
        self.lo, self.size, self.slope, self.staircase = lo, size, rate, staircase
        self.it = -1

    def step(self):
        self.it += 1
        interval = float(self.it + 1) / self.size
        interval = math.floor(interval) if self.staircase else interval
        return self.lo * (1 + self.slope * interval)


def cases():
    for kind in ("log", "linear"):
        rise = {"type": "warmup_linear", "min": 1e-5, "max": 1e-3, "shape": kind}
        for warmup in (0, 10):
            yield {**rise, "warmup": warmup, "total": None}, WarmupLR(1e-5, 1e-3, warmup, kind)
        for total in (5, 50):
            ours = {**rise, "warmup": 10, "total": total}
            yield ours, WarmupDecayLR(total, 1e-5, 1e-3, 10, kind)
            ours = {"type": "warmup_cosine", "rate": 3e-4, "min_ratio": 0.1, "cos_min_ratio": 0.01}
            ours |= {"warmup": 10, "total": total, "shape": kind}
            yield ours, WarmupCosineLR(3e-4, total, 0.1, 10, 0.01, kind)
    for decay in ((0.0, 0), (0.5, 7)):
        ours = {"type": "one_cycle", "rates": [1e-4, 1e-2], "steps": [10, 30], "stairs": [0, 0]}
        ours |= {"decay_rate": decay[0], "decay_step": decay[1]}
        yield ours, OneCycle(1e-4, 1e-2, 10, 30, *decay)
    for steps, stairs in (([10, 30], [5, 3]), ([7, 13], [7, 2])):
        ours = {"type": "one_cycle", "rates": [1e-4, 1e-2], "steps": steps, "stairs": stairs}
        ours |= {"decay_rate": 0.1, "decay_step": 4}
        ours |= {"momentum": {"bounds": [0.8, 0.9], "decay_rate": 0.005}}
        yield ours, OneCycle(1e-4, 1e-2, *steps, 0.1, 4, stairs, (0.8, 0.9, 0.005))
    for stairs in (False, True):
        ours = {"type": "range_test", "min": 1e-3, "step": 20, "rate": 1.5, "staircase": stairs}
        yield ours, LRRangeTest(1e-3, 20, 1.5, stairs)


def rows(spec, schedule):
    rates, betas = [], []
    for _ in range(STEPS):
        rates.append(schedule.step())
        if getattr(schedule, "mom", None):
            betas.append(schedule.beta)
    return {"spec": spec, "rates": rates, "betas": betas}


out = [rows(*case) for case in cases()]
pathlib.Path(__file__).with_name("schedules.json").write_text(json.dumps(out) + "\n")
