// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// An expert exchange beside the memory: two ranks as processes, one on each core, 4,096 tokens a rank of 2,048 floats,
// top 8 of 64 experts. Dispatch, combine, backward and finish are timed beside a copy of as many rows by both ranks at
// the same time, around the caches, and beside the usual way: permute, all_to_all_v, reorder. All in turn, medians.
// Exit code 1 where one misses its limit.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "belay/backend/host/processes.hpp"
#include "belay/belay.hpp"
#include "belay/kernel/non_temporal.hpp"

namespace {

struct sizes {
  std::size_t tokens = 4096, hidden = 2048, k = 8, experts = 64;
  [[nodiscard]] std::size_t rows() const { return tokens * k; }
};

enum part : std::size_t { copy, dispatch, combine, backward, finish, usual, parts };

// Times the slower of both ranks; in a rehearsal nothing.
template <class Group>
class stopwatch {
 public:
  explicit stopwatch(const Group& ranks) : ranks_(&ranks) {}
  void begin() {
    ranks_->barrier();
    begun_ = std::chrono::steady_clock::now();
  }
  void end(part which) {
    std::array<double, 1> took{std::chrono::duration<double>(std::chrono::steady_clock::now() - begun_).count()};
    ranks_->all_reduce(std::span<double>(took), belay::maximum);
    samples_[which].push_back(took[0]);
  }
  [[nodiscard]] double median(part which) {
    auto& all = samples_[which];
    std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2), all.end());
    return all[all.size() / 2];
  }
  void forget() {
    for (auto& each : samples_) each.clear();
  }

 private:
  const Group* ranks_;
  std::chrono::steady_clock::time_point begun_;
  std::array<std::vector<double>, parts> samples_;
};

// A layer of nothing but the exchange: experts put out what they get.
template <class Exchange, class Watch>
struct there_and_back {
  struct residue {
    belay::view<float, 2> out;
    belay::merged<Exchange> tokens;
  };
  Exchange& exchange;
  Watch& watch;
  belay::view<const float, 2> logits;
  std::size_t k;

  residue forward(auto& frame, belay::view<const float, 2> x) {
    const auto routed = belay::route<float>(frame, logits, k);
    const auto y = belay::keep<float>(frame, {x.extent(0), x.extent(1)});
    watch.begin();
    auto sent = exchange.dispatch(frame, x, routed);
    watch.end(dispatch);
    frame.run([from = sent.rows(), to = sent.outputs(), ends = sent.offsets(), hidden = x.extent(1)] {
      std::memcpy(to.data(), from.data(), ends.back() * hidden * sizeof(float));
    });
    watch.begin();
    residue out{y, std::move(sent).combine(frame, y)};
    watch.end(combine);
    return out;
  }
  void backward(auto& frame, residue&& r, belay::view<const float, 2> dy, belay::view<float, 2> dx) {
    const auto dweights = belay::scratch<float>(frame, {dy.extent(0), k});
    watch.begin();
    auto back = std::move(r.tokens).backward(frame, dy, dweights);
    watch.end(part::backward);
    frame.run([from = back.output_gradients(), to = back.row_gradients(), ends = back.offsets(),
               hidden = dy.extent(1)] { std::memcpy(to.data(), from.data(), ends.back() * hidden * sizeof(float)); });
    watch.begin();
    std::move(back).finish(frame, dx);
    watch.end(finish);
  }
};

// The usual way: rows are put in the order of their experts, exchanged, and put in order once more.
class permuted {
 public:
  permuted(const sizes& of, const std::vector<std::int32_t>& choices)
      : of_(of),
        choices_(&choices),
        sent_(of.rows() * of.hidden),
        received_(2 * of.rows() * of.hidden),
        ordered_(received_.size()) {}

  template <class Group>
  void dispatch(const Group& ranks, const float* x) {
    std::vector<std::int64_t> counts(of_.experts), all(2 * of_.experts);
    for (std::int32_t e : *choices_) ++counts[static_cast<std::size_t>(e)];
    ranks.all_gather(std::span<const std::int64_t>(counts), std::span<std::int64_t>(all));
    std::vector<std::size_t> next(of_.experts);
    for (std::size_t e = 1; e < of_.experts; ++e) next[e] = next[e - 1] + static_cast<std::size_t>(counts[e - 1]);
    for (std::size_t i = 0; i < choices_->size(); ++i)
      std::memcpy(&sent_[next[static_cast<std::size_t>((*choices_)[i])]++ * of_.hidden], x + i / of_.k * of_.hidden,
                  of_.hidden * sizeof(float));
    const std::size_t local = of_.experts / 2, first = static_cast<std::size_t>(ranks.rank()) * local;
    std::array<std::size_t, 2> out{}, in{};
    for (std::size_t e = 0; e < of_.experts; ++e) out[e / local] += static_cast<std::size_t>(counts[e]) * of_.hidden;
    for (std::size_t q = 0; q < 2; ++q)
      for (std::size_t e = 0; e < local; ++e)
        in[q] += static_cast<std::size_t>(all[q * of_.experts + first + e]) * of_.hidden;
    const std::span<float> received(received_.data(), in[0] + in[1]);
    ranks.all_to_all_v(std::span<const float>(sent_), out, received, in);
    std::array<std::size_t, 2> from{0, in[0]};
    std::size_t to = 0;
    for (std::size_t e = 0; e < local; ++e) {
      for (std::size_t q = 0; q < 2; ++q) {
        const std::size_t count = static_cast<std::size_t>(all[q * of_.experts + first + e]) * of_.hidden;
        std::memcpy(&ordered_[to], &received_[from[q]], count * sizeof(float));
        to += count;
        from[q] += count;
      }
    }
  }

 private:
  sizes of_;
  const std::vector<std::int32_t>* choices_;
  std::vector<float> sent_, received_, ordered_;
};

}  // namespace

int main() {
  const bool quick = std::getenv("BELAY_BENCH_SMOKE") != nullptr;
  sizes of;
  if (quick) of = {256, 256, 4, 16};
  const std::size_t rounds = quick ? 3 : 11;
  bool enough = true;
  const auto body = [&](auto& rank, auto& run) {
    using group = typename std::remove_reference_t<decltype(rank)>::group_type;
    belay::mesh mesh{rank, {.expert = 2}};
    const group& ranks = mesh.expert();
    belay::expert_exchange<float, group> exchange{run, ranks, {of.experts, of.k, of.hidden, of.rows() * 5 / 4}};
    stopwatch<group> watch(ranks);
    const auto x = run.template lease<float>(belay::tier::host, of.tokens * of.hidden, "tokens");
    const auto logits = run.template lease<float>(belay::tier::host, of.tokens * of.experts, "logits");
    std::vector<float> from, to;
    std::vector<std::int32_t> choices;
    std::optional<permuted> usual_way;
    if (!run.rehearsing()) {
      std::mt19937 random(7U + static_cast<unsigned>(rank.number()));
      for (float& value : x) value = static_cast<float>(random() % 509) / 256;
      for (float& value : logits) value = static_cast<float>(random() % 4093) / 512;
      from.assign(of.rows() * of.hidden, 1);
      to.assign(of.rows() * of.hidden, 2);
      std::vector<std::int32_t> order(of.experts);
      for (std::size_t t = 0; t < of.tokens; ++t) {
        for (std::size_t e = 0; e < of.experts; ++e) order[e] = static_cast<std::int32_t>(e);
        std::shuffle(order.begin(), order.end(), random);
        choices.insert(choices.end(), order.begin(), order.begin() + static_cast<std::ptrdiff_t>(of.k));
      }
      usual_way.emplace(of, choices);
    }
    there_and_back<decltype(exchange), stopwatch<group>> layer{
        exchange, watch, {logits.data(), {of.tokens, of.experts}}, of.k};
    for (auto number : run.steps(rounds + 2)) {
      belay::step step{run.engine(), exchange};
      auto y = belay::forward(step, layer, belay::view<const float, 2>{x.data(), {of.tokens, of.hidden}});
      static_cast<void>(std::move(y).backward(belay::view<const float, 2>{x.data(), {of.tokens, of.hidden}}));
      auto outcome = std::move(step).commit(mesh, belay::samples{1});
      if (auto* ok = belay::committed(outcome)) std::move(*ok).discard();
      if (run.rehearsing()) continue;
      watch.begin();
      belay::kernel::copy_non_temporal(to.data(), from.data(), from.size() * sizeof(float));
      belay::kernel::finish_non_temporal();
      ranks.barrier();
      watch.end(copy);
      watch.begin();
      usual_way->dispatch(ranks, x.data());
      ranks.barrier();
      watch.end(usual);
      if (number == 2) watch.forget();  // warm
    }
    if (run.rehearsing()) return;
    const double limit = watch.median(copy), there = watch.median(dispatch), back = watch.median(combine);
    const double gradients = watch.median(part::backward) + watch.median(finish);
    if (rank.number() != 0) return;
    std::printf("%zu tokens a rank of %zu floats, top %zu of %zu experts: copy of the rows %.1f ms\n", of.tokens,
                of.hidden, of.k, of.experts, 1e3 * limit);
    std::printf("experts: dispatch %.1f ms, %.2f of the copy's speed (limit 0.95, goal 1.10)\n", 1e3 * there,
                limit / there);
    std::printf("experts: combine %.1f ms, %.2f of the copy's speed (limit 0.95, goal 1.10)\n", 1e3 * back,
                limit / back);
    std::printf("experts: backward and finish %.1f ms, %.2f times the copy (limit 2.4)\n", 1e3 * gradients,
                gradients / limit);
    std::printf("permute, all_to_all_v and reorder %.1f ms, %.2f times the copy\n", 1e3 * watch.median(usual),
                watch.median(usual) / limit);
    std::fflush(stdout);
    enough = limit / there >= 0.95 && limit / back >= 0.95 && gradients / limit <= 2.4;
    if (!enough && !quick) throw belay::error("a limit is missed", belay::where::current());
  };
  try {
    belay::launch(belay::host::processes{2, {.pin = belay::host::pinning::one_core_each}}, body);
  } catch (const belay::error& missed) {
    std::fprintf(stderr, "%s\n", missed.what());
    return 1;
  }
  return 0;
}
