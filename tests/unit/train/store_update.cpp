// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// An optimizer of one's own over a store: it trains alike on any ranks, whatever they divide and wherever that lies.
#include "belay/train/store_update.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "belay/backend/host.hpp"
#include "belay/belay.hpp"
#include "unit/device/support/tier_file.hpp"
#include "unit/train/support/linear.hpp"
#include "unit/train/support/messages.hpp"

namespace {

using belay::stream_policy;
using belay::tier;
using belay::zero_stage;
using train_bench::linear;

// SGD in ten lines, on any number of ranks.
void descend(auto& store, auto&& token, float rate) {
  const auto sgd = [rate](const std::string&, std::span<float> values, std::span<const float> gradients, std::size_t) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] -= rate * gradients[i];
  };
  store.update(std::forward<decltype(token)>(token), sgd);
}

// The same with momentum: state of one's own, by name and element.
struct momentum {
  std::map<std::string, std::vector<float>> of;
  void operator()(const std::string& name, std::span<float> values, std::span<const float> gradients,
                  std::size_t first) {
    std::vector<float>& own = of[name];
    if (own.size() < first + values.size()) own.resize(first + values.size());
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] -= 1e-3F * (own[first + i] = 0.9F * own[first + i] + gradients[i]);
  }
};

struct decaying {
  float* value;
  const float* gradient;
  BELAY_HD void operator()(std::size_t i) const { value[i] -= 1e-2F * gradient[i]; }
};

enum class optimizer : std::uint8_t { plain, with_momentum, in_frame, by_hand };

struct setting {
  int ranks = 1;
  zero_stage stage = zero_stage::none;
  optimizer how = optimizer::with_momentum;
  belay::stream_choice streams = {};
  std::size_t micro_batches = 1;
  tier parameters = tier::device, gradients = tier::device;
  std::string folder = {};
  std::size_t width = 5;
};
struct trained {
  std::vector<double> losses;
  std::vector<std::vector<float>> values;  // of every rank
  bool as_planned = true;
};

struct network {
  explicit network(std::size_t width) : first{{"first.weight", {width, 8}}}, second{{"second.weight", {7, width}}} {}
  linear first, second;
  void for_each_parameter(auto&& visit) { visit(first.weight), visit(second.weight); }
};

trained train(const setting& how) {
  trained out;
  out.values.resize(static_cast<std::size_t>(how.ranks));
  const auto body = [&](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = rank.size()}};
    network net(how.width);
    belay::parameter_store store{run, mesh, net, how.stage,
                                 belay::store_options{.bucket_bytes = 64,
                                                      .parameters = how.parameters,
                                                      .gradients = how.gradients,
                                                      .files = {.folder = how.folder, .piece = 4096}}};
    belay::gathers first{net.first, store}, second{net.second, store};
    momentum state;
    std::vector<float> x(8), t(7);
    const auto all = static_cast<std::size_t>(rank.size()) * how.micro_batches;
    for ([[maybe_unused]] const auto number : run.steps(4)) {
      belay::step step{run.engine(), store};
      step.micro_batches(how.micro_batches);
      for (std::size_t m = 0; m < how.micro_batches; ++m) {
        const std::size_t sample = static_cast<std::size_t>(rank.number()) * how.micro_batches + m;
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>((3 * i + 5 * sample) % 11) / 7;
        for (std::size_t i = 0; i < t.size(); ++i) t[i] = static_cast<float>((i + 2 * sample) % 5) / 3;
        const auto scope = step.micro_batch(m);
        auto h = belay::forward(scope, first, belay::constant(belay::view<const float, 2>{x.data(), {1, 8}}));
        auto y = belay::forward(scope, second, h.out());
        auto [loss, grad] = belay::squared_error(scope, y.out(), belay::view<const float, 2>{t.data(), {1, 7}});
        grad = std::move(y).backward(grad);
        std::move(h).backward(grad);
        run.engine().synchronize();  // x and t are written again
      }
      auto outcome = std::move(step).commit(mesh, belay::samples{all});
      auto* const ok = belay::committed(outcome);
      if (ok == nullptr) continue;
      run.report(*ok, [&](double mean) { out.losses.push_back(mean); });
      switch (how.how) {
        case optimizer::plain: descend(store, std::move(*ok), 1e-2F); break;
        case optimizer::with_momentum: store.update(ok->part(store), state); break;
        case optimizer::in_frame:
          store.update(std::move(*ok), [](auto& frame, const std::string&, std::span<float> values,
                                          std::span<const float> gradients, std::size_t) {
            const auto copy = belay::scratch<float>(frame, {values.size()});
            frame.each(values.size(), belay::kernel::copy<float>{gradients.data(), copy.data()});
            frame.each(values.size(), decaying{values.data(), copy.data()});
          });
          break;
        case optimizer::by_hand:  // what a store's own buckets cannot keep from anybody: replicas part
          if (!run.rehearsing())
            for (const auto& range : std::move(*ok).only_part().take().owned())
              for (std::size_t i = 0; i < range.count; ++i) range.value[i] -= 1e-2F * range.gradient[i];
          else
            std::move(*ok).discard();
          break;
      }
    }
    auto& own = out.values[static_cast<std::size_t>(rank.number())];
    for (const auto* layer : {&net.first, &net.second}) {
      const auto whole = store.read(layer->weight);
      if (!run.rehearsing()) own.insert(own.end(), whole.values().begin(), whole.values().end());
    }
    if (!run.rehearsing())
      for (std::size_t in = 0; in < belay::tier_count; ++in)
        if (run.planned().peak_bytes(static_cast<tier>(in)) != run.meters()[static_cast<tier>(in)].peak_bytes())
          out.as_planned = false;
  };
  belay::launch(belay::host::world{how.ranks}, body, {.streams = how.streams});
  return out;
}

// `got` has the bits of one rank that has had the same samples, on each of its ranks.
void check_equal(const trained& one, const trained& got) {
  CHECK(got.losses == one.losses);
  for (const auto& values : got.values) CHECK(values == one.values.front());
  CHECK(got.as_planned);
}

constexpr zero_stage stages[] = {zero_stage::none, zero_stage::optimizer_state, zero_stage::gradients,
                                 zero_stage::parameters};

}  // namespace

TEST_CASE("an optimizer of one's own has the bits of one rank, whatever ranks divide") {
  for (const int ranks : {1, 2, 3})
    for (const optimizer how : {optimizer::plain, optimizer::with_momentum, optimizer::in_frame}) {
      const trained one = train({.how = how, .micro_batches = static_cast<std::size_t>(ranks)});
      REQUIRE(one.losses.size() == 4);
      CHECK(one.losses[3] < one.losses[0]);
      for (const zero_stage stage : stages)
        for (const belay::stream_choice& streams :
             {belay::stream_choice{}, {stream_policy::queued, 0}, {stream_policy::adversarial, 3}}) {
          INFO(ranks << " ranks, zero " << static_cast<int>(stage) << ", " << name(streams.policy) << ", optimizer "
                     << static_cast<int>(how));
          check_equal(one, train({.ranks = ranks, .stage = stage, .how = how, .streams = streams}));
        }
    }
}

TEST_CASE("what gathers nothing lets replicas part, which is seen here") {
  const trained parted = train({.ranks = 2, .stage = zero_stage::optimizer_state, .how = optimizer::by_hand});
  CHECK(parted.values[0] != parted.values[1]);
}

TEST_CASE("an update of one's own reaches shards in every tier, a chunk at a time where they are in a file") {
  const tier_files::folder folder;
  // 275,625 elements a rank: two chunks.
  setting how{.ranks = 2, .stage = zero_stage::parameters, .width = 36750};
  const trained resident = train(how);
  how.folder = folder.path;
  for (const tier lower : {tier::pinned, tier::host, tier::file})
    for (const bool both : {false, true})
      for (const belay::stream_choice& streams : {belay::stream_choice{}, {stream_policy::queued, 0}}) {
        INFO(name(lower) << ", " << name(streams.policy) << (both ? ", gradients too" : ""));
        how.parameters = lower;
        how.gradients = both ? lower : tier::device;
        how.streams = streams;
        check_equal({resident.losses, {resident.values[0]}}, train(how));
      }
}

// A bf16 value of 1 has no neighbour within 1/256: rounded steps of 1/1024 would never move it.
TEST_CASE("of a bf16 store an update works on master copies, which are rounded, and follows what others write") {
  for (const int ranks : {1, 2}) {
    const auto body = [](auto& rank, auto& run) {
      std::vector<belay::bf16> values(3000, static_cast<belay::bf16>(1.0F));
      std::vector<float> gradients(3000);
      belay::parameter_list<belay::bf16> list{values, gradients};
      list.add("a", {1000}), list.add("b", {2000});
      belay::mesh mesh{rank, {.data = rank.size()}};
      belay::parameter_store store{run, mesh, list, belay::zero<1>{}, belay::precision<belay::bf16>{}};
      for (const auto number : run.steps(9)) {
        belay::step step{run.engine(), store};
        belay::owe(step, "layer", {list[0], list[1]}).backward([&] {
          for (float& g : gradients) g += 1;
        });
        auto outcome = std::move(step).commit(mesh, belay::samples{static_cast<std::size_t>(rank.size())});
        auto* const ok = belay::committed(outcome);
        if (ok == nullptr) continue;
        store.update(std::move(*ok),
                     [](const std::string&, std::span<float> masters, std::span<const float> g, std::size_t) {
                       for (std::size_t i = 0; i < masters.size(); ++i) masters[i] -= g[i] / 1024;
                     });
        if (number == 8 && !run.rehearsing()) {
          for (const belay::bf16& value : values) CHECK(static_cast<float>(value) == 1 - 8.0F / 1024);
          std::ranges::fill(values, static_cast<belay::bf16>(4.0F));  // an import: the masters are no more of use
        }
      }
      if (run.rehearsing()) return;
      for (const belay::bf16& value : values) CHECK(static_cast<float>(value) == 4);  // and not below 1
      CHECK(run.planned().peak_bytes(tier::device) == run.meters()[tier::device].peak_bytes());
      std::size_t masters = 0;
      for (const auto& item : run.planned().items())
        if (item.purpose == "master copies") masters += item.bytes;
      CHECK(masters >= 1000 * sizeof(float));
    };
    belay::launch(belay::host::world{ranks}, body);
  }
}

TEST_CASE("a token is good for one update, of its store, and gradients that nobody updates with are named") {
  const auto body = [](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = 1}};
    network one(5), two(5);
    two.first.weight = belay::parameter<float>{"third.weight", {5, 8}};
    two.second.weight = belay::parameter<float>{"fourth.weight", {7, 5}};
    belay::parameter_store store{run, mesh, one, belay::zero<1>{}}, other{run, mesh, two, belay::zero<1>{}};
    std::size_t called = 0;
    const auto counts = [&](const std::string&, std::span<float>, std::span<const float>, std::size_t) { ++called; };
    {
      belay::step step{run.engine(), store, other};
      step.micro_batches(0);
      auto outcome = std::move(step).commit(mesh, belay::samples{1});
      auto* const ok = belay::committed(outcome);
      REQUIRE(ok != nullptr);
      CHECK_THROWS_WITH_AS(store.update(ok->part(other), counts), doctest::Contains("belong to another store"),
                           belay::usage_error);
      auto part = ok->part(store);
      store.update(std::move(part), counts);
      CHECK(called == (run.rehearsing() ? 0 : 2));
      CHECK_THROWS_WITH_AS(store.update(std::move(part), counts),  // NOLINT(bugprone-use-after-move)
                           doctest::Contains("these gradients were applied before"), belay::usage_error);
      other.update(ok->part(other), counts);
    }
    if (run.rehearsing()) return;
    {
      belay::step step{run.engine(), store};
      step.micro_batches(0);
      auto outcome = std::move(step).commit(mesh, belay::samples{1});
      CHECK(belay::committed(outcome) != nullptr);
    }
    const auto next = [&] {
      belay::step step{run.engine(), store};
      step.cut_off();
    };
    CHECK_THROWS_WITH_AS(next(), doctest::Contains("neither applied nor discarded"), belay::usage_error);
  };
  belay::launch(belay::host::world{1}, body);
}
