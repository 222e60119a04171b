// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Parameters that were gathered for a layer stay whole, and memory grows: DeepSpeed's issues 6726, 6966, 7116, 7258. A
// counter of owed backwards gave them back, and was zeroed once a step, because a forward without gradient owes none.
// Under recompute, which runs the forward twice and one backward, it never came back to zero. See
// docs/explanation/field_failures/gathered_parameters.md.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "belay/backend/host.hpp"
#include "belay/parallel/gathers.hpp"
#include "belay/step/recompute.hpp"
#include "belay/train/launch.hpp"
#include "belay/train/optimizer.hpp"
#include "belay/train/store.hpp"
#include "unit/train/support/network.hpp"

using namespace network_bench;

namespace {

struct listed : linear {
  void for_each_parameter(auto&& visit) { visit(weight); }
};
struct two_layers {
  listed first{{{"first.weight", {7, 7}}}}, second{{{"second.weight", {3, 7}}}};
  void for_each_parameter(auto&& visit) { visit(first.weight), visit(second.weight); }
};

// The wrong one: it gives back when as many backwards as forwards have run, and forgets the count in every step.
template <class Layer, class Store>
class gathers_by_counter {
 public:
  gathers_by_counter(Layer& layer, Store& store) : layer_(&layer), store_(&store), number_(store.gathers_for(layer)) {}

  void begin_step() noexcept { owed_ = 0; }
  [[nodiscard]] auto forward(auto& call, const auto& input) {
    if (owed_++ == 0) store_->hold(number_, call.engine(), call.call().at);
    return layer_->forward(call, input);
  }
  template <class Frame, class Residue, class Dout, class... Dx>
  requires requires(Layer& layer, Frame& call, Residue&& residue, const Dout& dout, const Dx&... dx) {
    layer.backward(call, std::move(residue), dout, dx...);
  }
  void backward(Frame& call, Residue&& residue, const Dout& dout, const Dx&... dx) {
    layer_->backward(call, std::move(residue), dout, dx...);
    if (--owed_ == 0) store_->give_back(number_);
  }

 private:
  Layer* layer_;
  Store* store_;
  std::uint32_t number_;
  std::size_t owed_ = 0;
};

enum class how { plain_and_observed, recomputed, two_in_flight };

struct found {
  std::size_t after_use = 0;   // bytes of whole parameters after the last backward of a step: the most of all steps
  std::size_t other_live = 0;  // steps that left a tier otherwise than the first
  bool as_planned = true;
};

// Two layers, trained for `steps` steps as `what` says. `Gathers` is what gives layers their parameters.
template <template <class, class> class Gathers>
found train(int ranks, how what, std::size_t steps, belay::tier parameters = belay::tier::device) {
  found out;
  const auto body = [&](auto& rank, auto& run) {
    belay::mesh mesh{rank, {.data = rank.size()}};
    two_layers net;
    belay::parameter_store store{run, mesh, net, belay::zero<3>{}, belay::store_options{.parameters = parameters}};
    Gathers<listed, decltype(store)> first{net.first, store}, second{net.second, store};
    belay::recompute again{first};
    belay::adamw optimizer{store};
    std::array<std::size_t, belay::tier_count> live{};
    const data batch(1, 0), other(2, 0);
    for (auto number : run.steps(steps)) {
      if constexpr (requires { first.begin_step(); }) first.begin_step(), second.begin_step();
      belay::step step{run.engine(), store};
      step.micro_batches(what == how::two_in_flight ? 2 : 1);
      const auto one = [&](const auto& scope, auto& lower, const data& from) {
        auto h = belay::forward(scope, lower, belay::constant(from.inputs()));
        if (what == how::plain_and_observed) static_cast<void>(belay::observe(scope, first, from.inputs()));
        auto y = belay::forward(scope, second, h.out());
        auto [loss, grad] = belay::squared_error(scope, y.out(), from.targets());
        grad = std::move(y).backward(grad);
        std::move(h).backward(grad);
      };
      if (what == how::recomputed) {
        one(step.micro_batch(0), again, batch);
      } else if (what == how::plain_and_observed) {
        one(step.micro_batch(0), first, batch);
      } else {
        auto h = belay::forward(step.micro_batch(0), first, belay::constant(batch.inputs()));
        auto g = belay::forward(step.micro_batch(1), first, belay::constant(other.inputs()));
        auto y = belay::forward(step.micro_batch(0), second, h.out());
        auto z = belay::forward(step.micro_batch(1), second, g.out());
        auto [loss, dy] = belay::squared_error(step.micro_batch(0), y.out(), batch.targets());
        auto [more, dz] = belay::squared_error(step.micro_batch(1), z.out(), other.targets());
        dz = std::move(z).backward(dz);  // in reverse order
        std::move(g).backward(dz);
        dy = std::move(y).backward(dy);
        std::move(h).backward(dy);
      }
      if (!run.rehearsing() && rank.number() == 0) out.after_use = std::max(out.after_use, store.gathered_bytes());
      auto outcome = std::move(step).commit(mesh, belay::samples{rows});
      if (auto* ok = belay::committed(outcome)) optimizer.apply(std::move(*ok), {.learning_rate = 1e-3});
      if (run.rehearsing()) continue;
      run.engine().compute().synchronize();
      std::array<std::size_t, belay::tier_count> now{};
      for (std::size_t t = 0; t < now.size(); ++t) now[t] = run.meters()[static_cast<belay::tier>(t)].live_bytes();
      if (number == 1) live = now;
      if (rank.number() == 0) out.other_live += now == live ? 0 : 1;
      if (run.meters()[belay::tier::device].peak_bytes() != run.planned().peak_bytes(belay::tier::device))
        out.as_planned = false;
    }
  };
  belay::launch(belay::host::world{ranks}, body);
  return out;
}

}  // namespace

TEST_CASE("whole parameters end with the calls that gathered them, whatever is called twice or without gradient") {
  for (const int ranks : {1, 2, 4})
    for (const how what : {how::plain_and_observed, how::recomputed, how::two_in_flight}) {
      CAPTURE(ranks);
      CAPTURE(static_cast<int>(what));
      const found result = train<belay::gathers>(ranks, what, 50);
      CHECK(result.after_use == 0);
      CHECK(result.other_live == 0);
      CHECK(result.as_planned);
    }
}

TEST_CASE("and where they are offloaded to pinned memory") {
  for (const int ranks : {2, 4})
    for (const how what : {how::plain_and_observed, how::recomputed, how::two_in_flight}) {
      CAPTURE(ranks);
      CAPTURE(static_cast<int>(what));
      const found result = train<belay::gathers>(ranks, what, 50, belay::tier::pinned);
      CHECK(result.after_use == 0);
      CHECK(result.other_live == 0);
      CHECK(result.as_planned);
    }
  CHECK(train<gathers_by_counter>(2, how::recomputed, 2, belay::tier::pinned).after_use > 0);
}

TEST_CASE("a counter of owed backwards keeps them: under recompute, and where a forward owes nothing") {
  CHECK(train<gathers_by_counter>(2, how::recomputed, 2).after_use > 0);
  CHECK(train<gathers_by_counter>(2, how::plain_and_observed, 2).after_use > 0);
  CHECK(train<gathers_by_counter>(2, how::two_in_flight, 2).after_use == 0);
}

namespace {

struct bad_batch {};
enum class thrown { between_calls, in_forward, in_backward };

// Throws on all ranks where it is told to.
struct failing : listed {
  thrown where = thrown::between_calls;
  bool fails = false;
  residue forward(auto& frame, matrix x) {
    if (fails && where == thrown::in_forward) throw bad_batch{};
    return listed::forward(frame, x);
  }
  void backward(auto& frame, residue&& r, matrix dy, belay::view<float, 2> dx) {
    if (fails && where == thrown::in_backward) throw bad_batch{};
    listed::backward(frame, std::move(r), dy, dx);
  }
};
struct failing_layers {
  listed first{{{"first.weight", {7, 7}}}};
  failing second{{{{"second.weight", {3, 7}}}}};
  void for_each_parameter(auto&& visit) { visit(first.weight), visit(second.weight); }
};

}  // namespace

TEST_CASE("what an exception has left gathered ends with its step, and the next one is as planned") {
  for (const belay::gather_by how : {belay::gather_by::reach, belay::gather_by::collectives})
    for (const belay::stream_policy policy : {belay::stream_policy::immediate, belay::stream_policy::queued})
      for (const thrown where : {thrown::between_calls, thrown::in_forward, thrown::in_backward}) {
        CAPTURE(static_cast<int>(how));
        CAPTURE(static_cast<int>(where));
        const auto body = [&](auto& rank, auto& run) {
          belay::mesh mesh{rank, {.data = rank.size()}};
          failing_layers net;
          net.second.where = where;
          belay::parameter_store store{run, mesh, net, belay::zero<3>{}, {.gathers = how}};
          belay::gathers first{net.first, store};
          belay::gathers second{net.second, store};
          belay::adamw optimizer{store};
          const data batch(1, 0);
          std::size_t peak = 0;
          for (auto number : run.steps(4)) {
            net.second.fails = !run.rehearsing() && number == 2;
            try {
              belay::step step{run.engine(), store};
              if (!run.rehearsing()) CHECK(store.gathered_bytes() == store.bytes_of(0));  // the first one's, started
              auto h = belay::forward(step, first, belay::constant(batch.inputs()));
              if (net.second.fails && where == thrown::between_calls) throw bad_batch{};
              auto y = belay::forward(step, second, h.out());
              auto [loss, grad] = belay::squared_error(step, y.out(), batch.targets());
              grad = std::move(y).backward(grad);
              std::move(h).backward(grad);
              auto outcome = std::move(step).commit(mesh, belay::samples{rows});
              if (auto* ok = belay::committed(outcome)) optimizer.apply(std::move(*ok), {.learning_rate = 1e-3});
            } catch (const bad_batch&) {
              CHECK(store.take_gathered().missed == 0);
              continue;
            }
            if (run.rehearsing()) continue;
            CHECK(store.gathered_bytes() == 0);
            const belay::gather_counts counts = store.take_gathered();
            CHECK(counts.prefetched == 4);
            CHECK(counts.missed + counts.in_order == 0);
            if (number == 1) peak = counts.peak_bytes;
            CHECK(counts.peak_bytes == peak);
            CHECK(run.meters()[belay::tier::device].peak_bytes() == run.planned().peak_bytes(belay::tier::device));
          }
        };
        belay::launch(belay::host::world{3}, body, {.streams = {policy, 0}});
      }
}
