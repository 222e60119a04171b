// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Under every stage: a gradient that is missing or comes twice is named, also where its bucket was reduced and opened
// again between; a rank that ends in the middle of a step is named by each of the others.
#include <doctest/doctest.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/backend/host/processes.hpp"
#include "belay/parallel/gathers.hpp"
#include "belay/train/launch.hpp"
#include "belay/train/optimizer.hpp"
#include "belay/train/store.hpp"
#include "unit/train/support/messages.hpp"
#include "unit/train/support/network.hpp"

using namespace network_bench;
using belay::stream_choice;
using belay::stream_policy;

namespace {

struct listed : linear {
  void for_each_parameter(auto&& visit) { visit(weight); }
};
// What a backward without tokens says of its weight; the wrong one nothing.
enum class without_tokens { adds_nothing, says_nothing };
// An expert to which a micro-batch sends the first `tokens` of its rows, perhaps none.
struct expert {
  belay::parameter<float> weight;
  std::size_t tokens = rows;
  without_tokens how = without_tokens::adds_nothing;
  struct residue {
    belay::view<float, 2> out;
    matrix x;
    std::size_t tokens;
  };

  [[nodiscard]] static const char* name() { return "expert"; }

  residue forward(auto& frame, matrix x) {
    auto y = frame.template keep<float>(belay::extents<2>{x.extent(0), weight.extent(0)});
    frame.run([=, w = matrix(frame.read(weight)), count = tokens] {
      for (std::size_t i = 0; i < y.extent(0); ++i)
        for (std::size_t o = 0; o < w.extent(0); ++o) {
          y(i, o) = 0;
          for (std::size_t k = 0; i < count && k < w.extent(1); ++k) y(i, o) += x(i, k) * w(o, k);
        }
    });
    return {y, x, tokens};
  }
  void backward(auto& frame, residue&& r, matrix dy, belay::view<float, 2> dx) {
    frame.run([=, w = matrix(frame.read(weight)), count = r.tokens] {
      for (std::size_t i = 0; i < dx.extent(0); ++i)
        for (std::size_t k = 0; k < w.extent(1); ++k) {
          dx(i, k) = 0;
          for (std::size_t o = 0; i < count && o < w.extent(0); ++o) dx(i, k) += dy(i, o) * w(o, k);
        }
    });
    if (r.tokens == 0) return how == without_tokens::adds_nothing ? frame.adds_nothing(weight) : void();
    const belay::view<float, 2> dw = frame.add_to(weight);
    frame.run([=, x = r.x, count = r.tokens] {
      for (std::size_t i = 0; i < count; ++i)
        for (std::size_t o = 0; o < dw.extent(0); ++o)
          for (std::size_t k = 0; k < dw.extent(1); ++k) dw(o, k) += dy(i, o) * x(i, k);
    });
  }
  void for_each_parameter(auto&& visit) { visit(weight); }
};

template <class Second>
struct pair_of {
  listed first{{{"first.weight", {7, 7}}}};
  Second second;
  void for_each_parameter(auto&& visit) { visit(first.weight), visit(second.weight); }
};
constexpr std::size_t micro_batches = 3;

void run_through(const auto& scope, auto& first, auto& second, const data& batch) {
  auto h = belay::forward(scope, first, belay::constant(batch.inputs()));
  auto y = belay::forward(scope, second, h.out());
  auto [loss, grad] = belay::squared_error(scope, y.out(), batch.targets());
  grad = std::move(y).backward(grad);
  std::move(h).backward(grad);
}

// What rank 1 does wrong, and where a layer forgets its weight, every rank.
enum class slip { forgets_a_weight, drops_the_last_micro_batch, drops_the_first_micro_batch, makes_one_twice };

// What each rank says of it.
template <int Stage>
std::vector<std::string> said_of(slip what) {
  return messages([what](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = rank.size()}};
    pair_of<listed> net{.second = {{{"second.weight", {3, 7}}}}};
    belay::parameter_store store{run, mesh, net, belay::zero<Stage>{}, {.bucket_bytes = 64}};
    belay::gathers first{net.first, store}, second{net.second, store};
    std::vector<std::unique_ptr<data>> batches;
    for (auto number : run.steps(1)) {
      belay::step step{run.engine(), store};
      step.micro_batches(micro_batches);
      const auto wrong = [&](slip one) {
        return what == one && !run.rehearsing() && (rank.number() == 1 || one == slip::forgets_a_weight);
      };
      for (std::size_t m = 0; m < micro_batches; ++m) {
        if (wrong(slip::drops_the_first_micro_batch) && m == 0) continue;
        if (wrong(slip::drops_the_last_micro_batch) && m + 1 == micro_batches) continue;
        net.second.silent = wrong(slip::forgets_a_weight) && m == 1;
        const data& batch = *batches.emplace_back(std::make_unique<data>(number, m));
        run_through(step.micro_batch(m), first, second, batch);
        if (wrong(slip::makes_one_twice) && m == 1) run_through(step.micro_batch(m), first, second, batch);
      }
      auto outcome = std::move(step).commit(mesh, belay::samples{micro_batches * rows});
      if (auto* ok = belay::committed(outcome)) std::move(*ok).discard();
    }
  });
}

template <int Stage>
void expect_slips_named() {
  CAPTURE(Stage);
  const struct {
    slip what;
    const char* words;
  } all[] = {
      {slip::forgets_a_weight, "not complete: parameter second.weight misses micro-batch 1"},
      {slip::drops_the_last_micro_batch,
       "parameter first.weight misses micro-batch 2; parameter second.weight misses micro-batch 2"},
      {slip::drops_the_first_micro_batch,
       "parameter first.weight misses micro-batch 0; parameter second.weight misses micro-batch 0"},
      {slip::makes_one_twice, "micro-batch 1 contributed to parameter second.weight twice"},
  };
  for (const auto& [what, words] : all) {
    const std::vector<std::string> said = said_of<Stage>(what);
    CHECK((contains(said[0], words) || contains(said[1], words)));
    for (const std::string& one : said) CHECK_MESSAGE((one == "" || contains(one, words)), one);  // "": told of a peer
  }
}

// The norms of the expert's gradient in two steps: without a token anywhere, and with some in some micro-batches.
template <int Stage>
auto expert_body(std::vector<double>& norms, without_tokens how) {
  return [&norms, how](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = rank.size()}};
    pair_of<expert> net{.second = {{"expert.weight", {3, 7}}}};
    if (!run.rehearsing()) net.second.how = how;
    belay::parameter_store store{run, mesh, net, belay::zero<Stage>{}, {.seed = 3, .bucket_bytes = 64}};
    belay::gathers first{net.first, store};
    belay::gathers second{net.second, store};
    std::vector<std::unique_ptr<data>> batches;
    for (auto number : run.steps(2)) {
      belay::step step{run.engine(), store};
      step.micro_batches(micro_batches);
      for (std::size_t m = 0; m < micro_batches; ++m) {
        const std::size_t some = (m + static_cast<std::size_t>(rank.number())) % 3;  // 0, 1 or 2
        net.second.tokens = number == 1 ? 0 : some;
        run_through(step.micro_batch(m), first, second, *batches.emplace_back(std::make_unique<data>(number, m)));
      }
      auto outcome = std::move(step).commit(mesh, belay::samples{2 * micro_batches * rows});
      if (auto* ok = belay::committed(outcome)) {
        if (!run.rehearsing() && rank.number() == 0) norms.push_back(store.norm_of(1));
        std::move(*ok).discard();
      }
    }
  };
}
template <int Stage>
std::vector<double> expert_norms(const stream_choice& streams) {
  std::vector<double> out;
  belay::launch(belay::host::world{2}, expert_body<Stage>(out, without_tokens::adds_nothing), {.streams = streams});
  return out;
}

}  // namespace

TEST_CASE("a gradient that is missing, also the last micro-batch's, or comes twice is named under every stage") {
  expect_slips_named<0>();
  expect_slips_named<1>();
  expect_slips_named<2>();
  expect_slips_named<3>();
}

TEST_CASE("an expert without tokens has a gradient of zeros under every stage, and one that says nothing is named") {
  const std::vector<double> whole = expert_norms<0>({});
  REQUIRE(whole.size() == 2);
  CHECK(whole[1] > 0);
  for (const stream_choice& streams : {stream_choice{}, stream_choice{stream_policy::adversarial, 0}})
    for (const std::vector<double>& norms :
         {expert_norms<0>(streams), expert_norms<1>(streams), expert_norms<2>(streams), expert_norms<3>(streams)}) {
      REQUIRE(norms.size() == 2);
      CHECK(norms[0] == 0);  // and not what the memory held before
      CHECK(norms[1] == doctest::Approx(whole[1]).epsilon(1e-6));
    }
  const char* const words = "parameter expert.weight misses micro-batch 0 1 2";
  std::vector<double> none;
  constexpr auto wrong = without_tokens::says_nothing;
  for (const std::vector<std::string>& said :
       {messages(expert_body<0>(none, wrong)), messages(expert_body<1>(none, wrong)),
        messages(expert_body<2>(none, wrong)), messages(expert_body<3>(none, wrong))}) {
    CHECK((contains(said[0], words) || contains(said[1], words)));
    for (const std::string& one : said) CHECK((one == "" || contains(one, words)));  // "": told of a peer
  }
}

namespace {

// Where rank 1 ends in the second step.
enum class at { gather, reduction, apply, passes };
enum class way { killed, throws };

auto ending_body(at where, way how, belay::gather_by gathers) {
  return [where, how, gathers](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = rank.size()}};
    pair_of<listed> net{.second = {{{"second.weight", {7, 7}}}}};
    belay::parameter_store store{run, mesh, net, belay::zero<3>{}, {.bucket_bytes = 128, .gathers = gathers}};
    belay::gathers first{net.first, store}, second{net.second, store};
    belay::adamw optimizer{store};
    const data batch(1, 0);
    for (auto number : run.steps(3)) {
      const auto end = [&](at here) {
        if (run.rehearsing() || rank.number() != 1 || number != 2 || here != where) return;
        if (how == way::throws) throw std::runtime_error("rank 1 has had enough");
        ::raise(SIGKILL);
      };
      belay::step step{run.engine(), store};
      auto h = belay::forward(step, first, belay::constant(batch.inputs()));  // the next layer's gather is started
      end(at::gather);
      auto y = belay::forward(step, second, h.out());
      auto [loss, grad] = belay::squared_error(step, y.out(), batch.inputs());
      grad = std::move(y).backward(grad);  // its reduction is started
      end(at::reduction);
      std::move(h).backward(grad);
      auto outcome = std::move(step).commit(mesh, belay::samples{rows});
      auto* const ok = belay::committed(outcome);
      if (ok == nullptr) continue;
      end(at::apply);
      optimizer.apply(std::move(*ok), {.learning_rate = 1e-3});
      end(at::passes);
      if (where != at::passes || run.rehearsing()) continue;
      for (int i = 0; i < 50; ++i) {  // where each rank gathers alone, the dead one's memory is read
        const belay::forward_only pass{run.engine()};
        static_cast<void>(belay::observe(pass, i % 2 == 0 ? first : second, batch.inputs()));
      }
    }
  };
}

// Processes of which each tells how it ended.
struct told_world {
  std::vector<belay::host::rank_outcome>* ends;
  [[nodiscard]] static int size() { return 3; }
  void run(auto&& body) const { *ends = belay::host::processes{3}.outcomes(body); }
};

std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

}  // namespace

TEST_CASE(
    "each rank names one that is killed in a gather, a reduction, an update or a pass, by address or together, and all "
    "hear one that throws") {
  using outcome = belay::host::rank_outcome;
  for (const at where : {at::gather, at::reduction, at::apply, at::passes})
    for (const belay::gather_by how : {belay::gather_by::reach, belay::gather_by::collectives})
      for (const stream_policy policy : {stream_policy::immediate, stream_policy::queued}) {
        CAPTURE(static_cast<int>(where));
        CAPTURE(static_cast<int>(how));
        const belay::launch_options options{.streams = {policy, 0}};
        std::vector<outcome> ends;
        belay::launch(told_world{&ends}, ending_body(where, way::killed, how), options);
        REQUIRE(ends.size() == 3);
        CHECK(ends[1].how == outcome::outcome_kind::signalled);
        CHECK(ends[1].code == SIGKILL);
        for (const std::size_t survivor : {0U, 2U}) {
          CAPTURE(ends[survivor].text());
          CHECK(ends[survivor].how == outcome::outcome_kind::threw);
          CHECK(contains(ends[survivor].what, "peer_failed"));
          CHECK(contains(ends[survivor].what, "rank 1"));
        }
        const std::size_t before = open_descriptors();
        CHECK_THROWS_WITH_AS(belay::launch(belay::host::world{3}, ending_body(where, way::throws, how), options),
                             "rank 1 has had enough", std::runtime_error);
        CHECK(open_descriptors() == before);
      }
}
