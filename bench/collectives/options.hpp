// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The command line of the benchmark of collectives.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "belay/backend/host/tuning/algorithm_rules.hpp"
#include "belay/core/error.hpp"
#include "collectives/operation.hpp"
#include "collectives/size.hpp"

namespace bench {

struct options {
  std::vector<op> ops{op::all_reduce};
  int ranks = 2;
  std::string as = "threads";
  std::string buffers = "symmetric";
  std::string type = "float";
  std::string redop = "sum";
  int root = 0;
  std::size_t min = 8;
  std::size_t max = std::size_t{64} << 20;
  std::size_t factor = 2;
  int warmup = 3;
  int iters = 0;                   // 0: by size
  std::string algorithm = "auto";  // also by BELAY_ALGORITHM, where there is no flag
  std::vector<std::string> notes;  // what a user should know before it runs
  bool check = false;
  bool limits = false;
  bool explain = false;
  std::vector<std::string> beside;
  std::string json;

  [[nodiscard]] bool has_peer(const std::string& peer) const {
    return std::find(beside.begin(), beside.end(), peer) != beside.end();
  }
  [[nodiscard]] bool oversubscribed() const { return ranks > static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)); }

  [[nodiscard]] int samples(std::size_t bytes) const {
    if (iters > 0) return iters;
    const int many = bytes <= (std::size_t{64} << 10) ? 101 : bytes <= (std::size_t{4} << 20) ? 41 : 15;
    return oversubscribed() ? many / 3 : many;
  }
};

inline const std::vector<std::string> type_names{"float", "double", "bf16",  "fp16", "fp8",
                                                 "int8",  "int32",  "int64", "uint8"};

[[nodiscard]] inline std::size_t element_bytes(const std::string& type) {
  if (type == "double" || type == "int64") return 8;
  if (type == "float" || type == "int32") return 4;
  return type == "bf16" || type == "fp16" ? 2 : 1;
}

/// The flag comes before the variable, also where it says auto. Throws input_error for what is no algorithm, or none
/// for such ranks.
inline void choose_algorithm(options& out, bool given) {
  if (out.algorithm == "automatic") out.algorithm = "auto";
  if (out.algorithm != "auto") {
    static_cast<void>(belay::host::algorithm_named(out.algorithm));
    if (out.as == "mpi")
      throw belay::input_error("--algorithm: ranks of mpi send messages and have no other algorithm");
  }
  const char* const variable = std::getenv("BELAY_ALGORITHM");
  if (variable == nullptr || *variable == '\0') return;
  const std::string set = "BELAY_ALGORITHM=" + std::string(variable);
  if (given) {
    if (out.algorithm != variable) out.notes.push_back("--algorithm " + out.algorithm + " comes before " + set);
    ::unsetenv("BELAY_ALGORITHM");
  } else if (out.as == "mpi") {
    out.notes.push_back(set + " is not for ranks of mpi, which send messages");
  } else {
    const belay::host::algorithm forced = belay::host::algorithm_named(variable);
    if (forced == belay::host::algorithm::automatic) return;
    out.algorithm = variable;
    out.notes.push_back(set + " is in force");
  }
}

/// The options, or the exit code where there is nothing to run.
[[nodiscard]] inline std::optional<options> parse_options(int argc, char** argv, int& code) {
  options out;
  std::string ops = "all_reduce", min = "8", max = "64M";
  CLI::App app{
      "Times of the collectives on this machine, as nccl-tests prints them, beside what the machine can do "
      "and beside others"};
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--op", ops, "an operation, several with commas, or all: " + CLI::detail::join(op_names, " "))
      ->capture_default_str();
  app.add_option("--ranks", out.ranks, "ranks")->check(CLI::Range(1, 64))->capture_default_str();
  app.add_option("--as", out.as, "what a rank is: threads, processes, or mpi (starts mpirun)")
      ->check(CLI::IsMember({"threads", "processes", "mpi"}))
      ->capture_default_str();
  app.add_option("--buffers", out.buffers, "symmetric (of a symmetric heap) or ordinary")
      ->check(CLI::IsMember({"symmetric", "ordinary"}))
      ->capture_default_str();
  app.add_option("--type", out.type, "element type")->check(CLI::IsMember(type_names))->capture_default_str();
  app.add_option("--redop", out.redop, "reduction: sum, prod, min, max or avg")
      ->check(CLI::IsMember({"sum", "prod", "min", "max", "avg"}))
      ->capture_default_str();
  app.add_option("--root", out.root, "root of broadcast, reduce, gather and scatter")->capture_default_str();
  app.add_option("--min", min, "smallest buffer in bytes; K, M and G are powers of 1024")->capture_default_str();
  app.add_option("--max", max, "largest buffer")->capture_default_str();
  app.add_option("--factor", out.factor, "from one size to the next")
      ->check(CLI::Range(std::size_t{2}, std::size_t{1} << 20))
      ->capture_default_str();
  app.add_option("--warmup", out.warmup, "samples before those that count")->check(CLI::Range(0, 1'000'000));
  app.add_option("--iters", out.iters, "samples of each size (default 101, 41 above 64K, 15 above 4M)")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--algorithm", out.algorithm,
                 "forces an algorithm instead of the library's choice: flag_line, eager_buffer, one_shot, push, pull, "
                 "staged, cma")
      ->capture_default_str();
  app.add_flag("--check", out.check, "compare every result with the ordered reference, bit for bit");
  app.add_flag("--limits", out.limits, "also measure the concurrent copy of the same bytes");
  app.add_flag("--explain", out.explain,
               "also print, to standard error, the static rules and the calibration at the start and, as "
               "BELAY_TUNING=print does, the settled variants at the end");
  app.add_option("--beside", out.beside,
                 "contenders in the same run: mpi, twin (a hand-written baseline), bare (without fingerprint, recorder "
                 "and deadline)")
      ->delimiter(',')
      ->check(CLI::IsMember({"mpi", "twin", "bare"}));
  app.add_option("--json", out.json, "also write the results to this file");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    code = app.exit(error) == 0 ? 0 : 2;
    return std::nullopt;
  }
  const auto refuse = [&](const std::string& why) {
    std::fprintf(stderr, "%s\n", why.c_str());
    code = 2;
    return std::nullopt;
  };
  if (out.explain) ::setenv("BELAY_TUNING", "print", 1);
  const auto wanted = parse_ops(ops);
  if (!wanted) return refuse("--op " + ops + ": there are " + CLI::detail::join(op_names, " ") + ", and all");
  out.ops = *wanted;
  const auto low = parse_size(min), high = parse_size(max);
  if (!low || *low == 0) return refuse("--min " + min + ": expected bytes such as 8, 4K or 64M");
  if (!high || *high < *low) return refuse("--max " + max + ": expected bytes such as 64M, at least --min");
  out.min = *low;
  out.max = *high;
  if (!out.json.empty() && !std::ofstream(out.json, std::ios::app)) {
    return refuse("--json " + out.json + ": cannot be written" + belay::missing_folder(out.json));
  }
  try {
    choose_algorithm(out, app.count("--algorithm") > 0);
  } catch (const belay::input_error& problem) {
    return refuse(problem.what());
  }
  if (out.type == "fp8" && std::all_of(out.ops.begin(), out.ops.end(), reduces)) {
    return refuse("--type fp8 --op " + ops + ": fp8 is moved, never reduced; reduce bf16, fp16 or float");
  }
  const auto makes_a_size = [&](op which) {
    if (which == op::barrier) return true;
    const std::vector<std::size_t> all = sweep(out.min, out.max, out.factor);
    return std::any_of(all.begin(), all.end(), [&](std::size_t bytes) {
      return extent_of(which, bytes, element_bytes(out.type), out.ranks).count > 0;
    });
  };
  if (std::none_of(out.ops.begin(), out.ops.end(), makes_a_size)) {
    return refuse("--min " + min + " --max " + max + ": no size between holds an element of --type " + out.type +
                  " for each of " + std::to_string(out.ranks) + " ranks");
  }
  if (out.root < 0 || out.root >= out.ranks) return refuse("--root " + std::to_string(out.root) + ": no such rank");
  if (out.has_peer("mpi") && out.as == "threads") {
    return refuse("--beside mpi: ranks that are threads share one MPI process; use --as processes");
  }
  if (std::getenv("BELAY_BENCH_SMOKE") != nullptr) {  // a test that all of it still runs
    out.ops = {op::barrier, op::all_reduce, op::reduce_scatter, op::all_gather, op::all_to_all, op::broadcast};
    out.min = 8;
    out.max = std::size_t{64} << 10;
    out.factor = 64;
    out.warmup = 1;
    out.iters = 4;
    out.check = out.limits = true;
    if (!out.has_peer("twin")) out.beside.emplace_back("twin");
  }
  if (out.oversubscribed()) {
    out.notes.push_back(std::to_string(out.ranks) + " ranks share " + std::to_string(::sysconf(_SC_NPROCESSORS_ONLN)) +
                        " cores: most of each time is waiting for a turn on a core, so all of it takes long (try --max "
                        "64K --factor 8); " +
                        (out.iters > 0 ? "" : "a third of the samples is taken, and ") +
                        "figures are those of this case only");
  }
  return out;
}

}  // namespace bench
