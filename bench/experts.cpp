// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// An expert exchange beside the memory and beside MPI: two ranks as processes, one on each core, 4,096 tokens a rank of
// 2,048 floats, top 8 of 64 experts. Dispatch, combine, backward and finish are timed beside a copy of as many rows by
// both ranks at the same time, around the caches, and beside the usual way: permute, exchange, reorder, with our
// all_to_all_v and, where MPI is found, with MPI_Alltoallv in the same processes. All in turn on rows that were written
// just before, medians; what comes out is compared. Exit code 1 where one misses its limit.
#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "belay/backend/host/processes.hpp"
#include "belay/backend/host/world.hpp"
#include "belay/belay.hpp"
#include "belay/kernel/non_temporal.hpp"
#include "experts/usual_way.hpp"
#include "support/mpirun.hpp"

namespace {

enum timed_part : std::size_t {
  copy,
  dispatch,
  combine,
  backward,
  finish,
  usual_there,
  usual_back,
  mpi_there,
  mpi_back,
  parts
};

// Times the slower of both ranks; in a rehearsal nothing.
template <class Group>
class stopwatch {
 public:
  explicit stopwatch(const Group& ranks) : ranks_(&ranks) {}
  void begin() {
    ranks_->barrier();
    begun_ = std::chrono::steady_clock::now();
  }
  void end(timed_part which) {
    std::array<double, 1> took{std::chrono::duration<double>(std::chrono::steady_clock::now() - begun_).count()};
    ranks_->all_reduce(std::span<double>(took), belay::maximum);
    samples_[which].push_back(took[0]);
  }
  template <class Work>
  void time(timed_part which, Work&& work) {
    begin();
    work();
    end(which);
  }
  [[nodiscard]] double median(timed_part which) {
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

// Of the bits and where they are.
std::uint64_t checksum(std::span<const float> values) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) sum += std::bit_cast<std::uint32_t>(values[i]) * (2 * i + 1);
  return sum;
}

// What an exchange was given and what came out.
struct seen {
  std::vector<std::int32_t> choices;
  std::vector<float> weights;
  std::uint64_t rows = 0, y = 0;
};

// A layer of nothing but the exchange: experts put out what they get.
template <class Exchange, class Watch>
struct there_and_back {
  struct residue {
    belay::view<float, 2> out;
    belay::merged<float> tokens;
  };
  Exchange& exchange;
  Watch& watch;
  belay::view<const float, 2> logits;
  std::size_t k;
  seen& found;

  residue forward(auto& frame, belay::view<const float, 2> x) {
    const auto routed = belay::route<float>(frame, logits, k);
    const auto y = belay::keep<float>(frame, {x.extent(0), x.extent(1)});
    watch.begin();
    auto sent = exchange.dispatch(frame, x, routed);
    watch.end(dispatch);
    frame.run(
        [routed, from = sent.rows(), to = sent.outputs(), ends = sent.offsets(), hidden = x.extent(1), note = &found] {
          note->choices.assign(routed.choices.data(), routed.choices.data() + routed.choices.size());
          note->weights.assign(routed.weights.data(), routed.weights.data() + routed.weights.size());
          note->rows = checksum({from.data(), ends.back() * hidden});
          std::memcpy(to.data(), from.data(), ends.back() * hidden * sizeof(float));
        });
    watch.begin();
    residue out{y, std::move(sent).combine(frame, y)};
    watch.end(combine);
    frame.run([y, note = &found] { note->y = checksum({y.data(), y.size()}); });
    return out;
  }
  void backward(auto& frame, residue&& r, belay::view<const float, 2> dy, belay::view<float, 2> dx) {
    const auto dweights = belay::scratch<float>(frame, {dy.extent(0), k});
    watch.begin();
    auto back = std::move(r.tokens).backward(frame, dy, dweights);
    watch.end(timed_part::backward);
    frame.run([from = back.output_gradients(), to = back.row_gradients(), ends = back.offsets(),
               hidden = dy.extent(1)] { std::memcpy(to.data(), from.data(), ends.back() * hidden * sizeof(float)); });
    watch.begin();
    std::move(back).finish(frame, dx);
    watch.end(finish);
  }
};

// The usual way there and back, timed, on what the exchange was given.
template <class Watch, class Transport>
void measure_usual_way(bench::usual_way& rows, Transport& ranks, Watch& watch, timed_part there, timed_part back,
                       const seen& given, std::span<const float> x, std::span<float> y) {
  watch.time(there, [&] { rows.dispatch(ranks, given.choices.data(), x.data()); });
  const std::uint64_t came = checksum(rows.rows());
  watch.time(back, [&] { rows.combine(ranks, given.choices.data(), given.weights.data(), y.data()); });
  if (came != given.rows || checksum(y) != given.y)
    throw belay::error("the usual way moves other rows than the exchange", belay::where::current());
}

template <class Watch>
bool print(Watch& watch, const bench::expert_sizes& of) {
  const double limit = watch.median(copy), there = watch.median(dispatch), back = watch.median(combine);
  const double gradients = watch.median(timed_part::backward) + watch.median(finish);
  std::printf("%zu tokens a rank of %zu floats, top %zu of %zu experts: copy of the rows %.1f ms\n", of.tokens,
              of.hidden, of.k, of.experts, 1e3 * limit);
  std::printf("experts: dispatch %.1f ms, %.2f of the copy's speed (limit 0.95, goal 1.10)\n", 1e3 * there,
              limit / there);
  std::printf("experts: combine %.1f ms, %.2f of the copy's speed (limit 0.95, goal 1.10)\n", 1e3 * back, limit / back);
  std::printf("experts: backward and finish %.1f ms, %.2f times the copy (limit 2.4)\n", 1e3 * gradients,
              gradients / limit);
  const auto usual = [&](const char* what, timed_part first, timed_part second) {
    std::printf(
        "permute, %s and reorder %.1f ms, %.2f times our dispatch; reorder, %s and sum %.1f ms, %.2f times our "
        "combine; the same bits\n",
        what, 1e3 * watch.median(first), watch.median(first) / there, what, 1e3 * watch.median(second),
        watch.median(second) / back);
  };
  usual("our all_to_all_v", usual_there, usual_back);
  if (bench::under_mpirun()) usual("MPI_Alltoallv", mpi_there, mpi_back);
  std::fflush(stdout);
  return limit / there >= 0.95 && limit / back >= 0.95 && gradients / limit <= 2.4;
}

}  // namespace

int main(int, char** argv) {
  constexpr int ranks_wanted = 2;
  if (bench::mpi_available && !bench::under_mpirun()) {
    const bool enough = std::thread::hardware_concurrency() >= ranks_wanted;
    bench::become_mpirun(ranks_wanted, enough ? bench::cores::one_each : bench::cores::fewer_than_ranks, argv);
    std::printf("# without MPI\n");
  }
  const bool quick = std::getenv("BELAY_BENCH_SMOKE") != nullptr;
  bench::expert_sizes of;
  if (quick) of = {256, 256, 4, 16};
  const std::size_t rounds = quick ? 3 : 11;
  const auto body = [&](auto& rank, auto& run) {
    using group = typename std::remove_reference_t<decltype(rank)>::group_type;
    belay::mesh mesh{rank, {.expert = ranks_wanted}};
    const group& ranks = mesh.expert();
    belay::expert_exchange<float> exchange{run, ranks, {of.experts, of.k, of.hidden, of.capacity()}};
    stopwatch<group> watch(ranks);
    const auto x = run.template lease<float>(belay::tier::host, of.tokens * of.hidden, "tokens");
    const auto sums = run.template lease<float>(belay::tier::host, of.tokens * of.hidden, "sums");
    const auto logits = run.template lease<float>(belay::tier::host, of.tokens * of.experts, "logits");
    std::vector<float> from, to;
    std::optional<bench::usual_way> usual_way;
    bench::group_transport<group> our_rows(ranks, of.hidden);
#if defined(BELAY_BENCH_MPI)
    std::optional<bench::mpi_transport> mpi_rows;
    if (!run.rehearsing() && bench::under_mpirun()) mpi_rows.emplace(of.hidden);
#endif
    std::size_t round = 0;
    const auto freshen = [&] {
      for (std::size_t i = 0; i < x.size(); ++i)
        x[i] = static_cast<float>((i * 2654435761U + round * 31 + static_cast<std::size_t>(ranks.rank()) * 97) % 509) /
               256;
    };
    if (!run.rehearsing()) {
      std::mt19937 random(7U + static_cast<unsigned>(rank.number()));
      for (float& value : logits) value = static_cast<float>(random() % 4093) / 512;
      from.assign(of.rows() * of.hidden, 1);
      to.assign(of.rows() * of.hidden, 2);
      usual_way.emplace(of, ranks_wanted);
    }
    seen found;
    there_and_back<decltype(exchange), stopwatch<group>> layer{
        exchange, watch, {logits.data(), {of.tokens, of.experts}}, of.k, found};
    for (auto number : run.steps(rounds + 2)) {
      round = number;
      if (!run.rehearsing()) freshen();
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
      freshen();
      measure_usual_way(*usual_way, our_rows, watch, usual_there, usual_back, found, x, sums);
#if defined(BELAY_BENCH_MPI)
      freshen();
      if (mpi_rows) measure_usual_way(*usual_way, *mpi_rows, watch, mpi_there, mpi_back, found, x, sums);
#endif
      if (number == 2) watch.forget();  // warm
    }
    if (run.rehearsing() || rank.number() != 0) return;
    if (!print(watch, of) && !quick) throw belay::error("a limit is missed", belay::where::current());
  };
  belay::host::world_options how;
  how.pin = belay::host::pinning::one_core_each;
  try {
    if (bench::under_mpirun()) {
      const bench::mpi_session session(true);
      belay::launch(belay::host::world::from_env(how), body);
    } else {
      belay::launch(belay::host::processes{ranks_wanted, how}, body);
    }
  } catch (const belay::error& missed) {
    std::fprintf(stderr, "%s\n", missed.what());
    return 1;
  }
  return 0;
}
