// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Faults while work is in flight: every rank has queued kernels, started operations after their events, and kernels
// after those; then one rank fails, and the streams of the others wait for it.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
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

/// Work of one rank on its streams. What is under way when the rank fails keeps the buffers.
class work_in_flight {
 public:
  work_in_flight(int ranks, int number)
      : with_(std::make_shared<buffers>(ranks, 5)), compute_({belay::stream_policy::queued}, number) {}

  /// Queues `rounds` of a kernel, operation `which` after it, and a kernel after that.
  template <class Group>
  void queue(const Group& group, int which, int rounds) {
    for (int round = 0; round < rounds; ++round) {
      float* const x = with_->in.data();
      compute_.run([x] { *x += 1; });
      auto under_way =
          start(group, which, 5, *with_, belay::start_order(belay::after(compute_.record())).keeping(with_));
      std::move(under_way).then(compute_);
      compute_.run([x] { *x = 1; });
    }
  }
  /// How the streams have failed.
  [[nodiscard]] belay::comm_error::details failure() {
    return failure_of([&] { compute_.synchronize(); });
  }

 private:
  std::shared_ptr<buffers> with_;
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
          work_in_flight work(ranks, rank.number());
          work.queue(world, which, 2);
          if (rank.number() == culprit && throws) throw std::domain_error("the culprit's own words");
          if (rank.number() == culprit) return true;
          // Nothing can be started where the failure is known already.
          const auto refused = failure_of([&] { work.queue(world, which, 1); });
          const auto what = failure_of([&] { world.barrier(); });  // the host, beside its streams
          const auto queued = work.failure();
          const std::string words = throws ? "the culprit's own words" : "returned";
          const auto blames = [&](const belay::comm_error::details& one) {
            return one.fault == belay::comm_fault::peer_failed && names(one, culprit) &&
                   one.message.find(words) != std::string::npos;
          };
          // A broadcast's or a reduction's last call needs not all ranks.
          const bool needs_all = which != 5 && which != 6;
          return blames(what) && (refused.message.empty() || blames(refused)) &&
                 (blames(queued) || (!needs_all && queued.fault != belay::comm_fault::timeout));
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

TEST_CASE_TEMPLATE_DEFINE("a blocking collective comes after what its group has started", Backend, conf_one_order) {
  using namespace conformance;
  for (int ranks : {2, 3}) {
    for (int which = 0; which < collective_count; ++which) {
      CAPTURE(ranks);
      CAPTURE(which);
      CHECK(all(Backend::run(ranks, [&](auto& rank) {
        const auto& world = rank.world();
        const auto started = std::make_shared<buffers>(ranks, 5);
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
