#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""What a card and torch reach, for Belay's figures to stand beside: a line each; what fails says so and the rest goes on."""
import statistics

import torch
import torch.nn.functional as F

DEVICE = "cuda"


def milliseconds(run, calls=10, rounds=5):
    """The median of some rounds of so many calls, of one call."""
    for _ in range(3):
        run()
    times = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / calls)
    return statistics.median(times)


def figure(name, measure, *arguments):
    try:
        print(f"{name}: {measure(*arguments)}", flush=True)
    except Exception as problem:  # of any kind: one figure less
        print(f"{name}: {type(problem).__name__}, {problem}".splitlines()[0], flush=True)
    torch.cuda.empty_cache()


def copy():
    x = torch.empty(1 << 28, device=DEVICE)
    y = torch.empty_like(x)
    return f"{2 * x.nbytes / milliseconds(lambda: y.copy_(x)) / 1e6:.0f} GB/s"


def product(dtype, tf32):
    torch.backends.cuda.matmul.allow_tf32 = tf32
    a = torch.randn(8192, 8192, device=DEVICE, dtype=dtype)
    b = torch.randn_like(a)
    return f"{2 * 8192**3 / milliseconds(lambda: a @ b, 4) / 1e9:.0f} TFLOP/s"


def attention(sequences, heads, kv_heads, width, length):
    shape = dict(device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    q = torch.randn(sequences, heads, length, width, **shape)
    k, v = (torch.randn(sequences, kv_heads, length, width, **shape) for _ in range(2))

    def forward():
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    out = forward()
    slope = torch.randn_like(out)
    there = milliseconds(forward)
    back = milliseconds(lambda: torch.autograd.grad(out, (q, k, v), slope, retain_graph=True))
    flops = 2 * sequences * heads * width * length**2  # of the forward; the backward has 2.5 times as many
    return f"forward {there:.3f} ms, {flops / there / 1e9:.0f} TFLOP/s, backward {back:.3f} ms, {2.5 * flops / back / 1e9:.0f} TFLOP/s"


def grouped(experts=8, rows=8192, inner=1024, outer=7168):
    a = torch.randn(rows, inner, device=DEVICE, dtype=torch.bfloat16)
    b = torch.randn(experts, outer, inner, device=DEVICE, dtype=torch.bfloat16).transpose(1, 2)
    ends = torch.arange(1, experts + 1, device=DEVICE, dtype=torch.int32) * (rows // experts)
    multiply = getattr(F, "grouped_mm", None) or torch._grouped_mm
    return f"{2 * rows * inner * outer / milliseconds(lambda: multiply(a, b, offs=ends)) / 1e9:.0f} TFLOP/s"


def adamw():
    p = torch.zeros(1 << 28, device=DEVICE, requires_grad=True)
    p.grad = torch.ones_like(p)
    return f"{milliseconds(torch.optim.AdamW([p], fused=True).step, 3):.2f} ms"


def rms_norm():
    x = torch.randn(4096, 1024, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    w = torch.ones(1024, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)

    def both():
        y = F.rms_norm(x, (1024,), w)
        torch.autograd.grad(y, (x, w), y)
    return f"{1e3 * milliseconds(both):.0f} us"


def cross_entropy():
    x = torch.randn(4096, 32000, device=DEVICE, requires_grad=True)
    targets = torch.randint(0, 32000, (4096,), device=DEVICE)
    return f"{1e3 * milliseconds(lambda: torch.autograd.grad(F.cross_entropy(x, targets), x)):.0f} us"


def main():
    print(f"torch {torch.__version__}, CUDA {torch.version.cuda}, NCCL {getattr(torch._C, '_nccl_version', lambda: None)()}, "
          f"cuDNN {torch.backends.cudnn.version()}, {torch.cuda.get_device_name()}")
    figure("copy of 1 GiB, read and written", copy)
    figure("product of 8192^3, bf16", product, torch.bfloat16, False)
    figure("product of 8192^3, fp32", product, torch.float32, False)
    figure("product of 8192^3, fp32 by TF32", product, torch.float32, True)
    figure("attention, bf16, 2 x 16 heads of 128 (4 of keys), 2048 long", attention, 2, 16, 4, 128, 2048)
    figure("attention, bf16, 4 x 16 heads of 64 (4 of keys), 1024 long", attention, 4, 16, 4, 64, 1024)
    figure("grouped product, bf16, 8 experts, 8192 rows, 1024 to 7168", grouped)
    figure("fused AdamW of 256 M fp32 parameters", adamw)
    figure("rms_norm, forward and backward, 4096 x 1024 bf16", rms_norm)
    figure("cross entropy, forward and backward, 4096 x 32000 fp32", cross_entropy)


if __name__ == "__main__":
    main()
