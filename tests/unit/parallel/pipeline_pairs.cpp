// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A forward beside a backward: one computes while the rows of the other are on their way to experts of another rank.
// What one throws ends both, and names its rank.
#include <doctest/doctest.h>
#include <signal.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/backend/host/processes.hpp"
#include "belay/comm/mesh.hpp"
#include "belay/parallel/divisor.hpp"
#include "belay/parallel/experts.hpp"
#include "belay/parallel/pipeline.hpp"
#include "belay/parallel/schedule.hpp"
#include "belay/parallel/vote.hpp"
#include "belay/step.hpp"
#include "belay/train/launch.hpp"
#include "belay/train/loss.hpp"
#include "test_length.hpp"
#include "tools/heap_allocations/heap_allocations.hpp"
#include "unit/parallel/support/toy_experts.hpp"

namespace schedule = belay::schedule;

namespace {

constexpr std::size_t rows = 4, hidden = 3, experts = 4, micro_batches = 3;
using tensor = belay::view<const double, 2>;
using exchange_type = belay::expert_exchange<double>;

// The calls of a rank in the order of its compute stream: "f0F0" is the begin and the end of micro-batch 0's forward.
struct call_record {
  std::string order;
  std::size_t alive = 0;               // calls that have begun and not ended
  std::string_view ends_in;            // the calls of which one throws,
  bool is_killed = false;              // or ends the process
  std::atomic<bool>* sets = nullptr;   // when the forward of micro-batch 1 begins to compute
  std::atomic<bool>* waits = nullptr;  // for that, where the backward of micro-batch 0 begins
  bool came = true;
  std::vector<double> values{};  // inputs: an exchange that an error has left under way may read them still

  void begin(char what, std::size_t micro_batch) {
    order += what + std::to_string(micro_batch);
    if (what == 'f' && micro_batch == 1 && sets != nullptr) sets->store(true);
    if (what != 'b' || micro_batch != 0 || waits == nullptr) return;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (!waits->load() && came) came = std::chrono::steady_clock::now() < deadline;
  }
};

struct marked_layer {
  struct residue {
    belay::view<double, 2> out;
    tensor x;
    typename toy::layer<double, exchange_type>::residue inner;
  };
  struct call_guard {
    std::size_t& alive;
    explicit call_guard(std::size_t& of) : alive(of) { ++alive; }
    ~call_guard() { --alive; }
  };

  toy::layer<double, exchange_type> inner;
  call_record& record;

  void mark(auto& frame, char what) const {
    frame.run([to = &record, what, micro_batch = frame.micro_batch()] { to->begin(what, micro_batch); });
    if (frame.rehearsing() || record.ends_in != what + std::to_string(frame.micro_batch())) return;
    if (record.is_killed) ::raise(SIGKILL);
    throw std::domain_error("this call ends in " + std::string(record.ends_in));
  }
  residue forward(auto& frame, tensor x) {
    const call_guard lives(record.alive);
    mark(frame, 'f');
    auto all = inner.forward(frame, x);
    mark(frame, 'F');
    const auto out = all.out;
    return {out, x, std::move(all)};
  }
  void backward(auto& frame, residue&& r, tensor dout, belay::view<double, 2> dx) {
    const call_guard lives(record.alive);
    mark(frame, 'b');
    inner.backward(frame, std::move(r.inner), dout, dx, r.x.data());
    mark(frame, 'B');
  }
};

struct marked_network {
  std::vector<marked_layer> all;
  auto& layers() { return all; }
};

enum class pair_use { one_after_other, in_turns };

// Experts on two ranks, and one stage.
class trained_stage {
 public:
  trained_stage(belay::rank& rank, belay::run& run, call_record& record, pair_use use)
      : run_(&run),
        mesh_(rank, {.expert = 2}),
        exchange_(run, mesh_.expert(), {experts, 2, hidden, 64}),
        weights_(experts, hidden, 5),
        network_{{marked_layer{{weights_, exchange_, 2}, record}}},
        stage_(network_),
        pipeline_(mesh_, schedule::with_pairs(schedule::one_f_one_b(1, micro_batches)),
                  belay::boundary<double>({rows, hidden})),
        values_(&record.values) {
    *values_ = toy::some_numbers<double>(micro_batches * rows * hidden, 11 + static_cast<std::size_t>(rank.number()));
    if (use == pair_use::in_turns) pipeline_.overlap_pairs();
  }

  void train() {
    belay::step step{run_->engine(), exchange_};
    const belay::view<const double, 3> inputs{values_->data(), {micro_batches, rows, hidden}};
    pipeline_.run(step, stage_, inputs, [](const auto& scope, tensor out) {
      belay::loss_and_gradient<belay::host_engine, double, 2> made{{}, {scope.engine(), out.shape()}};
      const auto to = made.gradient.values();
      scope.engine().compute().run([=] {
        for (std::size_t i = 0; i < out.size(); ++i) to.data()[i] = 1 + out.data()[i];
      });
      return made;
    });
    static_cast<void>(std::move(step).commit(mesh_, belay::samples{1}));
  }
  [[nodiscard]] toy::parameters<double>& weights() { return weights_; }
  [[nodiscard]] std::size_t pairs() const { return pipeline_.pairs(); }

 private:
  belay::run* run_;
  belay::mesh mesh_;
  exchange_type exchange_;
  toy::parameters<double> weights_;
  marked_network network_;
  belay::pipeline_stage<marked_network> stage_;
  belay::pipeline<double, 2> pipeline_;
  std::vector<double>* values_;
};

constexpr belay::stream_choice queued{belay::stream_policy::queued, 0};

}  // namespace

TEST_CASE("a micro-batch computes while the rows of the one beside it are on their way, on every rank in one order") {
  std::array<call_record, 2> records;
  std::atomic<bool> computes{false};
  records[0].sets = &computes;   // its exchange is under way, for which the other rank is needed,
  records[1].waits = &computes;  // which does not come to it before
  belay::launch(belay::host::world{2},
                [&](auto& rank, auto& run) {
                  call_record& record = records[static_cast<std::size_t>(rank.number())];
                  trained_stage trained(rank, run, record, pair_use::in_turns);
                  for ([[maybe_unused]] const std::size_t round : run.steps(1)) trained.train();
                  if (!run.rehearsing()) CHECK(trained.pairs() == 2);
                },
                {.streams = queued});
  CHECK(records[1].came);
  for (const call_record& each : records) CHECK(each.order == "f0F0b0f1B0F1b1f2B1F2b2B2");
}

TEST_CASE("what is added in turns has the bits of one after the other") {
  std::vector<double> expected;
  for (const pair_use use : {pair_use::one_after_other, pair_use::in_turns})
    for (const belay::stream_choice& streams : {belay::stream_choice{}, queued}) {
      belay::launch(belay::host::world{2},
                    [&](auto& rank, auto& run) {
                      call_record record;
                      trained_stage trained(rank, run, record, use);
                      for ([[maybe_unused]] const std::size_t round : run.steps(2)) trained.train();
                      if (run.rehearsing() || rank.number() != 0) return;
                      CHECK((record.order.substr(0, 8) == "f0F0b0f1") == (use == pair_use::in_turns));
                      std::vector<double> sums = trained.weights().router_gradient;
                      sums.insert(sums.end(), trained.weights().matrices_gradient.begin(),
                                  trained.weights().matrices_gradient.end());
                      if (expected.empty()) expected = sums;
                      CHECK(sums == expected);
                    },
                    {.streams = streams});
    }
}

TEST_CASE("pairs of a step allocate nothing after the first steps") {
  for (const belay::stream_choice& streams : {belay::stream_choice{}, queued}) {
    std::vector<std::uint64_t> counts;
    counts.reserve(5);
    std::array<call_record, 2> records;
    for (call_record& each : records) each.order.reserve(1024);
    belay::launch(belay::host::world{2},
                  [&](auto& rank, auto& run) {
                    trained_stage trained(rank, run, records[static_cast<std::size_t>(rank.number())],
                                          pair_use::in_turns);
                    for ([[maybe_unused]] const std::size_t round : run.steps(5)) {
                      rank.world().barrier();
                      const std::uint64_t before = tools::heap_allocations();
                      trained.train();
                      rank.world().barrier();
                      if (!run.rehearsing() && rank.number() == 0) counts.push_back(tools::heap_allocations() - before);
                    }
                  },
                  {.streams = streams});
    REQUIRE(counts.size() == 5);
    if (tools::heap_is_counted()) CHECK(counts[0] > 0);
    for (std::size_t i = 2; i < 5; ++i) CHECK(counts[i] == 0);
  }
}

TEST_CASE("a rank that ends in a call of a pair is named on the other one, and nothing of the pair is left") {
  for (const belay::stream_choice& streams : {belay::stream_choice{}, queued})
    for (const char* ends_in : {"f1", "F1", "b0", "B0"}) {
      CAPTURE(ends_in);
      std::array<call_record, 2> records;
      std::string told;
      const auto body = [&](auto& rank, auto& run) {
        call_record& record = records[static_cast<std::size_t>(rank.number())];
        if (rank.number() == 1) record.ends_in = ends_in;
        trained_stage trained(rank, run, record, pair_use::in_turns);
        try {
          for ([[maybe_unused]] const std::size_t round : run.steps(1)) trained.train();
        } catch (const belay::comm_error& problem) {
          const bool at_once = problem.about().seconds_waited < 5 && problem.about().culprits == std::vector{1};
          if (rank.number() == 0 && at_once && problem.fault() == belay::comm_fault::peer_failed) told = problem.what();
          throw;
        }
      };
      std::string what;
      try {
        belay::launch(belay::host::world{2, {.timeout = std::chrono::seconds(60)}}, body, {.streams = streams});
      } catch (const belay::error& problem) {
        what = problem.what();
      }
      CHECK(told.find("rank 1") != std::string::npos);
      for (const call_record& each : records) CHECK(each.alive == 0);
      if (streams.policy == belay::stream_policy::queued)
        continue;  // what its streams skip may fail before it has left
      const std::string said = "this call ends in " + std::string(ends_in);
      const bool forward = ends_in[0] == 'f' || ends_in[0] == 'F';
      CHECK(what.find(forward ? "(micro-batch 1), forward" : "(micro-batch 0), backward") != std::string::npos);
      CHECK(what.find(said) != std::string::npos);
      CHECK(told.find(said) != std::string::npos);
    }
}

TEST_CASE("a process that is killed in a call of a pair is named by the other one") {
  if (threads_are_sanitized) return;
  for (const char* ends_in : {"F1", "b0"}) {
    CAPTURE(ends_in);
    const auto body = [&](auto& rank, auto& run) {
      call_record record;
      if (rank.number() == 1) record.ends_in = ends_in;
      record.is_killed = true;
      trained_stage trained(rank, run, record, pair_use::in_turns);
      for ([[maybe_unused]] const std::size_t round : run.steps(1)) trained.train();
    };
    try {
      belay::launch(belay::host::processes{2}, body);
      FAIL("nobody noticed");
    } catch (const belay::comm_error& problem) {
      CHECK(problem.fault() == belay::comm_fault::peer_failed);
      CHECK(problem.about().culprits == std::vector<int>{1});
      CHECK(problem.about().signal == SIGKILL);
    }
  }
}

TEST_CASE("after an error of all ranks in a pair the next step runs as the first one would have") {
  std::vector<double> expected;
  for (const belay::stream_choice& streams : {belay::stream_choice{}, queued})
    for (const char* ends_in : {"", "f1", "F1", "b0", "B0"}) {
      CAPTURE(ends_in);
      belay::launch(belay::host::world{2},
                    [&](auto& rank, auto& run) {
                      call_record record;
                      record.ends_in = ends_in;
                      trained_stage trained(rank, run, record, pair_use::in_turns);
                      for ([[maybe_unused]] const std::size_t round : run.steps(1)) {
                        if (!run.rehearsing() && !record.ends_in.empty()) {
                          CHECK_THROWS_AS(trained.train(), belay::layer_error);
                          CHECK(record.alive == 0);
                          record.ends_in = {};
                          for (auto* sums : {&trained.weights().router_gradient, &trained.weights().matrices_gradient})
                            sums->assign(sums->size(), 0);
                        }
                        trained.train();
                      }
                      if (run.rehearsing() || rank.number() != 0) return;
                      if (expected.empty()) expected = trained.weights().matrices_gradient;
                      CHECK(trained.weights().matrices_gradient == expected);
                    },
                    {.streams = streams});
    }
}
