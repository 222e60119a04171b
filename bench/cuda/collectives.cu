// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// collectives [--ranks N] [--op NAME,...|all] [--min BYTES] [--max BYTES] [--factor N] [--iters N] [--warmup N]
//             [--sums any|fixed_order] [--overlap N]
//
// The table of nccl-tests over Belay's groups: ranks are threads with a GPU each, floats are summed. Sizes may end in
// K, M or G. `fixed_order` sums in rank order, by Belay. With `--overlap N` a line says what an all_reduce of the
// largest size takes beside products of N x N matrices. Ends with 1 where an element is wrong.
#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <iterator>
#include <string>
#include <string_view>

#include "belay/backend/cuda.hpp"
#include "belay/backend/cuda/runtime_api.cuh"
#include "belay/backend/host.hpp"
#include "belay/backend/nccl.hpp"
#include "belay/backend/nccl/runtime_nccl.cuh"
#include "cuda/collective_table.hpp"

namespace {

struct settings {
  bench::table_options table;
  int ranks = 0;            // as many as there are GPUs
  std::size_t overlap = 0;  // width of the matrices; 0: not measured
  belay::nccl::sums sums = belay::nccl::sums::any;
};

[[noreturn]] void refuse(std::string_view flag, std::string_view value) {
  throw belay::input_error("collectives: " + std::string(flag) + " " + std::string(value) + " makes no sense",
                           belay::where::current());
}
std::size_t number(std::string_view flag, std::string_view text) {
  std::size_t value = 0;
  const auto got = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit = text.substr(static_cast<std::size_t>(got.ptr - text.data()));
  const std::size_t power = unit.empty() ? 0 : std::string_view("KMG").find(unit) + 1;
  const bool known = unit.empty() || (unit.size() == 1 && power > 0);
  if (got.ec != std::errc() || value == 0 || !known) refuse(flag, text);
  return value << (10 * power);
}
void choose_operations(settings& to, std::string_view names) {
  to.table.operations.clear();
  constexpr std::size_t known = std::size(bench::device_operation_names);
  for (std::size_t first = 0; first <= names.size();) {
    const std::size_t end = std::min(names.find(',', first), names.size());
    const std::string_view name = names.substr(first, end - first);
    std::size_t found = 0;
    for (std::size_t which = 0; which < known; ++which) {
      if (name != "all" && name != bench::device_operation_names[which]) continue;
      to.table.operations.push_back(static_cast<bench::device_operation>(which));
      ++found;
    }
    if (found == 0) refuse("--op", name);
    first = end + 1;
  }
}
settings parsed(int argc, char** argv) {
  settings out;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view flag = argv[i];
    if (i + 1 == argc) refuse(flag, "without a value");
    const std::string_view value = argv[i + 1];
    if (flag == "--ranks")
      out.ranks = static_cast<int>(number(flag, value));
    else if (flag == "--op")
      choose_operations(out, value);
    else if (flag == "--min")
      out.table.least = number(flag, value);
    else if (flag == "--max")
      out.table.most = number(flag, value);
    else if (flag == "--factor")
      out.table.factor = number(flag, value);
    else if (flag == "--iters")
      out.table.calls = number(flag, value);
    else if (flag == "--warmup")
      out.table.warmup = number(flag, value);
    else if (flag == "--overlap")
      out.overlap = number(flag, value);
    else if (flag == "--sums" && (value == "any" || value == "fixed_order"))
      out.sums = value == "any" ? belay::nccl::sums::any : belay::nccl::sums::fixed_order;
    else
      refuse(flag, value);
  }
  if (out.table.factor < 2) refuse("--factor", "1");
  return out;
}

template <belay::nccl::sums Sums>
std::uint64_t measure(const settings& what, belay::cuda::runtime_api& api) {
  const belay::nccl::runtime_nccl nccl;
  const int ranks = what.ranks > 0 ? what.ranks : belay::cuda::device_count(api);
  using world_type = belay::nccl::world<belay::cuda::runtime_api, belay::nccl::runtime_nccl, belay::host::world, Sums>;
  world_type world(api, nccl, belay::host::world(ranks), {.ranks = {.workspace_bytes = std::size_t{64} << 20}});
  std::printf("# belay over NCCL, %d ranks, sums %s\n", ranks,
              Sums == belay::nccl::sums::any ? "as NCCL adds them" : "in rank order");
  std::uint64_t wrong = 0;
  world.run([&](auto& rank) {
    const std::uint64_t mine = bench::measure_table(rank, what.table, [](const std::string& line) {
      std::printf("%s\n", line.c_str());
      std::fflush(stdout);
    });
    if (what.overlap > 0) {
      const bench::overlap got = bench::measure_overlap(rank, what.table.most, what.overlap, what.table.calls);
      if (rank.number() == 0) std::printf("%s\n", got.text().c_str());
    }
    if (rank.number() == 0) wrong = mine;
  });
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const settings what = parsed(argc, argv);
    belay::cuda::runtime_api api;
    const std::uint64_t wrong = what.sums == belay::nccl::sums::any
                                    ? measure<belay::nccl::sums::any>(what, api)
                                    : measure<belay::nccl::sums::fixed_order>(what, api);
    std::printf("# %llu elements are wrong\n", static_cast<unsigned long long>(wrong));
    return wrong > 0 ? 1 : 0;
  } catch (const belay::input_error& problem) {
    std::fprintf(stderr, "%s\n", problem.what());
    return 2;
  } catch (const belay::backend_error& problem) {
    std::fprintf(stderr, "%s\n", problem.what());
    return 4;
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "%s\n", problem.what());
    return 1;
  }
}
