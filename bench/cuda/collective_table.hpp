// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// The table of nccl-tests for groups whose memory is a device's: time, bandwidth of the algorithm and of the bus, and
// how many elements are wrong, out of place and in place. Any rank serves that has a device: of NCCL, of ranks that
// share one, and of fakes.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/comm.hpp"
#include "belay/core/config.hpp"
#include "belay/core/operand.hpp"
#include "belay/device/tier.hpp"
#include "belay/kernel/elementwise.hpp"
#include "cuda/figures.hpp"

namespace bench {

enum class device_operation : std::uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  all_to_all,
  broadcast,
  reduce,
  send_recv
};
inline constexpr const char* device_operation_names[] = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all",
                                                         "broadcast",  "reduce",         "send_recv"};

/// Whether the output is where the input is.
enum class operand_place : std::uint8_t { apart, in_place };

struct table_options {
  std::vector<device_operation> operations{device_operation::all_reduce};
  std::size_t least = 8, most = std::size_t{128} << 20, factor = 4;  // bytes
  std::size_t calls = 20, warmup = 5;
};

/// Of element i of rank q. Sums of it are exact in any order.
BELAY_HD inline float bench_value(std::size_t q, std::size_t i) { return static_cast<float>(1 + (i * 7 + q * 3) % 5); }
struct bench_input {
  float* x;
  std::size_t rank;
  BELAY_HD void operator()(std::size_t i) const { x[i] = bench_value(rank, i); }
};
/// How many of a chunk are not what the operation gives.
struct bench_wrong {
  const float* x;
  std::size_t elements, chunk, share, rank, ranks;
  device_operation what;
  std::uint32_t* told;

  BELAY_HD void operator()(std::size_t c) const {
    std::uint32_t wrong = 0;
    for (std::size_t i = c * chunk; i < (c + 1) * chunk && i < elements; ++i) wrong += x[i] != expected(i) ? 1U : 0U;
    told[c] = wrong;
  }
  BELAY_HD float expected(std::size_t i) const {
    switch (what) {
      case device_operation::all_gather: return bench_value(i / share, i % share);
      case device_operation::all_to_all: return bench_value(i / share, rank * share + i % share);
      case device_operation::broadcast: return bench_value(0, i);
      case device_operation::send_recv: return bench_value((rank + ranks - 1) % ranks, i);
      default: break;
    }
    const std::size_t place = what == device_operation::reduce_scatter ? rank * share + i : i;
    float sum = 0;
    for (std::size_t q = 0; q < ranks; ++q) sum += bench_value(q, place);
    return sum;
  }
};

/// One operation over buffers of a rank's device.
template <class Rank>
class device_operations {
 public:
  device_operations(Rank& rank, std::size_t most)
      : rank_(&rank),
        group_(rank.world()),
        n_(static_cast<std::size_t>(group_.size())),
        me_(static_cast<std::size_t>(group_.rank())),
        room_((most / sizeof(float) + n_) / n_ * n_),
        memory_(rank.make_memory(belay::tier::device, 2 * room_ * sizeof(float))),
        kit_(rank.make_kit()) {}

  /// Elements as nccl-tests counts them: those that each rank names, of all together where ranks have shares.
  [[nodiscard]] std::size_t count_of(device_operation what, std::size_t bytes) const noexcept {
    const std::size_t elements = bytes / sizeof(float);
    return shares(what) ? elements / n_ : elements;
  }
  [[nodiscard]] std::size_t bytes_of(device_operation what, std::size_t count) const noexcept {
    return count * sizeof(float) * (shares(what) ? n_ : 1);
  }
  /// Bytes that the bus moves for a byte that the algorithm does.
  [[nodiscard]] double bus_factor(device_operation what) const noexcept {
    const double n = static_cast<double>(n_);
    if (what == device_operation::all_reduce) return 2 * (n - 1) / n;
    return shares(what) ? (n - 1) / n : 1;
  }

  /// The result of one place: seconds a call as the mean over ranks, and elements that are wrong on all of them.
  struct measured {
    double seconds = 0;
    std::uint64_t wrong = 0;
  };
  /// Nothing where Belay does not offer that.
  [[nodiscard]] std::optional<measured> measure(device_operation what, std::size_t count, operand_place where_to,
                                                const table_options& how) {
    if (!offered(what, where_to)) return {};
    fill();
    std::span<const float> out = start_and_wait(what, count, where_to);
    measured got{0, wrong(what, count, out)};
    fill();
    for (std::size_t i = 0; i < how.warmup; ++i) static_cast<void>(start_and_wait(what, count, where_to));
    group_.barrier();
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < how.calls; ++i) start(what, count, where_to).then(kit_.stream());
    kit_.stream().synchronize();
    got.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() /
                  static_cast<double>(how.calls);
    double both[] = {got.seconds, static_cast<double>(got.wrong)};
    belay::control_of(group_).all_reduce(std::span<double>(both), belay::sum);
    return measured{both[0] / static_cast<double>(n_), static_cast<std::uint64_t>(both[1])};
  }

 private:
  [[nodiscard]] static bool shares(device_operation what) noexcept {
    return what == device_operation::reduce_scatter || what == device_operation::all_gather ||
           what == device_operation::all_to_all;
  }
  [[nodiscard]] static bool in_place(operand_place where_to) noexcept { return where_to == operand_place::in_place; }
  // Those of one buffer alone are started in place.
  [[nodiscard]] static bool offered(device_operation what, operand_place where_to) noexcept {
    return in_place(where_to) ? what != device_operation::send_recv
                              : shares(what) || what == device_operation::send_recv;
  }
  [[nodiscard]] float* first() const noexcept { return reinterpret_cast<float*>(memory_.data()); }
  [[nodiscard]] float* second() const noexcept { return first() + room_; }

  void fill() {
    kit_.each(room_, bench_input{first(), me_});
    kit_.each(room_, bench_input{second(), me_});
    kit_.stream().synchronize();
  }
  // Of its result.
  [[nodiscard]] std::span<const float> start_and_wait(device_operation what, std::size_t count,
                                                      operand_place where_to) {
    const std::size_t all = shares(what) ? count * n_ : count;
    float* const to = in_place(where_to) ? first() : second();
    // An all_gather in place has its input where it is in the output.
    if (in_place(where_to) && what == device_operation::all_gather) {
      kit_.each(count, bench_input{to + me_ * count, me_});
      kit_.stream().synchronize();
    }
    start(what, count, where_to).wait();
    if (what == device_operation::reduce_scatter) return {in_place(where_to) ? to + me_ * count : to, count};
    if (what == device_operation::reduce && me_ != 0) return {};
    return {to, all};
  }
  [[nodiscard]] belay::pending start(device_operation what, std::size_t count, operand_place where_to) {
    float* const to = in_place(where_to) ? first() : second();
    const std::span<const float> in(first(), count), all_in(first(), count * (shares(what) ? n_ : 1));
    const std::span<float> out(to, count), all_out(to, all_in.size());
    const std::size_t own = me_ * count;
    switch (what) {
      case device_operation::all_reduce: return group_.start_all_reduce(out, belay::sum);
      case device_operation::reduce_scatter:
        return group_.start_reduce_scatter(all_in, in_place(where_to) ? all_out.subspan(own, count) : out, belay::sum);
      case device_operation::all_gather:
        return group_.start_all_gather(in_place(where_to) ? std::span<const float>(all_out.subspan(own, count)) : in,
                                       all_out);
      case device_operation::all_to_all: return group_.start_all_to_all(all_in, all_out);
      case device_operation::broadcast: return group_.start_broadcast(out, 0);
      case device_operation::reduce: return group_.start_reduce(out, belay::sum, 0);
      case device_operation::send_recv: break;
    }
    const int next = static_cast<int>((me_ + 1) % n_), previous = static_cast<int>((me_ + n_ - 1) % n_);
    transfers_[0] = belay::p2p::send(next, in);
    transfers_[1] = belay::p2p::receive(previous, out);
    return group_.start_exchange(transfers_);
  }
  [[nodiscard]] std::uint64_t wrong(device_operation what, std::size_t count, std::span<const float> out) {
    const std::size_t most = group_.scratch().size() / sizeof(std::uint32_t);
    const std::size_t chunk = std::max<std::size_t>((out.size() + most - 1) / most, 1);
    const std::size_t chunks = (out.size() + chunk - 1) / chunk;
    if (chunks == 0) return 0;
    auto* const told = reinterpret_cast<std::uint32_t*>(group_.scratch().data());
    group_.each(chunks, bench_wrong{out.data(), out.size(), chunk, count, me_, n_, what, told});
    std::vector<std::uint32_t> of_chunks(chunks);
    group_.fetch(of_chunks.data(), told, chunks * sizeof(std::uint32_t));
    std::uint64_t all = 0;
    for (const std::uint32_t each : of_chunks) all += each;
    return all;
  }

  Rank* rank_;
  typename Rank::group_type group_;
  std::size_t n_, me_, room_;
  typename Rank::memory_type memory_;
  typename Rank::kit_type kit_;
  std::array<belay::p2p, 2> transfers_{};
};

/// Seconds of an all_reduce, of products, and of both at once: as the mean over ranks.
struct overlap {
  double communication = 0, computation = 0, together = 0;
  std::size_t bytes = 0, products = 0;

  [[nodiscard]] std::string text() const {
    std::array<char, 200> out{};
    std::snprintf(out.data(), out.size(),
                  "# overlap: all_reduce of %zu bytes %.2f us, %zu products %.2f us, together %.2f us: %.3f of the "
                  "shorter is hidden",
                  bytes, communication * 1e6, products, computation * 1e6, together * 1e6,
                  hidden_share(communication, computation, together));
    return out.data();
  }
};
/// An all_reduce of `bytes` beside products of fp32 of `n` x `n`, as many as take about as long.
template <class Rank>
overlap measure_overlap(Rank& rank, std::size_t bytes, std::size_t n, std::size_t rounds) {
  const auto& group = rank.world();
  const std::size_t count = bytes / sizeof(float);
  auto kit = rank.make_kit();
  const auto memory = rank.make_memory(belay::tier::device, (count + 3 * n * n) * sizeof(float));
  const auto workspace = rank.make_memory(belay::tier::device, kit.workspace_bytes());
  kit.use_workspace({workspace.data(), workspace.size_bytes()});
  auto* const x = reinterpret_cast<float*>(memory.data());
  kit.each(count + 3 * n * n, belay::kernel::fill<float>{x, 0.0F});
  const belay::operand<float> to{x + count, n, n, n};
  const belay::operand<const float> left{to.data + n * n, n, n, n}, right{to.data + 2 * n * n, n, n, n};
  const auto multiply = [&] { kit.product(belay::product_call<float>{to, left, right}); };
  const auto sum = [&] { return group.start_all_reduce(std::span(x, count), belay::sum); };
  const auto timed = [&](const auto& work) {
    kit.stream().synchronize();
    group.barrier();
    const auto begin = std::chrono::steady_clock::now();
    work();
    kit.stream().synchronize();
    double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    belay::control_of(group).all_reduce(std::span<double>(&took, 1), belay::sum);
    return took / static_cast<double>(rank.size());
  };
  overlap out{.bytes = bytes, .products = 1};
  std::vector<double> sums, products, both;
  for (std::size_t r = 0; r <= rounds; ++r) {
    sums.push_back(timed([&] { sum().then(kit.stream()); }));
    products.push_back(timed([&] {
      for (std::size_t i = 0; i < out.products; ++i) multiply();
    }));
    both.push_back(timed([&] {
      belay::pending started = sum();
      for (std::size_t i = 0; i < out.products; ++i) multiply();
      std::move(started).then(kit.stream());
    }));
    if (r > 0) continue;  // warm: all ranks have the same means
    const double ratio = products.back() > 0 ? sums.back() / products.back() : 1;
    out.products = static_cast<std::size_t>(std::clamp(ratio, 1.0, 1000.0));
    sums.clear(), products.clear(), both.clear();
  }
  out.communication = median(sums), out.computation = median(products), out.together = median(both);
  return out;
}

/// The lines of all sizes, by `print(line)` on rank 0; how many elements are wrong.
template <class Rank, class Print>
std::uint64_t measure_table(Rank& rank, const table_options& how, const Print& print) {
  device_operations<Rank> operations(rank, how.most);
  const auto line = [&](const std::string& text) {
    if (rank.number() == 0) print(text);
  };
  std::array<char, 256> text{};
  line("#                                                              out-of-place                       in-place");
  line(
      "#       size         count    type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  "
      "#wrong");
  line("#        (B)    (elements)                             (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)");
  std::uint64_t wrong = 0;
  for (const device_operation what : how.operations) {
    line(std::string("# ") + device_operation_names[static_cast<std::size_t>(what)]);
    const bool reduces = what == device_operation::all_reduce || what == device_operation::reduce_scatter ||
                         what == device_operation::reduce;
    const bool rooted = what == device_operation::reduce || what == device_operation::broadcast;
    for (std::size_t bytes = how.least; bytes <= how.most; bytes *= how.factor) {
      const std::size_t count = operations.count_of(what, bytes), moved = operations.bytes_of(what, count);
      if (count == 0) continue;
      std::snprintf(text.data(), text.size(), "%12zu  %12zu   float  %6s  %6s", moved, count, reduces ? "sum" : "none",
                    rooted ? "0" : "-1");
      std::string all = text.data();
      for (const operand_place place : {operand_place::apart, operand_place::in_place}) {
        const auto got = operations.measure(what, count, place, how);
        if (!got) {
          all += "      N/A     N/A     N/A     N/A";
          continue;
        }
        const double speed = static_cast<double>(moved) / got->seconds / 1e9;
        std::snprintf(text.data(), text.size(), " %8.2f %7.2f %7.2f  %6llu", got->seconds * 1e6, speed,
                      speed * operations.bus_factor(what), static_cast<unsigned long long>(got->wrong));
        all += text.data();
        wrong += got->wrong;
      }
      line(all);
    }
  }
  return wrong;
}

}  // namespace bench
