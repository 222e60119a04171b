// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What started communications hide behind kernels: two ranks as processes, one on each core, whose streams are queued.
// A step is sixteen products, after each of which 1 MiB is reduced over the ranks, or sent to the other one. It is run
// in turn (a product, then its communication, which the host waits for) and overlapped (communications begin after an
// event, and the host waits at the end). On a core of its own a rank can hide what its communication waits, not what it
// copies and adds. Exit code 1 below the limit.
#include <time.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "belay/backend/host/processes.hpp"
#include "belay/belay.hpp"

namespace {

constexpr double limit = 0.9;
constexpr std::size_t count = 16, elements = std::size_t{1} << 18;

using clock_type = std::chrono::steady_clock;
double seconds_since(clock_type::time_point begin) {
  return std::chrono::duration<double>(clock_type::now() - begin).count();
}
double processor_seconds() {
  timespec used{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}
double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

enum class what { reduction, transfer };
enum class how { products, communications, in_turn, overlapped };

class rank_work {
 public:
  /// Products are of matrices of `width` rows and columns.
  rank_work(const belay::host::group& group, what kind, std::size_t width)
      : group_(&group),
        kind_(kind),
        width_(width),
        kit_(belay::stream_settings{belay::stream_policy::queued}, group.rank()),
        a_(width * width, 0.5F),
        b_(width * width, 0.25F),
        c_(count * width * width),
        sent_(count * elements, 1.0F),
        received_(count * elements),
        pending_(count) {}

  void run(how order) {
    for (std::size_t i = 0; i < count; ++i) {
      if (order != how::communications) {
        const auto matrix = [this](auto* data) {
          return belay::operand<std::remove_pointer_t<decltype(data)>>{data, width_, width_, width_};
        };
        kit_.product<float>(matrix(c_.data() + i * width_ * width_), matrix(std::as_const(a_).data()),
                            matrix(std::as_const(b_).data()), 1, 0);
      }
      if (order == how::products) continue;
      if (order == how::overlapped) {
        pending_[i] = start(i, belay::after(kit_.stream().record()));
      } else {
        kit_.stream().synchronize();
        start(i, belay::where::current()).wait();
      }
    }
    belay::wait_all(pending_);
    kit_.stream().synchronize();
  }

 private:
  [[nodiscard]] belay::pending start(std::size_t i, const belay::start_order& order) {
    const std::span<float> values = std::span<float>(sent_).subspan(i * elements, elements);
    if (kind_ == what::reduction) return group_->start_all_reduce(values, belay::sum, order);
    const int peer = 1 - group_->rank();
    transfers_[i] = {belay::p2p::send(peer, values),
                     belay::p2p::receive(peer, std::span<float>(received_).subspan(i * elements, elements))};
    return group_->start_exchange(transfers_[i], order);
  }

  const belay::host::group* group_;
  what kind_;
  std::size_t width_;
  belay::host_kit<> kit_;
  std::vector<float> a_, b_, c_, sent_, received_;
  std::vector<belay::pending> pending_;
  std::array<std::array<belay::p2p, 2>, count> transfers_{};
};

struct figures {
  std::array<double, 4> seconds{};  // by `how`
  double processor = 0;             // of the communications
};

figures measure(const belay::host::group& group, what kind, std::size_t width, std::size_t rounds) {
  rank_work work(group, kind, width);
  std::array<std::vector<double>, 4> seconds;
  std::vector<double> processor;
  for (std::size_t round = 0; round < rounds + 2; ++round) {
    for (const how order : {how::products, how::communications, how::in_turn, how::overlapped}) {
      group.barrier();
      const double used = processor_seconds();
      const auto begin = clock_type::now();
      work.run(order);
      const double took = seconds_since(begin);
      if (round < 2) continue;  // warm
      seconds[static_cast<std::size_t>(order)].push_back(took);
      if (order == how::communications) processor.push_back(processor_seconds() - used);
    }
  }
  figures out;
  for (std::size_t i = 0; i < 4; ++i) out.seconds[i] = median(seconds[i]);
  out.processor = median(processor);
  return out;
}

// Nanoseconds of a queued piece of work, and of a place that two streams hand to each other.
std::array<double, 2> costs_of_a_queue() {
  belay::host_stream one({belay::stream_policy::queued}), other({belay::stream_policy::queued});
  const auto time = [](std::size_t times, const auto& work) {
    const auto begin = clock_type::now();
    for (std::size_t i = 0; i < times; ++i) work();
    return begin;
  };
  const auto queued = time(20'000, [&] { one.run([] {}); });
  one.synchronize();
  const double closure = seconds_since(queued) / 20'000;
  const auto handed = time(2'000, [&] {
    one.run([] {});
    other.wait(one.record());
    other.run([] {});
    one.wait(other.record());
  });
  one.synchronize();
  return {1e9 * closure, 1e9 * seconds_since(handed) / 4'000};
}

}  // namespace

int main() {
  const bool quick = std::getenv("BELAY_BENCH_SMOKE") != nullptr;
  const belay::host::processes world{2, {.pin = belay::host::pinning::one_core_each}};
  bool enough = true;
  for (const what kind : {what::reduction, what::transfer}) {
    const auto all = world.run(
        [&](belay::host::rank& self) { return measure(self.world(), kind, quick ? 32 : 320, quick ? 3 : 41); });
    const figures& one = all.front();
    const auto [products, communications, in_turn, overlapped] = one.seconds;
    // The core's own work cannot be hidden: products, and what the communications copy and add.
    const double could = in_turn - products - one.processor;
    const bool nothing = could < 0.02 * in_turn;
    const double hidden = nothing ? 1 : (in_turn - overlapped) / could;
    const char* const name = kind == what::reduction ? "16 reductions of 1 MiB" : "16 transfers of 1 MiB each way";
    std::printf(
        "%s: products %.2f ms, communications %.2f ms (%.2f of them on the core), in turn %.2f ms, overlapped %.2f "
        "ms\n",
        name, 1e3 * products, 1e3 * communications, 1e3 * one.processor, 1e3 * in_turn, 1e3 * overlapped);
    std::printf("overlap: %s hide %.2f of the %.2f ms that can be hidden%s (limit %.1f)\n", name, hidden, 1e3 * could,
                nothing ? ", too little to tell" : "", limit);
    enough = enough && hidden >= limit;
  }
  const auto [closure, hand_over] = costs_of_a_queue();
  std::printf("a queued piece of work costs %.0f ns, a hand-over from one stream to another %.0f ns\n", closure,
              hand_over);
  return enough || quick ? 0 : 1;
}
