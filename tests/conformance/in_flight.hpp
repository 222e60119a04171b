// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Faults while work is in flight: every rank has queued kernels, started operations after their events, and kernels
// after those; then one rank fails, and the streams of the others wait for it.
#pragma once

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "belay/device/host_stream.hpp"
#include "conformance/communicator_faults.hpp"

namespace conformance {

inline constexpr int started_count = 9;

/// Starts operation `which` with `n` elements a rank, as `how` says.
template <class Group>
belay::pending start(const Group& group, int which, std::size_t n, buffers& with, const belay::start_order& how) {
  const auto ranks = static_cast<std::size_t>(group.size());
  const auto in = std::span(with.in).first(n * ranks);
  const auto out = std::span(with.out).first(n * ranks);
  switch (which) {
    case 0: return group.start_barrier(how);
    case 1: return group.start_all_reduce(in, belay::sum, how);
    case 2: return group.start_reduce_scatter_v(in, with.counts, belay::sum, how);
    case 3: return group.start_all_gather_v(in, with.counts, how);
    case 4: return group.start_all_to_all_v(in, with.counts, out, with.counts, how);
    case 5: return group.start_broadcast(out, 0, how);
    case 6: return group.start_reduce(in, belay::average, 0, how);
    case 7: return group.start_all_gather(in.first(n), out, how);
    default:
      return group.start_composite(
          belay::operation::exchange,
          [in, &with](const auto& calls) {
            calls.all_reduce(in, belay::sum);
            calls.all_gather_v(in, with.counts);
          },
          how);
  }
}

// Not a template: of one that is made in templates alone Clang forgets the virtual functions.
inline std::shared_ptr<buffers> shared_buffers(int ranks, std::size_t n) { return std::make_shared<buffers>(ranks, n); }

/// Work of one rank on its streams. What is under way when the rank fails keeps the buffers.
class work_in_flight {
 public:
  template <class Rank>
  explicit work_in_flight(const Rank& rank)
      : with_{shared_buffers(rank.size(), 5), shared_buffers(rank.size(), 6)},
        compute_({belay::stream_policy::queued, nullptr, rank.watch()}, rank.number()) {}

  /// Queues `rounds` of a kernel, operation `which` with `n` elements a rank (5 or 6) after it, and a kernel after
  /// that. Where others have failed already, the start says how.
  template <class Group>
  void queue(const Group& group, int which, int rounds, std::size_t n = 5) {
    for (int round = 0; round < rounds && told_.fault == belay::comm_fault::revoked; ++round)
      told_ = failure_of([&] { queue_once(group, which, n, with_[n - 5]); });
  }
  /// Queues that, and what needs all ranks, as the last call of a broadcast or a reduce does not.
  template <class Group>
  void queue_to_the_end(const Group& group, int which) {
    queue(group, which, 1);
    if (which == 5 || which == 6) queue(group, 0, 1);
  }
  template <class Kernel>
  void run(const Kernel& kernel) {
    compute_.run(kernel);
  }
  /// How the streams have failed.
  [[nodiscard]] belay::comm_error::details failure() {
    if (told_.fault != belay::comm_fault::revoked) return told_;
    return failure_of([&] { compute_.synchronize(); });
  }

 private:
  template <class Group>
  void queue_once(const Group& group, int which, std::size_t n, const std::shared_ptr<buffers>& with) {
    float* const x = with->in.data();
    compute_.run([x] { *x += 1; });
    auto under_way = start(group, which, n, *with, belay::start_order(belay::after(compute_.record())).keeping(with));
    std::move(under_way).then(compute_);
    compute_.run([x] { *x = 1; });
  }

  belay::comm_error::details told_;  // revoked: nothing
  std::shared_ptr<buffers> with_[2];
  belay::host_stream compute_;
};

}  // namespace conformance

TEST_CASE_TEMPLATE_DEFINE("a rank that throws or returns with work in flight is named by the streams of all others",
                          Backend, conf_in_flight) {
  using namespace conformance;
  for (int ranks : {2, 3, 8}) {
    for (int which = 0; which < started_count; ++which) {
      for (const bool throws : {true, false}) {
        CAPTURE(ranks);
        CAPTURE(which);
        CAPTURE(throws);
        const int culprit = which % ranks;
        const auto body = [&](auto& rank) -> bool {
          const auto& world = rank.world();
          work_in_flight work(rank);
          work.queue(world, which, 2);
          if (rank.number() == culprit && throws) throw std::domain_error("the culprit's own words");
          if (rank.number() == culprit) return true;
          work.queue_to_the_end(world, which);
          const auto what = failure_of([&] { world.barrier(); });  // the host, beside its streams
          const auto queued = work.failure();
          const std::string words = throws ? "the culprit's own words" : "returned";
          const auto blames = [&](const belay::comm_error::details& one) {
            return one.fault == belay::comm_fault::peer_failed && names(one, culprit) &&
                   one.message.find(words) != std::string::npos;
          };
          return blames(what) && blames(queued);
        };
        if (throws) {
          const auto ends = Backend::run_failing(ranks, body);
          if (ends.returned.empty()) continue;  // a backend that was launched with fewer
          for (int q = 0; q < ranks; ++q) CHECK((q == culprit || ends.returned[static_cast<std::size_t>(q)]));
        } else {
          CHECK(all(Backend::run(ranks, body)));
        }
      }
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("an exception without text, of the host or of a kernel, is told to the streams of all others",
                          Backend, conf_in_flight_silent) {
  using namespace conformance;
  struct silent : std::exception {
    [[nodiscard]] const char* what() const noexcept override { return nullptr; }
  };
  for (const bool standard : {true, false}) {
    for (const bool of_kernel : {true, false}) {
      CAPTURE(standard);
      CAPTURE(of_kernel);
      const auto ends = Backend::run_failing(3, [&](auto& rank) -> bool {
        work_in_flight work(rank);
        work.queue(rank.world(), 1, 2);
        const bool throws = rank.number() == 1;
        if (throws && !of_kernel && standard) throw silent();
        if (throws && !of_kernel) throw 7;
        if (throws && standard) work.run([] { throw silent(); });
        if (throws && !standard) work.run([] { throw 7; });
        work.queue(rank.world(), 1, 1);
        const auto what = failure_of([&] { rank.world().barrier(); });
        // The streams of the rank itself throw what its kernel has thrown.
        const auto queued = throws ? what : work.failure();
        const std::string words = standard ? "(no text)" : "no std::exception";
        const auto blames = [&](const belay::comm_error::details& one) {
          return one.fault == belay::comm_fault::peer_failed && names(one, 1) &&
                 one.message.find(words) != std::string::npos;
        };
        return blames(what) && blames(queued);
      });
      if (ends.returned.empty()) continue;
      CHECK((ends.returned[0] && ends.returned[2] && (ends.returned[1] || !of_kernel)));
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE(
    "a peer that never starts is a timeout of the streams of all others, which ends at the deadline", Backend,
    conf_in_flight_timeout) {
  using namespace conformance;
  for (const int which : {1, 4, 5, 8}) {
    CAPTURE(which);
    const auto begun = std::chrono::steady_clock::now();
    CHECK(all(Backend::run(3, [&](auto& rank) {
      work_in_flight work(rank);
      work.queue(rank.world(), 0, 1);
      if (rank.number() == 2) {  // waits elsewhere
        const std::vector<int> pair{0, 2};
        const auto what = failure_of([&] { rank.group(pair).barrier(); });
        return what.fault == belay::comm_fault::timeout && names(what, 2);
      }
      work.queue_to_the_end(rank.world().within(std::chrono::milliseconds(100)), which);
      const auto queued = work.failure();
      return queued.fault == belay::comm_fault::timeout && names(queued, 2) && queued.here.line > 0;
    })));
    CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(30));
  }
}

TEST_CASE_TEMPLATE_DEFINE("started operations that differ stop the streams of all ranks, which name the odd one",
                          Backend, conf_in_flight_mismatch) {
  using namespace conformance;
  for (int which = 0; which < started_count; ++which) {
    for (const int other : {which, (which + 1) % started_count}) {
      if (which == 0 && other == 0) continue;  // barriers do not differ
      CAPTURE(which);
      CAPTURE(other);
      CHECK(all(Backend::run(3, [&](auto& rank) {
        const bool odd = rank.number() == 2;
        work_in_flight work(rank);
        work.queue(rank.world(), 1, 1);
        // The same operation with one element more, or another operation.
        work.queue(rank.world(), odd ? other : which, 1, odd && which == other ? 6 : 5);
        const auto queued = work.failure();
        const bool named = which == 4 && other == 4 ? true : names(queued, 2);
        return queued.fault == belay::comm_fault::mismatch && named;
      })));
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("a blocking collective comes after what its group has started", Backend, conf_one_order) {
  using namespace conformance;
  for (int ranks : {2, 3}) {
    for (int which = 0; which < collective_count; ++which) {
      CAPTURE(ranks);
      CAPTURE(which);
      CHECK(all(Backend::run(ranks, [&](auto& rank) {
        const auto& world = rank.world();
        const auto started = shared_buffers(ranks, 5);
        buffers with(ranks, 5);
        belay::host_stream compute({belay::stream_policy::queued}, rank.number());
        bool ok = true;
        for (int round = 0; round < 3; ++round) {
          float* const x = started->in.data();
          compute.run([x] { *x = 1; });
          auto under_way = world.start_all_reduce(std::span(started->in), belay::sum,
                                                  belay::start_order(belay::after(compute.record())).keeping(started));
          call(world, which, 5, with);
          ok = ok && under_way.ready();
          std::move(under_way).wait();
        }
        return ok;
      })));
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("ranks that start and call in other orders are told so", Backend, conf_other_order) {
  using namespace conformance;
  for (int ranks : {2, 3}) {
    CAPTURE(ranks);
    CHECK(all(Backend::run(ranks, [&](auto& rank) {
      const auto& world = rank.world();
      std::vector<float> x(5, 1.0F);
      world.start_barrier().wait();
      const auto what = failure_of([&] {
        if (rank.number() == 0) {
          auto sum = world.start_all_reduce(std::span(x), belay::sum);
          world.barrier();
          std::move(sum).wait();
        } else {
          world.barrier();
          world.start_all_reduce(std::span(x), belay::sum).wait();
        }
      });
      return what.fault == belay::comm_fault::mismatch && (ranks == 2 || names(what, 0));
    })));
  }
}
