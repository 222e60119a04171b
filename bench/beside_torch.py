#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The same model with the same settings in PyTorch, alternating with train_moe's default command.

Peers: `eager` (one process, two threads) and `ddp` (two processes of one thread over gloo, gradients synchronised
on the last micro-batch). The model is transformers' MixtralForCausalLM. AdamW 0.9/0.95, decay 0.1, clip 1.0,
auxiliary coefficient 0.01, 8 micro-batches of 4 sequences of 128 bytes, fp32. The interpreter is the one this
script runs under: BELAY_PYTHON=/path/to/python bench/run beside_torch takes another.

With --device cuda both train on one GPU in bf16, `1b` by default: 1.0 B parameters in the shape of Mixtral. torch has
fp32 parameters under autocast, as train_moe keeps a master copy of them, and scaled_dot_product_attention. Nothing is
held against a limit. Where torch or its GPU is missing, train_moe's figure is told alone.
"""
import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

if os.environ.get("BELAY_PYTHON") and sys.executable != os.environ["BELAY_PYTHON"]:
    os.execv(os.environ["BELAY_PYTHON"], [os.environ["BELAY_PYTHON"], *sys.argv])

SIZES = {"tiny": dict(hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4),
         "small": dict(hidden_size=256, intermediate_size=512, num_hidden_layers=8, num_attention_heads=8),
         "1b": dict(hidden_size=1024, intermediate_size=3584, num_hidden_layers=11, num_attention_heads=16,
                    num_key_value_heads=4)}
ROOT = pathlib.Path(__file__).resolve().parent.parent


def sequence_of(size):
    return 1024 if size == "1b" else 128


def config_of(size):
    """What of the model a config.json of Mixtral says."""
    shape = SIZES[size]
    return dict(dict(vocab_size=256, num_key_value_heads=shape["num_attention_heads"], num_local_experts=8,
                     num_experts_per_tok=2, max_position_embeddings=sequence_of(size), router_aux_loss_coef=0.01,
                     tie_word_embeddings=False), **shape)


def parameters_of(size):
    c = config_of(size)
    head = c["hidden_size"] // c["num_attention_heads"]
    attention = 2 * c["hidden_size"] * head * (c["num_attention_heads"] + c["num_key_value_heads"])
    experts = c["num_local_experts"] * (3 * c["hidden_size"] * c["intermediate_size"] + c["hidden_size"])
    return (c["num_hidden_layers"] * (attention + experts + 2 * c["hidden_size"])
            + 2 * c["vocab_size"] * c["hidden_size"] + c["hidden_size"])


def train(size, steps, ranks, rank, threads, device="cpu"):
    """Trains in this process and returns the seconds of every step."""
    import torch
    from transformers import MixtralConfig, MixtralForCausalLM
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    length = sequence_of(size)
    config = MixtralConfig(output_router_logits=True, use_cache=False, **config_of(size))
    model = MixtralForCausalLM(config).float().to(device)
    narrow = torch.autocast(device, torch.bfloat16, enabled=device == "cuda")
    wrapped = model
    if ranks > 1:
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
    decayed = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
                                  lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    text = torch.frombuffer(bytearray(corpus()), dtype=torch.uint8)
    micro_batches = 8 // ranks
    seconds = []
    for step in range(steps):
        began = time.perf_counter()
        for m in range(micro_batches):
            starts = torch.randint(0, len(text) - length, (4,))
            batch = torch.stack([text[s:s + length] for s in starts]).long().to(device)
            last = m + 1 == micro_batches
            with wrapped.no_sync() if ranks > 1 and not last else contextlib.nullcontext():
                with narrow:
                    loss = wrapped(input_ids=batch, labels=batch).loss / micro_batches
                loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return seconds


def corpus():
    files = sorted(p for folder in ("docs", "include") for p in (ROOT / folder).rglob("*") if p.is_file())
    files = files or [ROOT / "corpus.txt"]  # of a pack for a card
    return b"\n".join(p.read_bytes() for p in files)


def tokens_per_s(seconds, length=128):
    return 8 * 4 * length / statistics.median(seconds[2:])


def worker(size, steps, ranks, rank, port):
    import torch
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks))
    torch.distributed.init_process_group("gloo")
    print(tokens_per_s(train(size, steps, ranks, rank, 1)))
    torch.distributed.destroy_process_group()


def peer(name, size, steps):
    """Starts the peer in processes of its own and returns its tokens/s."""
    script = [sys.executable, os.path.abspath(__file__), "--size", size, "--steps", str(steps)]
    if name in ("eager", "cuda"):
        return float(subprocess.run([*script, "--as", name], check=True, capture_output=True, text=True).stdout)
    port = 20000 + os.getpid() % 20000
    ranks = [subprocess.Popen(["taskset", "-c", str(r), *script, "--as", "ddp", "--rank", str(r), "--port", str(port)],
                              stdout=subprocess.PIPE, text=True) for r in range(2)]
    return float(min(float(rank.communicate()[0]) for rank in ranks))


def why_not_on_gpu():
    """Why torch does not train on a GPU here; None: it does."""
    try:
        import torch
        import transformers  # noqa: F401
    except ImportError as missing:
        return f"this Python has no {missing.name} (pip install torch transformers)"
    return None if torch.cuda.is_available() else f"torch {torch.__version__} finds no GPU"


def attention_of_torch(rounds=15):
    """Milliseconds of torch's causal attention in bf16, forward and backward, of what bench/run --cuda measures."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention
    sequences, heads, kv_heads, width, length = 2, 16, 4, 128, 2048
    q, k, v = (torch.randn(sequences, n, length, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
               for n in (heads, kv_heads, kv_heads))
    slope = torch.randn(sequences, heads, length, width, device="cuda", dtype=torch.bfloat16)
    there, back = [], []
    for _ in range(rounds + 2):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        marks[0].record()
        out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        marks[1].record()
        torch.autograd.grad(out, (q, k, v), slope)
        marks[2].record()
        torch.cuda.synchronize()
        there.append(marks[0].elapsed_time(marks[1]))
        back.append(marks[1].elapsed_time(marks[2]))
    return statistics.median(there[2:]), statistics.median(back[2:])


def beside_on_gpu(size, rounds, steps):
    """train_moe on one GPU, and torch where it can: in turn."""
    try:
        found = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    except OSError:
        found = ""
    if "GPU 0" not in found:
        print("beside_torch --device cuda: skipped, nvidia-smi finds no GPU here")
        return
    # Builds it, for the GPU that is here.
    subprocess.run([ROOT / "examples/run", "--cuda", "--help"], check=True, stdout=subprocess.DEVNULL)
    os.environ["BELAY_BUILD_DIR"] = str(ROOT / "build/examples_cuda")
    from support.trainer_runs import Run
    why = why_not_on_gpu()
    mine, theirs = [], []
    with tempfile.TemporaryDirectory() as folder:
        config = os.path.join(folder, "config.json")
        with open(config, "w") as out:
            json.dump(dict(model_type="mixtral", hidden_act="silu", **config_of(size)), out)
        flags = ["--device", "cuda", "--mesh", "dp=1", "--dtype", "bf16", "--model", config, "--sequence",
                 sequence_of(size), "--steps", steps]
        for _ in range(rounds):
            mine.append(Run(flags).tokens_per_s())
            print(f"train_moe {mine[-1]:.0f} tokens/s", end="", flush=True)
            if why is None:
                theirs.append(peer("cuda", size, steps))
                print(f"  torch {theirs[-1]:.0f} tokens/s", end="")
            print(flush=True)
    print(f"beside_torch: {found.splitlines()[0]}, Mixtral of {parameters_of(size) / 1e9:.2f} B parameters in bf16, "
          f"sequences of {sequence_of(size)}: train_moe {statistics.median(mine):.0f} tokens/s" +
          (f", {statistics.median(mine) / statistics.median(theirs):.2f} x torch's" if theirs else
           f"; torch: skipped, {why}"))
    if why is None:
        there, back = attention_of_torch()
        print(f"beside_torch: attention of bf16, 2 x 16 heads of 128 (4 of keys), 2048 long, by torch: forward {there:.2f} ms, "
              f"backward {back:.2f} ms; Belay's are figures of bench/run --cuda")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--size", choices=SIZES, help="tiny; with --device cuda 1b")
    parser.add_argument("--rounds", type=int, default=3, help="of all sides in turn")
    parser.add_argument("--steps", type=int, default=8, help="a round, the first two not counted")
    parser.add_argument("--as", dest="role", choices=["eager", "ddp", "cuda"], help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    flags.size = flags.size or ("1b" if flags.device == "cuda" else "tiny")
    if flags.role == "cuda":
        print(tokens_per_s(train(flags.size, flags.steps, 1, 0, os.cpu_count(), "cuda"), sequence_of(flags.size)))
        return
    if flags.device == "cuda":
        beside_on_gpu(flags.size, flags.rounds, flags.steps)
        return
    try:
        import torch
        import transformers
    except ImportError as missing:
        print(f"beside_torch: skipped, this Python has no {missing.name} (pip install torch transformers)")
        return
    if flags.role == "eager":
        print(tokens_per_s(train(flags.size, flags.steps, 1, 0, 2)))
        return
    if flags.role == "ddp":
        worker(flags.size, flags.steps, 2, flags.rank, flags.port)
        return
    from support.trainer_runs import Run
    rates = {"train_moe": [], "eager": [], "ddp": []}
    for _ in range(flags.rounds):
        rates["train_moe"].append(Run(["--model", flags.size, "--steps", flags.steps]).tokens_per_s())
        for name in ("eager", "ddp"):
            rates[name].append(peer(name, flags.size, flags.steps))
        print("  ".join(f"{name} {rate[-1]:.0f}" for name, rate in rates.items()) + " tokens/s", flush=True)
    mine = statistics.median(rates["train_moe"])
    print(f"beside_torch: torch {torch.__version__}, transformers {transformers.__version__}, {flags.size}: train_moe has "
          f"{mine / statistics.median(rates['eager']):.2f} x eager with two threads (limit 2.2, goal 2.6), "
          f"{mine / statistics.median(rates['ddp']):.2f} x DDP (limit 1.7, goal 2.2)")


if __name__ == "__main__":
    main()
