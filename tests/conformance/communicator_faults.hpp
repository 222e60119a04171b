// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// How every communicator fails: each operation, with a rank that throws, leaves, does not come or calls
// something else. All survivors get a named error, outputs keep their pattern, no rank hangs.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "belay/comm.hpp"
#include "conformance/reference.hpp"

namespace conformance {

inline constexpr int operation_count = 14;
inline constexpr int collective_count = operation_count - 1;  // the last one is an exchange between pairs

// One rank's buffers with a pattern in the outputs.
struct buffers {
  explicit buffers(int ranks, std::size_t n)
      : in(n * static_cast<std::size_t>(ranks), 1.0F),
        out(n * static_cast<std::size_t>(ranks), -7.0F),
        counts(static_cast<std::size_t>(ranks), n) {}

  [[nodiscard]] bool untouched() const {
    return std::all_of(in.begin(), in.end(), [](float x) { return x == 1.0F; }) &&
           std::all_of(out.begin(), out.end(), [](float x) { return x == -7.0F; });
  }

  std::vector<float> in, out;
  std::vector<std::size_t> counts;
};

// Operation `which` with `n` elements a rank.
template <class Group>
void call(const Group& group, int which, std::size_t n, buffers& with) {
  const auto ranks = static_cast<std::size_t>(group.size());
  const auto in = std::span(with.in).first(n * ranks);
  const auto out = std::span(with.out).first(n * ranks);
  with.counts.assign(ranks, n);
  const int next = (group.rank() + 1) % group.size(), previous = (group.rank() + group.size() - 1) % group.size();
  switch (which) {
    case 0: group.barrier(); break;
    case 1: group.all_reduce(in, belay::sum); break;
    case 2: group.reduce_scatter(in, out.first(n), belay::sum); break;
    case 3: group.reduce_scatter_v(in, with.counts, belay::sum); break;
    case 4: group.all_gather(in.first(n), out); break;
    case 5: group.all_gather_v(in, with.counts); break;
    case 6: group.all_to_all(in, out); break;
    case 7: group.all_to_all_v(in, with.counts, out, with.counts); break;
    case 8: group.broadcast(out, 0); break;
    case 9: group.reduce(in, belay::average, 0); break;
    case 10: group.gather(in.first(n), out, 0); break;
    case 11: group.scatter(in, out.first(n), 0); break;
    case 12: group.all_reduce(in, belay::product); break;
    default: {
      const belay::p2p transfers[] = {belay::p2p::send(next, in.first(n)), belay::p2p::receive(previous, out.first(n))};
      group.exchange(transfers);
    }
  }
}

// Runs `work` and tells how it failed; `revoked` when it did not.
template <class Work>
belay::comm_error::details failure_of(Work work) {
  try {
    work();
  } catch (const belay::comm_error& error) {
    return error.about();
  }
  return {};
}

inline bool names(const belay::comm_error::details& what, int rank) {
  return std::find(what.culprits.begin(), what.culprits.end(), rank) != what.culprits.end();
}

}  // namespace conformance

TEST_CASE_TEMPLATE_DEFINE("a rank that throws is named by all others, whatever they wait in", Backend, conf_throw) {
  using namespace conformance;
  for (int ranks : {2, 3, 8}) {
    for (int which = 0; which < operation_count; ++which) {
      CAPTURE(ranks);
      CAPTURE(which);
      const int culprit = ranks / 2;
      const auto body = [&](auto& rank) -> bool {
        const auto& world = rank.world();
        buffers with(ranks, 5);
        world.barrier();
        if (rank.number() == culprit) throw std::domain_error("the culprit's own words");
        const auto what = failure_of([&] {
          for (int k = 0; k < 3; ++k) call(world, which, 5, with);  // an exchange of others may still succeed
          world.barrier();
        });
        const auto again = failure_of([&] { world.barrier(); });
        return what.fault == belay::comm_fault::peer_failed && names(what, culprit) && !what.there.empty() &&
               what.message.find("the culprit's own words") != std::string::npos && again.message == what.message &&
               again.culprits == what.culprits;
      };
      const auto ends = Backend::run_failing(ranks, body);
      if (ends.returned.empty()) continue;  // a backend that was launched with fewer
      CHECK(ends.error.find("the culprit's own words") != std::string::npos);
      for (int q = 0; q < ranks; ++q) CHECK((q == culprit || ends.returned[static_cast<std::size_t>(q)]));
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("a rank whose exception has no text, or is no std::exception, is named like others", Backend,
                          conf_throw_silently) {
  using namespace conformance;
  struct silent : std::exception {
    [[nodiscard]] const char* what() const noexcept override { return nullptr; }
  };
  for (bool standard : {true, false}) {
    CAPTURE(standard);
    const auto ends = Backend::run_failing(3, [&](auto& rank) -> bool {
      if (rank.number() == 1 && standard) throw silent();
      if (rank.number() == 1) throw 7;
      const auto what = failure_of([&] { rank.world().barrier(); });
      return what.fault == belay::comm_fault::peer_failed && names(what, 1) &&
             what.message.find(standard ? "(no text)" : "no std::exception") != std::string::npos;
    });
    if (ends.returned.empty()) continue;
    CHECK(ends.error.find(standard ? "(no text)" : "no std::exception") != std::string::npos);
    CHECK((ends.returned[0] && ends.returned[2]));
  }
}

TEST_CASE_TEMPLATE_DEFINE("a rank that returns early is named by all ranks that wait for it", Backend, conf_return) {
  using namespace conformance;
  for (int ranks : {2, 3, 8}) {
    for (int which = 0; which < operation_count; ++which) {
      CAPTURE(ranks);
      CAPTURE(which);
      CHECK(all(Backend::run(ranks, [&](auto& rank) {
        if (rank.number() == 0) return true;
        buffers with(ranks, 5);
        const auto what = failure_of([&] {
          call(rank.world(), which, 5, with);
          rank.world().barrier();
        });
        return what.fault == belay::comm_fault::peer_failed && names(what, 0) &&
               what.message.find("returned") != std::string::npos;
      })));
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("a deadline names the missing rank and what it does instead", Backend, conf_timeout) {
  using namespace conformance;
  for (int which : {0, 1, 7, 9, 13}) {
    CAPTURE(which);
    CHECK(all(Backend::run(3, std::chrono::milliseconds(100), [&](auto& rank) {
      buffers with(3, 5);
      const std::vector<int> alone{2}, pair{0, 2}, others{0, 1};
      const auto what = failure_of([&] {
        rank.world().barrier();  // the last rank to leave may find the world aborted by then
        if (rank.number() == 2) {
          rank.group(pair).barrier();
        } else {
          call(rank.world(), which, 5, with);
          rank.world().barrier();
        }
      });
      // The rank whose deadline passes first names the ranks it waits for.
      return what.fault == belay::comm_fault::timeout && !what.culprits.empty() &&
             what.message.find("at ") != std::string::npos;
    })));
  }
}

TEST_CASE_TEMPLATE_DEFINE("calls that differ stop all ranks before any output is written", Backend, conf_mismatch) {
  using namespace conformance;
  for (int ranks : {2, 3, 8}) {
    for (int which = 0; which < collective_count; ++which) {
      for (int other = 0; other < collective_count; ++other) {
        if (which == 0 && other == 0) continue;  // barriers do not differ
        CAPTURE(ranks);
        CAPTURE(which);
        CAPTURE(other);
        const int odd = ranks - 1;
        CHECK(all(Backend::run(ranks, [&](auto& rank) {
          buffers with(ranks, 6);
          // The same operation with one element more, or another operation.
          const auto what = failure_of([&] {
            if (rank.number() == odd)
              call(rank.world(), other, which == other ? 6 : 5, with);
            else
              call(rank.world(), which, 5, with);
          });
          const bool named = which == 7 && other == 7 ? true : names(what, odd);
          return what.fault == belay::comm_fault::mismatch && named && with.untouched();
        })));
      }
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("root, reduction and element type are compared too", Backend, conf_mismatch_rest) {
  using namespace conformance;
  for (int ranks : {2, 3}) {
    for (int kind = 0; kind < 9; ++kind) {
      CAPTURE(ranks);
      CAPTURE(kind);
      CHECK(all(Backend::run(ranks, [&](auto& rank) {
        const auto& world = rank.world();
        const bool odd = rank.number() == ranks - 1;
        const int root = odd ? 1 : 0;
        const auto before = values<float>(rank.number(), 18);
        std::vector<float> x = before, y = before;
        std::vector<std::int32_t> words(18, 1);
        const auto reduce = [&](auto a, auto b) {
          odd ? world.all_reduce(std::span(x), a) : world.all_reduce(std::span(x), b);
        };
        const auto what = failure_of([&] {
          switch (kind) {
            case 0: world.broadcast(std::span(x), root); break;
            case 1: reduce(belay::maximum, belay::sum); break;
            case 2: reduce(belay::average, belay::sum); break;
            case 3: world.reduce(std::span(x), belay::sum, root); break;
            case 4:
              world.gather(std::span(x).first(1), std::span(y).first(static_cast<std::size_t>(ranks)), root);
              break;
            case 5:
              world.scatter(std::span(x).first(static_cast<std::size_t>(ranks)), std::span(y).first(1), root);
              break;
            case 6:
              odd ? world.all_reduce(std::span(words), belay::sum) : world.all_reduce(std::span(x), belay::sum);
              break;
            case 7:  // in place on some ranks, and with another size on one
              world.all_to_all(std::span(x).first(odd ? 6 : 12), std::span(odd ? x : y).first(odd ? 6 : 12));
              break;
            default:
              if constexpr (belay::directly_addressable<std::remove_cvref_t<decltype(world)>>) {
                (void)world.make_symmetric(odd ? 64 : 128);
              } else {
                world.broadcast(std::span(x).first(odd ? 6 : 7), 0);
              }
          }
        });
        return what.fault == belay::comm_fault::mismatch && names(what, ranks - 1) && same_bits(x, before) &&
               same_bits(y, before) && what.message.find("communicator_faults.hpp:") != std::string::npos;
      })));
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("divisions of a buffer that differ are a mismatch, even with the same hash", Backend,
                          conf_mismatch_counts) {
  using namespace conformance;
  const std::vector<std::size_t> ours{113, 104, 223, 382, 268, 22, 0, 14}, theirs{188, 0, 30, 338, 122, 373, 64, 11};
  REQUIRE(belay::shape_of(ours) == belay::shape_of(theirs));  // and of the same total
  for (bool same_hash : {false, true}) {
    for (int which : {0, 1, 2, 3}) {
      CAPTURE(which);
      CHECK(all(Backend::run(8, [&](auto& rank) {
        const auto& world = rank.world();
        const bool odd = rank.number() == 5;
        const std::vector<std::size_t> swapped(ours.rbegin(), ours.rend());
        const std::vector<std::size_t> counts = !odd ? ours : same_hash ? theirs : swapped;
        const auto before = values<float>(rank.number(), 1126);
        auto x = before;
        const auto what = failure_of([&] {
          if (which == 0) world.reduce_scatter_v(std::span(x), counts, belay::sum);
          if (which == 1) world.all_gather_v(std::span(x), counts);
          if (which == 2) world.start_reduce_scatter_v(std::span(x), counts, belay::average).wait();
          if (which == 3) world.start_all_gather_v(std::span(x), counts).wait();
        });
        return what.fault == belay::comm_fault::mismatch && what.culprits == std::vector<int>{5} &&
               same_bits(x, before) &&
               what.message.find("with counts 113, 104, 223, 382, 268, 22, 0, 14") != std::string::npos &&
               what.message.find(same_hash ? "with counts 188, 0, 30" : "with counts 14, 0, 22") != std::string::npos &&
               (!same_hash || what.message.find("188 of them for rank 0") != std::string::npos);
      })));
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("buffers that overlap other than in place are refused before anybody meets", Backend,
                          conf_overlap) {
  using namespace conformance;
  CHECK(holds_on_all<Backend>({2, 3, 4}, [](const auto& world) {
    const int me = world.rank(), other = (me + 1) % world.size();
    const auto size = static_cast<std::size_t>(world.size());
    const std::size_t n = 6;
    const auto before = values<std::int32_t>(me, n * size + 1);
    auto memory = before;
    const auto whole = std::span(memory).first(n * size);
    const auto part = [&](int q) { return whole.subspan(n * static_cast<std::size_t>(q), n); };
    const auto aside = std::span(memory).subspan(n * static_cast<std::size_t>(me) + 1, n);
    std::vector<std::size_t> sends(size, n), receives(size, n);
    sends.front() += 1;
    sends.back() -= 1;
    const auto refused = [&](auto call) {
      try {
        call();
      } catch (const belay::usage_error& error) {
        return std::string(error.what()).find("overlap") != std::string::npos;
      }
      return false;
    };
    bool ok = true;
    for (auto wrong : {part(other), aside}) {  // another rank's part, and beside one's own
      ok = refused([&] { world.reduce_scatter(whole, wrong, belay::sum); }) && ok;
      ok = refused([&] { world.all_gather(wrong, whole); }) && ok;
      ok = refused([&] { world.gather(wrong, whole, me); }) && ok;
      ok = refused([&] { world.scatter(whole, wrong, me); }) && ok;
    }
    ok = refused([&] { world.all_to_all(whole, std::span(memory).last(n * size)); }) && ok;
    ok = refused([&] { world.all_to_all_v(whole, sends, whole, receives); }) && ok;
    world.barrier();  // the group is usable
    return ok && same_bits(memory, before);
  }));
}

TEST_CASE_TEMPLATE_DEFINE("a pair that disagrees on bytes or tag stops with both named", Backend, conf_mismatch_pair) {
  using namespace conformance;
  for (int kind = 0; kind < 2; ++kind) {
    CAPTURE(kind);
    CHECK(all(Backend::run(3, [&](auto& rank) {
      std::vector<float> x(10, 1.0F), y(10, -7.0F);
      const auto what = failure_of([&] {
        const belay::p2p send = belay::p2p::send(1, std::span<const float>(x).first(kind == 0 ? 5 : 4), 1);
        const belay::p2p receive = belay::p2p::receive(0, std::span(y).first(4), kind == 0 ? 1 : 2);
        if (rank.number() == 0) rank.world().exchange(std::span(&send, 1));
        if (rank.number() == 1) rank.world().exchange(std::span(&receive, 1));
        rank.world().barrier();
      });
      return what.fault == belay::comm_fault::mismatch && names(what, 0) && names(what, 1) &&
             y == std::vector<float>(10, -7.0F);
    })));
  }
}

TEST_CASE_TEMPLATE_DEFINE("a started operation whose peer fails tells so when it is waited for", Backend,
                          conf_started_fault) {
  using namespace conformance;
  for (int ranks : {2, 3}) {
    for (int kind = 0; kind < 2; ++kind) {
      CAPTURE(ranks);
      CAPTURE(kind);
      CHECK(all(Backend::run(ranks, [&](auto& rank) {
        std::vector<float> x(10), y(10);
        if (kind == 0 && rank.number() == 0) return true;
        const auto what = failure_of([&] {
          auto first = rank.world().start_all_reduce(std::span(x).first(rank.number() == 0 ? 9 : 10), belay::sum);
          std::move(first).wait();
        });
        const auto later = failure_of([&] {
          auto second = rank.world().start_all_reduce(std::span(y), belay::sum);
          std::move(second).wait();
        });
        const auto expected = kind == 0 ? belay::comm_fault::peer_failed : belay::comm_fault::mismatch;
        return what.fault == expected && names(what, 0) && later.message == what.message;
      })));
    }
  }
}
