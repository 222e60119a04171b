#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The same model with the same settings in PyTorch, alternating with train_moe's default command.

Peers: `eager` (one process, two threads) and `ddp` (two processes of one thread over gloo, gradients synchronised
on the last micro-batch). The model is transformers' MixtralForCausalLM. AdamW 0.9/0.95, decay 0.1, clip 1.0,
auxiliary coefficient 0.01, 8 micro-batches of 4 sequences of 128 bytes, fp32. The interpreter is the one this
script runs under: BELAY_PYTHON=/path/to/python bench/run beside_torch takes another.
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import time

if os.environ.get("BELAY_PYTHON") and sys.executable != os.environ["BELAY_PYTHON"]:
    os.execv(os.environ["BELAY_PYTHON"], [os.environ["BELAY_PYTHON"], *sys.argv])

SIZES = {"tiny": dict(hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4),
         "small": dict(hidden_size=256, intermediate_size=512, num_hidden_layers=8, num_attention_heads=8)}


def train(size, steps, ranks, rank, threads):
    """Trains in this process and returns the seconds of every step."""
    import torch
    from transformers import MixtralConfig, MixtralForCausalLM
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    shape = SIZES[size]
    config = MixtralConfig(vocab_size=256, num_key_value_heads=shape["num_attention_heads"], num_local_experts=8,
                           num_experts_per_tok=2, max_position_embeddings=128, output_router_logits=True,
                           router_aux_loss_coef=0.01, tie_word_embeddings=False, use_cache=False, **shape)
    model = MixtralForCausalLM(config).float()
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
            starts = torch.randint(0, len(text) - 128, (4,))
            batch = torch.stack([text[s:s + 128] for s in starts]).long()
            last = m + 1 == micro_batches
            if ranks > 1 and not last:
                with wrapped.no_sync():
                    (wrapped(input_ids=batch, labels=batch).loss / micro_batches).backward()
            else:
                (wrapped(input_ids=batch, labels=batch).loss / micro_batches).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        seconds.append(time.perf_counter() - began)
    return seconds


def corpus():
    root = pathlib.Path(__file__).resolve().parent.parent
    files = sorted(p for folder in ("docs", "include") for p in (root / folder).rglob("*") if p.is_file())
    return b"\n".join(p.read_bytes() for p in files)


def tokens_per_s(seconds):
    return 8 * 4 * 128 / statistics.median(seconds[2:])


def worker(size, steps, ranks, rank, port):
    import torch
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks))
    torch.distributed.init_process_group("gloo")
    print(tokens_per_s(train(size, steps, ranks, rank, 1)))
    torch.distributed.destroy_process_group()


def peer(name, size, steps):
    """Starts the peer in processes of its own and returns its tokens/s."""
    script = [sys.executable, os.path.abspath(__file__), "--size", size, "--steps", str(steps)]
    if name == "eager":
        return float(subprocess.run([*script, "--as", "eager"], check=True, capture_output=True, text=True).stdout)
    port = 20000 + os.getpid() % 20000
    ranks = [subprocess.Popen(["taskset", "-c", str(r), *script, "--as", "ddp", "--rank", str(r), "--port", str(port)],
                              stdout=subprocess.PIPE, text=True) for r in range(2)]
    return float(min(float(rank.communicate()[0]) for rank in ranks))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="tiny", choices=SIZES)
    parser.add_argument("--rounds", type=int, default=3, help="of all sides in turn")
    parser.add_argument("--steps", type=int, default=8, help="a round, the first two not counted")
    parser.add_argument("--as", dest="role", choices=["eager", "ddp"], help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    flags = parser.parse_args()
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
